"""Random changes of training samples: geometry, grey values, and their random numbers."""
