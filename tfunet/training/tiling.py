"""How whole samples are cut into tiles, and which networks and losses that suits."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, final

import keras

from tfunet.config.run import RunConfig
from tfunet.data.class_weights import class_weights
from tfunet.data.task import Task
from tfunet.geometry.grid import Grid, grid
from tfunet.geometry.kinds import is_own
from tfunet.geometry.parts import check_split
from tfunet.geometry.receptive_field import (
    UnknownReachError,
    alignment,
    reach,
    statistics_layers,
)
from tfunet.inside.of_keras import graph_of
from tfunet.learning.own_part import check_adds_up
from tfunet.models import MODELS
from tfunet.models.files import is_file
from tfunet.models.make import make_model
from tfunet.models.symbolic import build_symbolic
from tfunet.training.loss import make_loss

NOT_EXACT = (
    "uses statistics of whole samples or batches, which no tile has: gradients on tiles were 13 to "
    "25 % off where this was measured, at every halo. With split instead of tiling they are exact."
)


@final
@dataclass(frozen=True, kw_only=True)
class Tiles:
    """The tiles of a run.

    Args:
        grid: Cuts a sample.
        statistics: Names of the layers for which no halo is exact.
    """

    grid: Grid
    statistics: tuple[str, ...] = ()

    @property
    def window(self) -> tuple[int, ...]:
        """Spatial shape of the network's input."""
        return self.grid.largest_window

    def record(self) -> dict[str, Any]:
        """Return what result.json says of the tiles."""
        return {
            "tiles": list(self.grid.tiles),
            "window": list(self.window),
            "halo": list(self.grid.halo),
            "redundancy": self.grid.even_redundancy,
            "inexact_layers": list(self.statistics),
        }

    def summary(self) -> str:
        """Return in a line how samples are cut."""
        cut, image, window, halo = (
            " x ".join(map(str, sizes))
            for sizes in (self.grid.tiles, self.grid.image, self.window, self.grid.halo)
        )
        return (
            f"Tiles: {cut} of samples of {image}, in windows of {window} with a halo of {halo}; "
            f"{self.grid.even_redundancy:.2f} pixels are computed for each pixel of a sample."
        )

    def warning(self) -> str | None:
        """Return why gradients are not those of whole samples; None where they are."""
        if not self.statistics:
            return None
        more = f" and {len(self.statistics) - 1} more" if len(self.statistics) > 1 else ""
        return f"warning: {self.statistics[0]}{more} {NOT_EXACT}"


def look_at_network(task: Task) -> Tiles:
    """Return how the samples of a task are cut for its network, which is built without weights.

    Raises ValueError for a tiling or a loss that cannot be exact, and for networks whose halo is
    not known. It comes before the data are decoded, which can take long.
    """
    config, patch = task.config, task.patch
    whole = network_for(task, patch)
    halo, steps = halo_of(whole, config.model)
    cut = cut_of(config, patch, halo, steps)
    window = network_for(task, cut.largest_window)
    shapes = [[tuple(variable.shape) for variable in model.variables] for model in (whole, window)]
    if shapes[0] != shapes[1] or (reach(window), alignment(window)) != (halo, steps):
        raise ValueError(
            f"tiling = {list(config.tiling)} needs a network that is the same for images of every "
            f"size, and the model {config.model!r} has other variables or another halo for "
            f"{cut.largest_window} than for {tuple(patch)}. Use split."
        )
    check_loss(task, window)
    return Tiles(grid=cut, statistics=tuple(inexact_layers(window)))


