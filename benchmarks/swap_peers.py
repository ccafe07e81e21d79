"""What else saves memory in Keras and TensorFlow: keras.RematScope, grappler's memory optimizer.

Neither takes a budget: each has one peak and one step time.
"""

import contextlib
import functools
from unittest import mock

import keras
import tensorflow as tf
from tensorflow.core.protobuf import config_pb2, rewriter_config_pb2
from tensorflow.python.eager import context

# A user of "list_of_layers" would name what is cheap to compute again: all but these.
DEAR = ("Conv", "Input")
# TensorFlow names the ops of the backward pass so.
BACKWARD = "gradient_tape/"


def made(way, make):
    """Return what `make` makes: a model, its layers in a mode of keras.RematScope if that is so."""
    if not way.startswith("remat_"):
        return make()
    mode, names = way.removeprefix("remat_"), []
    if mode == "list_of_layers":
        names = [
            layer.name
            for layer in make().layers
            if not any(word in type(layer).__name__ for word in DEAR)
        ]
        keras.backend.clear_session()
        keras.utils.set_random_seed(0)
    with keras.RematScope(mode, layer_names=names):
        return make()


@contextlib.contextmanager
def active(way):
    """Take a step as a peer would."""
    if way.startswith("remat_"):
        # In a traced step Keras 3.15 passes keywords to a function of TensorFlow's that takes none
        # there, and ends in an error; bound before, the mode works.
        with mock.patch("keras.src.backend.common.remat.remat", _remat):
            yield
    elif way.startswith("grappler_"):
        before = context.context().function_call_options
        config = config_pb2.ConfigProto.FromString(before.config_proto_serialized)
        rewriter = config.graph_options.rewrite_options
        kind = rewriter_config_pb2.RewriterConfig.MemOptType
        rewriter.memory_optimization = kind.Value(way.removeprefix("grappler_").upper())
        rewriter.memory_optimizer_target_node_name_scope = BACKWARD
        context.context().function_call_options = context.FunctionCallOptions(config_proto=config)
        try:
            yield
        finally:
            context.context().function_call_options = before
    else:
        yield


def _remat(function):
    def call(*args, **kwargs):
        return tf.recompute_grad(functools.partial(function, **kwargs))(*args)

    return call
