"""Draws and tells what only the notebooks show of a sweep."""
