"""Strategies that decide what happens to each tensor."""
