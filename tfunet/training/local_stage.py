"""A stage of this process, and what was measured of it."""

from dataclasses import dataclass, field
from typing import final

import tensorflow as tf

from tfunet.graph.reader import num_bytes
from tfunet.pipeline.own_stage import OwnStage


@final
@dataclass(kw_only=True)
class LocalStage:
    """A stage of this process.

    Args:
        spans: Unix times of the begin and the end of each of its passes, as they are made.
        sums: Sums of the gradients of tiles; none where samples are whole.

    Attributes:
        busy_seconds: What its passes take in each step but the first.
        alone_seconds: What each of its passes through all micro-batches takes, in each step without
            any exchange; a step on tiles has several such rows.
    """

    stage: OwnStage
    spans: list[tuple[float, float]]
    sums: list[tf.Variable] = field(default_factory=list)
    busy_seconds: list[float] = field(default_factory=list)
    alone_seconds: list[list[float]] = field(default_factory=list)

    @property
    def sum_bytes(self) -> int:
        """Bytes of its sums."""
        return sum(num_bytes(tf.TensorSpec(total.shape, total.dtype)) for total in self.sums)

    def note(self, *, counts: bool) -> None:
        """Note the passes of a step."""
        if counts:
            self.busy_seconds.append(sum(end - begin for begin, end in self.spans))
        self.spans.clear()
