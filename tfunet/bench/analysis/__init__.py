"""Statistics and comparisons over trials."""
