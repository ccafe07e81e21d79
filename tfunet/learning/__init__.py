"""Losses, scores, optimizers and learning rates."""
