"""Writes the record of a run in the formats of other tools."""
