"""tf.function without AutoGraph."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf


def traced(function: Callable[..., Any], **options: Any) -> Any:
    """Return a tf.function of what chooses by TensorFlow's ops only, not by Python's `if`.

    AutoGraph would translate every function that it meets, find nothing to do, and leave a file for
    each in the folder for temporary files. A run would take a second longer. Nor does AutoGraph
    translate training steps, so a model that needs it cannot be trained.
    """
    return tf.function(tf.autograph.experimental.do_not_convert(function), **options)
