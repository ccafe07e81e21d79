"""Keeps TensorFlow from adding up gradients in the order in which they arrive."""

import functools
from collections.abc import Callable
from typing import Any, final

from tensorflow.core.protobuf import config_pb2, rewriter_config_pb2
from tensorflow.python.eager import context


def in_order_of_graph(
    run: Callable[..., Any], wanted: Callable[[], bool] = lambda: True
) -> Callable[..., Any]:
    """Return a function whose steps add up gradients in the order that their graph says.

    Where TensorFlow's memory optimizer takes a step for larger than four fifths of its device's
    memory (of a CPU's it believes that it is 256 MiB), each gradient of a sum of three or more is
    added as it arrives. Then last bits hang on the order in which ops happen to run, also under op
    determinism, and memory on what nobody knows before. Here it is off.

    Args:
        run: Calls the functions that take the steps, and has called none of them before.
        wanted: Asked when a step has been traced, and is about to run. Where it says no, the step
            is as it would be without this.
    """

    @functools.wraps(run)
    def in_order(*args: Any, **kwargs: Any) -> Any:
        options = context.context().function_call_options
        context.context().function_call_options = _Options(options, wanted)
        try:
            return run(*args, **kwargs)
        finally:
            context.context().function_call_options = options

    return in_order


@final
class _Options(context.FunctionCallOptions):
    """Asks, each time that a function is called, what it is called with."""

    def __init__(self, options: context.FunctionCallOptions, wanted: Callable[[], bool]) -> None:
        super().__init__(options.executor_type)
        self._options = options
        self._wanted = wanted

    def as_attrs(self) -> dict[str, Any]:
        attributes = dict(self._options.as_attrs())
        if self._wanted():
            attributes["config_proto"] = _without_memory_optimizer(attributes["config_proto"])
        attributes["executor_type"] = self.executor_type or ""
        return attributes


@functools.cache
def _without_memory_optimizer(serialized: bytes) -> bytes:
    config = config_pb2.ConfigProto.FromString(serialized)
    rewriting = config.graph_options.rewrite_options
    rewriting.memory_optimization = rewriter_config_pb2.RewriterConfig.NO_MEM_OPT
    return config.SerializeToString(deterministic=True)
