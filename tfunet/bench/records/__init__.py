"""Reads what trials recorded."""
