"""Predicts memory and time of a step on a device that does not have to be present."""