def halo_of(model: keras.Model, name: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the halo of a network for whole samples, and the multiples in which it pools.

    Raises ValueError for a network that tiles do not suit, or whose halo is not known.
    """
    if is_file(name):
        raise ValueError(
            f"tiling needs a network of the size of a tile, and {name!r} is a saved model of one "
            "size. Name the function that builds it instead: 'file.py:build'."
        )
    if not getattr(model, "operations", None):
        raise ValueError(
            f"tiling needs a functional model, whose halo can be computed, and the model {name!r} "
            "is none. Use split."
        )
    for layer in model.operations:
        if getattr(layer, "activity_regularizer", None) is not None:
            raise ValueError(
                "tiling cannot add up what the activity regularizer of the layer "
                f"{layer.name!r} gives for whole samples. Leave it out, or use split."
            )
    try:
        return reach(model), alignment(model)
    except UnknownReachError as error:
        raise ValueError(
            f"tiling needs the halo of the model {name!r}, which is not known: {error}. Use split."
        ) from error


def cut_of(
    config: RunConfig, patch: Sequence[int], halo: Sequence[int], steps: Sequence[int]
) -> Grid:
    """Return the tiles of a configuration; ValueError where samples cannot be cut so."""
    check_multiple(config.tiling, patch, steps)
    cut = grid(patch, config.tiling, halo, steps)
    check_not_finer(cut)
    check_split(config.split, cut.largest_window, what="a tile's window")
    return cut


def check_loss(task: Task, model: keras.Model) -> None:
    """Raise ValueError for a loss that is not the mean over pixels."""
    check_adds_up(
        make_loss(task, class_weights(task.config, task.source)),
        rank=len(task.patch),
        num_classes=task.source.num_classes,
        num_logits=model.output.shape[-1],
    )


def network_for(task: Task, spatial: Sequence[int]) -> keras.Model:
    """Return the network of a task for images of this size, to look at."""
    config = task.config
    build = partial(
        make_model,
        config.model,
        image_shape=(*spatial, task.source.channels),
        num_classes=task.num_outputs,
        is_free=task.source.samples is not None,
        options=config.model_options,
    )
    # A builder of the user's own may call its model, or load weights.
    is_own = config.model not in MODELS
    model = build_symbolic(build, precision=config.precision, has_values=is_own)
    return graph_of(model)


def inexact_layers(model: keras.Model) -> list[str]:
    """Return the names of the layers for which no halo gives the gradients of whole samples."""
    return [
        *statistics_layers(model),
        *(
            layer.name
            for layer in model.operations
            if isinstance(layer, keras.layers.BatchNormalization)
        ),
    ]


def check_multiple(tiling: Sequence[int], patch: Sequence[int], steps: Sequence[int]) -> None:
    """Raise ValueError for samples that the network does not pool evenly, or too many tiles."""
    fitting = [-(-size // step) * step for size, step in zip(patch, steps, strict=True)]
    if list(patch) != fitting:
        raise ValueError(
            f"tiling = {list(tiling)} needs samples whose sizes are multiples of {list(steps)}, by "
            f"which the network pools, and they have {list(patch)}. Set patch = {fitting}."
        )
    most = [size // step for size, step in zip(patch, steps, strict=True)]
    if any(count > bound for count, bound in zip(tiling, most, strict=True)):
        raise ValueError(
            f"tiling = {list(tiling)} makes too many tiles: their borders are multiples of "
            f"{list(steps)} pixels, by which the network pools. Samples of {list(patch)} have at "
            f"most {most} tiles."
        )


def check_not_finer(cut: Grid) -> None:
    """Raise ValueError for tiles that are narrower than their halo."""
    if not cut.is_finer_than_halo:
        return
    # Along an axis, a tile is at least as wide as the halo.
    most = [
        max(1, size // margin if margin else size)
        for size, margin in zip(cut.image, cut.halo, strict=True)
    ]
    raise ValueError(
        f"tiling = {list(cut.tiles)} cuts samples of {list(cut.image)} finer than the network's "
        f"halo of {list(cut.halo)} pixels: every tile would read beyond its neighbours. Choose at "
        f"most about {most}, larger samples, or a network with a smaller receptive field."
    )


def check_model(model: keras.Model) -> None:
    """Raise ValueError for a model with methods of its own that would see tiles."""
    for name in ("call", "train_step", "compute_loss", "compute_metrics"):
        if is_own(model, name):
            raise ValueError(
                f"The model has a {name} of its own, which would see a tile where it expects a "
                "whole sample. Leave out tiling, or use Keras's."
            )


def check_metrics(metrics: Sequence[keras.metrics.Metric]) -> None:
    """Raise ValueError for metrics of training batches that need not add up over tiles."""
    for metric in metrics:
        if not type(metric).__module__.startswith("keras."):
            raise ValueError(
                f"The metric {metric.name!r} is not Keras's, so that it is not known whether it "
                "adds up over tiles. Leave it out with tiling: validation cases are scored whole."
            )
