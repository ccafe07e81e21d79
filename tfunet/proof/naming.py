"""What differs between two steps, by name, and what to do about it."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import keras
import numpy as np

from tfunet.inside.of_keras import own_losses
from tfunet.proof.differences import Difference, share_of
from tfunet.proof.small_step import ProofTrial
from tfunet.proof.step import STEP, Taken
from tfunet.proof.watching import Watched, first_difference, operations_of, watching

OWN_METHODS = ("compute_loss", "train_step")


@final
@dataclass(frozen=True, kw_only=True)
class Seen:
    """What is seen where two steps differ.

    Args:
        layer: The number of the first layer whose output differs; None if none does.
        is_random: Whether it gives something else each time that it is called.
        adding: The numbers of layers that add to the loss.
    """

    layer: int | None = None
    is_random: bool = False
    adding: tuple[int, ...] = ()


def look_again(trial: ProofTrial, bound: float) -> Seen:
    """Take both steps once more, and look at the layers; called by all processes together."""
    attempt = trial.attempt
    if trial.data.tiles is not None:
        return Seen()  # The output of a layer for a tile has another place for each layer.
    config, topology, mesh = attempt.config, attempt.topology, attempt.mesh
    network = trial.in_parts()
    values = trial.values(network, everywhere=True)
    several = len(topology.local_replicas) > 1 and network.stages is None
    parts = Watched(network.model, topology.local_replicas.start if several else None)
    with watching(parts, in_parts=network.split is not None):
        trial.take_in_parts(network, looks=False)
    wholes = []
    for _ in range(2):
        alone = trial.whole(values)
        wholes.append(Watched(alone.model, None))
        with watching(wholes[-1], in_parts=False):
            trial.take_whole(alone, Taken())
    whole, again = wholes
    adding = [
        number
        for number, one in enumerate(operations_of(alone.model))
        if isinstance(one, keras.layers.Layer) and own_losses(one)
    ]
    first = mesh.group_of(topology.local_replicas.start) * config.replica_samples
    passes = config.accumulation * config.micro_batches
    size = config.replica_samples // passes
    rows = [slice(first + at * size, first + (at + 1) * size) for at in range(passes)]
    order = list(whole.outputs)
    number = first_difference(
        parts, whole, rows, lambda *pair: not share_of(*pair) <= bound, order, trial.num_steps
    )
    found = np.zeros(len(order))
    if number is not None:
        found[order.index(number)] = 1
    seen = np.flatnonzero(attempt.backend.sum(found))
    if not seen.size:
        return Seen(adding=tuple(adding))
    layer = order[int(seen[0])]
    pairs = zip(whole.outputs[layer], again.outputs[layer], strict=True)
    is_random = not all(np.array_equal(*pair) for pair in pairs)
    return Seen(layer=layer, is_random=is_random, adding=tuple(adding))


def message(
    trial: ProofTrial, ways: Sequence[str], different: Sequence[Difference], seen: Seen
) -> str:
    """Return what a run with these differences says."""
    config = trial.attempt.config
    settings = ", ".join(f"{way} = {json.dumps(getattr(config, way))}" for way in ways)
    share = max(one.share for one in different)
    by = "infinity" if not np.isfinite(share) else f"{share:.2g}"
    count = config.global_samples
    samples = f"{count} small sample{'s' if count > 1 else ''}"
    return (
        f"With {settings}, a step is not that of one device. Tried in {trial.dtype} on "
        f"{samples}, they differ by up to {by} of the largest number. "
        f"First of all, {_what(trial, different, seen)}. "
        f"Leave out {' or '.join(ways)}, or change that. With prove = false the run trains all the "
        "same, and its record says that it is not proved."
    )


def _what(trial: ProofTrial, different: Sequence[Difference], seen: Seen) -> str:
    model = trial.network.model
    operations = operations_of(model)
    if seen.layer is not None:
        layer, own = operations[seen.layer], _own_method(model, ("train_step",))
        where = f" in {own}" if own else ""
        return f"the output of the layer {layer.name!r} ({type(layer).__name__}){where} differs"
    is_tiled = trial.data.tiles is not None  # No outputs were compared.
    by_kind: dict[str, Difference] = {}
    for one in different:
        by_kind.setdefault(one.kind, one)
    if "loss" in by_kind:
        adding = [operations[number].name for number in seen.adding]
        more = "" if is_tiled else ", and no output of a layer"
        return f"{_loss(model, adding)} differs{more}"
    if "outputs" in by_kind:
        return "the output of the network without training differs"
    before = "not the loss" if is_tiled else "neither an output nor the loss"
    for kind, words in (
        ("gradients", f"the gradient of {{!r}} differs, and {before}"),
        ("states", "the state {!r} differs after the step"),
        ("updates", "what the optimizer makes of the same gradients in {!r} differs"),
    ):
        if kind in by_kind:
            return words.format(by_kind[kind].name)
    name = by_kind["recorded"].name.removeprefix(STEP)
    return f"the recorded {'loss' if name == 'loss' else f'metric {name!r}'} differs"


def _loss(model: Any, adding: Sequence[str]) -> str:
    """Return in words what gives the loss."""
    if own := _own_method(model, OWN_METHODS):
        return f"the loss of {own}"
    terms = f", or what {', '.join(map(repr, adding))} adds to it (add_loss)," if adding else ""
    return f"the loss {model.loss.name!r}{terms}"


def _own_method(model: Any, names: Sequence[str]) -> str:
    """Return the first of these methods that a model has of its own; "" if it has none."""
    kind = type(model)
    for name in names:
        owner = next(base for base in kind.__mro__ if name in vars(base))
        if owner.__module__.split(".")[0] != "keras":
            return f"{kind.__name__}.{name}"
    return ""
