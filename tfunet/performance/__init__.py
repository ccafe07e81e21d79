"""Predicts memory and time of a step on a device that need not be there."""
