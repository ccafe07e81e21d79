"""Cuts a network into stages that run one after the other on devices of their own."""
