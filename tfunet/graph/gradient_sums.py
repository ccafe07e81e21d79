"""Makes TensorFlow add up gradients in the order of the graph, not of their arrival."""

import functools
from collections.abc import Callable
from typing import Any, final

from tensorflow.core.protobuf import config_pb2, rewriter_config_pb2

from tfunet.inside.of_tensorflow import CallOptions, call_options, calling_with


def in_order_of_graph(
    run: Callable[..., Any], wanted: Callable[[], bool] = lambda: True
) -> Callable[..., Any]:
    """Return a function whose steps add up gradients in the order of their graph.

    TensorFlow's memory optimizer may expect that a step takes more than four fifths of its device's
    memory (it takes a CPU's for 256 MiB). Then it adds each gradient of a sum of three or more as
    it arrives: last bits depend on the order in which ops happen to run, also under op determinism,
    and so does memory. This switches the optimizer off. On a GPU the layout optimizer is off, too:
    it would transpose tensors where they leave the device and come back, which takes memory that
    the traced graph does not show.

    Args:
        wanted: Asked when a step has been traced and is about to run. If it returns False, the
            optimizer stays on.
    """

    @functools.wraps(run)
    def in_order(*args: Any, **kwargs: Any) -> Any:
        with calling_with(_Options(call_options(), wanted)):
            return run(*args, **kwargs)

    return in_order


@final
class _Options(CallOptions):
    """Options that TensorFlow asks for each time a function is called."""

    def __init__(self, options: Any, wanted: Callable[[], bool]) -> None:
        super().__init__(options.executor_type)
        self._options = options
        self._wanted = wanted

    def as_attrs(self) -> dict[str, Any]:
        attributes = dict(self._options.as_attrs())
        if self._wanted():
            attributes["config_proto"] = _as_traced(attributes["config_proto"])
        attributes["executor_type"] = self.executor_type or ""
        return attributes


@functools.cache
def _as_traced(serialized: bytes) -> bytes:
    config = config_pb2.ConfigProto.FromString(serialized)
    rewriting = config.graph_options.rewrite_options
    rewriting.memory_optimization = rewriter_config_pb2.RewriterConfig.NO_MEM_OPT
    rewriting.layout_optimizer = rewriter_config_pb2.RewriterConfig.OFF
    return config.SerializeToString(deterministic=True)
