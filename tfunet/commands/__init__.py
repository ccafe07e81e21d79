"""The groups of commands that tfunet.cli offers. Loads no TensorFlow."""
