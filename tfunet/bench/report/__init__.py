"""Writes tables, verdicts and figures."""
