"""The harness: studies, launching, statistics and reports. Imports no TensorFlow."""
