"""Finds out what a folder holds, and writes a first configuration for it. No TensorFlow."""
