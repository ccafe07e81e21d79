"""Tells a person what a plan does, and what was measured."""
