"""Plays TensorFlow's allocator through a step, so that a plan finds room."""
