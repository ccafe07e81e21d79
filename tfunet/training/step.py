"""One optimizer step on every replica, as a single traced function."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any, final

import keras
import tensorflow as tf

from tfunet.backend import Backend
from tfunet.data.pipeline import truth_of
from tfunet.data.tile_pipeline import TilePipeline
from tfunet.geometry.grid import Grid
from tfunet.graph.gradient_sums import in_order_of_graph
from tfunet.graph.traced import traced
from tfunet.learning.averaging import Averaging
from tfunet.learning.pass_states import PassStates, changed_by_passes
from tfunet.parallel.network import SplitNetwork
from tfunet.swap import LargeModelSupport
from tfunet.timing.stamps import Note, timed
from tfunet.training.attempt import Attempt
from tfunet.training.network import Network
from tfunet.training.run_data import RunData
from tfunet.training.staged_tiles import StagedTiles
from tfunet.training.tile_step import TileStep, TileWork, UncutNetwork
from tfunet.training.train_step import check_logs

Step = Callable[[Any], dict[str, Any]]


@final
class Steps:
    """The training steps of a run after its first so many, and the batches that they take.

    Attributes:
        pipeline: The training batches.
        take: Makes an optimizer step with the iterator of a feed; see `make_step`.
        take_exchanging: The same, to be traced while the average is off.
        take_crossing: The same, to be traced while the average and the exchange of borders are off.
        take_alone: The same, to be traced while the average and all exchanges are off.
        batches: The iterator of this run's feed.
    """

    def __init__(
        self,
        attempt: Attempt,
        data: RunData,
        network: Network,
        supports: Sequence[LargeModelSupport],
        first_step: int,
    ) -> None:
        config = attempt.config
        self.pipeline = pipeline = data.training(first_step)

        def make() -> Step:
            step: Step
            if isinstance(pipeline, TilePipeline):
                if supports:
                    raise ValueError(
                        "Large-model support is not built for tiles yet. Leave out its callback, "
                        "or tiling."
                    )
                step = TileStep(
                    tile_work(attempt, network, pipeline.grid, pipeline.passes),
                    passes=pipeline.passes,
                    # A step may take longer than a process may be silent.
                    alive=lambda: attempt.begin("step"),
                    note=attempt.note,
                )
            else:
                step = make_step(
                    attempt.backend,
                    network.model,
                    lambda batch: network.own_part(pipeline.augmented(batch)),
                    averaging=network.averaging,
                    xla=config.xla,
                    # Stages see to that themselves: only the last one has the loss.
                    split=network.split if network.stages is None else None,
                    note=attempt.note,
                )
            if config.deterministic or not attempt.has_gpus:
                step = in_order_of_graph(step)
            for support in supports:
                step = support.guarding(step)
            return step if network.stages is None else network.stages.log.watching(step)

        self._make = make
        self.forget_traces()
        self.batches = iter(attempt.backend.feed(self.pipeline))

    def forget_traces(self) -> None:
        """Have the steps traced anew: other variables are trained from now on."""
        self.take, self.take_exchanging, self.take_crossing, self.take_alone = (
            self._make() for _ in range(4)
        )


def tile_work(attempt: Attempt, network: Network, cut: Grid, passes: int) -> TileWork:
    """Return what this process's devices make of the tiles of a step, in so many passes."""
    if network.stages is None:
        return UncutNetwork(
            attempt.backend,
            network.model,
            cut,
            num_local=len(attempt.topology.local_replicas),
            passes=passes,
            averaging=network.averaging,
            prepare=network.own_part,
            split=network.split,
        )
    split = network.split
    return StagedTiles(
        attempt.backend,
        network.stages,
        network.loss,
        cut,
        passes=passes,
        averaging=network.averaging,
        prepare=network.own_part,
        whole=(lambda value: value) if split is None else (lambda value: split.group().sum(value)),
    )


def make_step(
    backend: Backend,
    model: keras.Model,
    prepare: Callable[[dict[str, tf.Tensor]], dict[str, tf.Tensor]],
    *,
    averaging: Averaging,
    xla: bool,
    split: SplitNetwork | None = None,
    note: Note | None = None,
) -> Step:
    """Return a function that takes the iterator of a feed and makes one optimizer step.

    The step is the model's own `train_step`, so that a user's override is respected; every
    optimizer that it applies averages gradients. Before it, `prepare` changes a
    replica's batch on its device. The function returns "sample" (local replicas, replica batch)
    and "logs": Keras's running means, (local replicas,) each. `note` is told of each wait for a
    batch, as "input". `split` runs the model on parts of samples.
    """

    def passes(batch: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        logs: dict[str, tf.Tensor] = {}
        states = PassStates(changed_by_passes([model]) if averaging.accumulation > 1 else ())
        with nullcontext() if split is None else split.traced_step():
            for index in range(averaging.accumulation):
                with states.one_pass():
                    image = averaging.following(batch["image"][index])
                    logs = model.train_step((image, batch["truth"][index]))
        states.end()
        check_logs(logs)
        if split is not None:
            split.check_calls()
        return logs

    compiled = traced(passes, jit_compile=True) if xla else passes

    def replica_step(batch: dict[str, tf.Tensor]) -> dict[str, Any]:
        prepared = prepare(batch)
        logs = compiled({"image": prepared["image"], "truth": truth_of(prepared)})
        return {"sample": batch["sample"], "logs": logs}

    # The iterator advances inside the function: one call from Python a step.
    def step(iterator: Any) -> dict[str, Any]:
        batch = timed("input", note, lambda _: next(iterator), device="CPU:0")
        with averaging.traced():
            return backend.run(replica_step, batch)

    return traced(step, reduce_retracing=True)
