"""Predictions of whole images and volumes, by tiles. Importing it imports no TensorFlow."""
