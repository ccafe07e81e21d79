"""Backends over tf.distribute."""
