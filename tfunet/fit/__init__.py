"""A script of the user's own, whose `fit` trains on many devices."""
