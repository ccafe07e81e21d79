"""How cases lie in files: patterns, tables and dataset.json. Imports no TensorFlow."""
