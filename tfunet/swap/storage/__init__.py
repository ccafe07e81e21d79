"""Where swapped tensors lie: host memory and disk."""
