"""Private names of Keras and TensorFlow: an upgrade that takes one away breaks two files."""
