"""Generated data sets, which need no download. Imports no TensorFlow."""
