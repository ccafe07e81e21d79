"""Builds a model without its weights: shapes and parameters of any size take no memory."""

import contextlib
import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import keras


def build_symbolic(
    builder: Callable[[], keras.Model], *, precision: str, has_values: bool = False
) -> keras.Model:
    """Call `builder` under the dtype policy `precision`, without values for the variables.

    Such a model answers questions about its graph, shapes and parameters. It cannot be called.
    The caller's policy, layer names and random state stay as they are. A builder that uses the
    values itself needs `has_values`.
    """
    random_state = random.getstate()
    try:
        # In another thread: Keras keeps its policy and names for each thread, and a list of the
        # variables without values, all of which the next StatelessScope would allocate.
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(build_here, builder, precision, has_values=has_values).result()
    finally:
        # Keras draws the seeds of initializers from here.
        random.setstate(random_state)


def build_here(
    builder: Callable[[], keras.Model], precision: str, *, has_values: bool = False
) -> keras.Model:
    """Build a model as `build_symbolic` does, in this thread, whose policy, layer names and random
    state change.
    """
    keras.config.set_dtype_policy(precision)
    without = keras.StatelessScope(initialize_variables=False)
    with contextlib.nullcontext() if has_values else without:
        return builder()
