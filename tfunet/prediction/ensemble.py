"""Networks that predict together: the mean of the probabilities of several runs, and of mirrors."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any, final

import numpy as np

from tfunet.config.augmentation import chosen_axes, read_augmentation
from tfunet.learning.outputs import Outputs
from tfunet.prediction.network import Forward, TrainedNetwork, WindowFacts, load_network
from tfunet.prediction.prepare import Preparation, preparation
from tfunet.record import RunFolder


@final
@dataclass(frozen=True, kw_only=True)
class Member:
    """A network of an ensemble.

    Args:
        run: Folder of its run.
        prepare: How its images are prepared.
        mirrored: Spatial axes along which its windows are mirrored, too.
    """

    run: Path
    network: TrainedNetwork
    prepare: Preparation
    mirrored: tuple[int, ...] = ()

    def forward(self, window: tuple[int, ...]) -> tuple[int, Forward]:
        """Return the number of logits of a voxel, and the function that computes them."""
        num_logits, forward = self.network.forward(window)
        return num_logits, with_mirrors(forward, self.mirrored)


def load_members(
    runs: Sequence[Path],
    *,
    weights: str | None = None,
    pixel_size: Sequence[float] | None = None,
    mirror: bool = False,
) -> tuple[Member, ...]:
    """Return the networks of finished runs, which predict together.

    Raises ValueError for runs that do not fit together, and for mirrors where no run was trained
    with them.
    """
    if len({run.resolve() for run in runs}) != len(runs):
        raise ValueError("A run is named twice. Name each run of an ensemble once.")
    members = []
    for run in runs:
        network = load_network(RunFolder(run), weights)
        members.append(
            Member(
                run=run,
                network=network,
                prepare=preparation(network.preparation, pixel_size),
                mirrored=_flipped_axes(network) if mirror else (),
            )
        )
        _check_fit(members[0], members[-1])
    if mirror and not any(member.mirrored for member in members):
        raise ValueError(
            f"{runs[0]} was trained without flips, so mirrored images are strange to its network. "
            "Leave out --mirror, or train with augmentation.flips."
        )
    return tuple(members)


def joint_facts(members: Sequence[Member]) -> WindowFacts:
    """Return what all networks together say about their windows."""
    every = [member.network.facts() for member in members]
    reaches = [facts.reach for facts in every if facts.reach is not None]
    unknown = next((facts.reach_unknown for facts in every if facts.reach is None), "")
    return WindowFacts(
        reach=tuple(map(max, zip(*reaches, strict=True))) if not unknown else None,
        reach_unknown=unknown,
        alignment=tuple(
            math.lcm(*steps) for steps in zip(*(facts.alignment for facts in every), strict=True)
        ),
        statistics_layers=tuple(name for facts in every for name in facts.statistics_layers),
    )


def joint_patch(members: Sequence[Member]) -> tuple[int, ...]:
    """Return the window that suits all networks.

    Raises ValueError where they were trained with different patches.
    """
    patches = {member.network.patch: member.run for member in members}
    if len(patches) > 1:
        shown = ", ".join(f"{'x'.join(map(str, patch))} ({run})" for patch, run in patches.items())
        raise ValueError(
            f"The runs were trained with different patches: {shown}. Give --window, which all "
            "networks then take."
        )
    return members[0].network.patch


def with_mirrors(forward: Forward, axes: Sequence[int]) -> Forward:
    """Return the mean of the logits of windows and of all their mirrorings, mirrored back."""
    if not axes:
        return forward
    chosen = [each for count in range(len(axes) + 1) for each in combinations(axes, count)]

    def mean(images: np.ndarray) -> np.ndarray:
        total: Any = 0.0
        for each in chosen:
            of_batch = [axis + 1 for axis in each]
            total = total + np.flip(forward(np.flip(images, of_batch)), of_batch)
        return total / np.float32(len(chosen))

    return mean


def mean_probabilities(outputs: Outputs, logits: Sequence[np.ndarray]) -> np.ndarray:
    """Return the probability of each class or region: the mean over networks with these logits."""
    total = outputs.probabilities(logits[0])
    for others in logits[1:]:
        total = total + outputs.probabilities(others)
    return total / np.float32(len(logits))


def _flipped_axes(network: TrainedNetwork) -> tuple[int, ...]:
    """Return the axes along which the training images were mirrored."""
    flips = read_augmentation(network.config.augmentation).flips
    return chosen_axes(flips, len(network.patch))


def _check_fit(first: Member, other: Member) -> None:
    ours, theirs = first.network, other.network
    facts = (
        ("channels", ours.channels, theirs.channels),
        ("dimensions", len(ours.patch), len(theirs.patch)),
        ("classes, with background", ours.num_classes, theirs.num_classes),
        ("classes", ours.names, theirs.names),
        ("outputs", _outputs(ours), _outputs(theirs)),
        ("files of an image", first.prepare.num_files, other.prepare.num_files),
        (
            "pixel size (target_pixel_size)",
            _plain(first.prepare.target_pixel_size),
            _plain(other.prepare.target_pixel_size),
        ),
    )
    for what, own, another in facts:
        if own != another and not (what == "classes" and () in (own, another)):
            raise ValueError(
                f"{first.run} and {other.run} cannot predict together: their {what} are "
                f"{_show(own)} and {_show(another)}. Name runs on the same data."
            )


def _outputs(network: TrainedNetwork) -> str:
    return f"{network.outputs} {json.dumps(network.outputs.as_json())}".removesuffix(" {}")


def _plain(size: Any) -> Any:
    return tuple(size) if isinstance(size, list | tuple) else size


def _show(value: Any) -> str:
    if isinstance(value, tuple):
        return f"({', '.join(map(str, value))})"
    return "none" if value is None else str(value)
