"""Shows what a plan does, and what was measured."""
