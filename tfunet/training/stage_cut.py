"""Where the network of a run is cut into stages, and which networks cannot be."""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import final

import keras
import numpy as np

from tfunet.backend import num_processes
from tfunet.config.amount import MIB
from tfunet.config.keys import show
from tfunet.config.run import RunConfig
from tfunet.config.words import near_match
from tfunet.geometry.kinds import is_own
from tfunet.pipeline.balance import Balance, NoBalanceError, balances
from tfunet.pipeline.chain import Chain
from tfunet.pipeline.chunk import traffic_of
from tfunet.pipeline.network import NodeGraph
from tfunet.pipeline.rounds import rounds
from tfunet.pipeline.schedules import homes, waiting
from tfunet.pipeline.simulation import (
    Link,
    recomputed_shares,
    simulate,
    training_orders,
    work_of,
)
from tfunet.pipeline.stage_memory import stage_memory
from tfunet.pipeline.statistics import check_deferrable
from tfunet.training import checkpoint
from tfunet.training.attempt import Attempt

# TensorFlow's allocator gives out larger blocks than it is asked for: 14 % were measured.
ALLOCATOR_LOSS = 0.15
LESS = 0.95


@final
@dataclass(frozen=True, kw_only=True)
class StageCut:
    """A network in stages, and what they are predicted to take; None where the cut was given.

    Args:
        begins: Where each chunk begins, and the end.
        seconds: What each stage takes for a micro-batch.
        num_bytes: The memory of each stage.
    """

    begins: Sequence[int]
    seconds: Sequence[float] | None = None
    num_bytes: Sequence[int] | None = None


def find_cut(
    attempt: Attempt,
    graph: NodeGraph,
    measured: Callable[[], Chain],
    *,
    batch_bytes: int,
    memory_bytes: int | None,
) -> StageCut:
    """Return the cut that the configuration names, or the best; called by all processes together.

    Args:
        measured: Returns what layers cost here.
        batch_bytes: Size of the batch of a pipeline.
        memory_bytes: What a stage has; None where it is not known.

    Raises ValueError for layers that the network does not have, or if none of the cuts keeps to the
    memory.
    """
    config = attempt.config
    if config.balance != "time":
        return StageCut(begins=named_cuts(graph, config.balance))
    text = b""
    if attempt.topology.is_chief:
        attempt.begin("measuring layers")
        chain = measured()

        def predicted(found: Balance) -> list[int]:
            return predicted_bytes(graph, chain, found.cuts, config, batch_bytes)

        found = fitting_balance(chain, config, predicted, memory_bytes)
        text = json.dumps([found.cuts, found.seconds, predicted(found)]).encode()
    shared = checkpoint.share_bytes(
        attempt.backend, attempt.topology, np.frombuffer(text, np.uint8)
    )
    begins, seconds, num_bytes = json.loads(shared)
    if config.swap is None and memory_bytes is not None and max(num_bytes) > memory_bytes:
        attempt.say(
            f"A stage is predicted to take {max(num_bytes) / MIB:,.0f} MiB of the "
            f"{memory_bytes / MIB:,.0f} MiB that it has: it may run out of memory."
        )
    return StageCut(begins=begins, seconds=seconds, num_bytes=num_bytes)


def predicted_bytes(
    graph: NodeGraph, chain: Chain, begins: Sequence[int], config: RunConfig, batch_bytes: int
) -> list[int]:
    """Return the memory that each stage is predicted to take."""
    traffic, devices = traffic_of(graph, begins), homes(config.schedule, config.stages)
    orders = training_orders(config.schedule, config.stages, config.micro_batches, traffic.crossing)
    return stage_memory(
        chain,
        begins,
        rounds(orders, traffic, devices),
        traffic=traffic,
        homes=devices,
        recomputed=waiting(orders) if config.recompute else {},
        batch_bytes=batch_bytes,
    )


