"""Keras is to run on JAX."""

import os

os.environ["KERAS_BACKEND"] = "jax"

import tfunet  # After the backend is chosen, as Keras's docs have it.

tfunet.distribute()
print("trained")
