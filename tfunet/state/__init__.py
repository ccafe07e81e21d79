"""Weights and states of optimizers that a device does not hold whole: in parts, or elsewhere."""