def fitting_balance(
    chain: Chain,
    config: RunConfig,
    predicted: Callable[[Balance], Sequence[int]],
    memory_bytes: int | None,
) -> Balance:
    """Return the best cut whose predicted memory leaves the allocator something to lose.

    The programme bounds what a schedule keeps and knows no buffers of exchanges. So the fastest cut
    is looked at first, and then it is given less memory until these fit, too. If they never do, the
    cut that takes least is returned; with large-model support, the fastest.
    """
    fastest = best_balance(chain, config, None)
    if memory_bytes is None:
        return fastest
    most = memory_bytes * (1 - ALLOCATOR_LOSS)
    if max(predicted(fastest)) <= most:
        return fastest
    tried: list[tuple[int, Balance]] = []
    limit = memory_bytes
    while True:
        try:
            found = best_balance(chain, config, limit)
        except NoBalanceError:
            if config.swap is not None:
                return fastest  # Tensors leave a stage that is too large.
            if tried:
                return min(tried, key=lambda one: one[0])[1]
            raise
        num_bytes = max(predicted(found))
        if num_bytes <= most:
            return found
        tried.append((num_bytes, found))
        limit = int(limit * LESS)


def best_balance(chain: Chain, config: RunConfig, memory_bytes: int | None) -> Balance:
    """Return the cut with the fastest step, as far as messages take no time."""
    schedule, micro_batches = config.schedule, config.micro_batches
    recomputed = None
    if config.recompute:
        recomputed = recomputed_shares(schedule, config.stages, micro_batches)
    found = balances(
        chain,
        config.stages,
        schedule=schedule,
        micro_batches=micro_batches,
        memory_bytes=memory_bytes,
        recomputed=recomputed,
    )

    def step_seconds(one: Balance) -> float:
        work = work_of(chain, one, Link())
        orders = training_orders(schedule, config.stages, micro_batches, work.messages)
        return simulate(orders, work).step_seconds

    return found[0] if len(found) == 1 else min(found, key=step_seconds)


def named_cuts(graph: NodeGraph, names: Sequence[str]) -> list[int]:
    """Return where each chunk begins, and the end, from the first layers of the later ones."""
    known = [node.name for node in graph.nodes]
    cuts = [0]
    for name in names:
        if name not in known:
            raise ValueError(
                f"balance names the layer {name!r}, which the model does not have."
                f"{near_match(name, known)} Its layers in order: {', '.join(known)}."
            )
        cuts.append(known.index(name))
    cuts.append(len(known))
    if any(begin >= end for begin, end in pairwise(cuts)):
        raise ValueError(
            f"balance = {show(names)} must name layers in the order in which they run, and none "
            f"with which the network begins. That order: {', '.join(known)}."
        )
    return cuts


def check_own_methods(model: keras.Model) -> None:
    """Raise ValueError for methods of the model's own that need the whole network."""
    for name in ("call", "train_step", "compute_loss", "compute_metrics"):
        if is_own(model, name):
            raise ValueError(
                f"The model has a {name} of its own, which needs the whole network, and each "
                "process has a stage of it. Leave out stages, or use Keras's."
            )


def check_swap(config: RunConfig) -> None:
    """Raise ValueError for stages that large-model support makes no plans of."""
    if num_processes(config) == 1:
        raise ValueError(
            f"The backend {config.backend!r} has all stages in one process, whose large-model "
            "support would plan them as one. Leave out swap or stages, or choose multiworker or "
            "horovod."
        )
    if math.prod(config.split) > 1:
        raise ValueError(
            "Large-model support makes no plans of stages whose samples are split. Leave out "
            "LargeModelSupport, split or stages."
        )


def check_graph(graph: NodeGraph, config: RunConfig) -> None:
    """Raise ValueError for a network that cannot be cut into these stages."""
    if len(graph.nodes) < config.chunks:
        twice = " with two chunks each" if config.chunks > config.stages else ""
        raise ValueError(
            f"stages={config.stages}{twice} needs as many layers, and the model {config.model!r} "
            f"has {len(graph.nodes)}. Choose fewer stages."
        )
    if len(graph.inputs) != 1 or len(graph.outputs) != 1:
        raise ValueError(
            f"A network in stages has one input and one output, and the model {config.model!r} has "
            f"{len(graph.inputs)} and {len(graph.outputs)}. Leave out stages."
        )
    if config.batch_norm == "deferred":
        check_deferrable(node.operation for node in graph.nodes)
    if config.num_replicas > 1 and graph.synchronized:
        raise ValueError(
            f"The layer {graph.synchronized[0]!r} synchronizes its statistics over replicas, which "
            "is not built for stages yet. Leave out synchronized, stages or num_replicas."
        )
