"""The network that a run trained, for windows of any size that it accepts."""

import warnings
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfunet.config.run import RunConfig
from tfunet.data.class_lines import BACKGROUND
from tfunet.geometry.receptive_field import UnknownReachError, alignment, reach, statistics_layers
from tfunet.graph.traced import traced
from tfunet.learning.outputs import ClassOutputs, Outputs, RegionOutputs
from tfunet.models import trained_options
from tfunet.models.make import make_model
from tfunet.prediction.channel_files import check_order, image_patterns
from tfunet.prediction.finished_run import damaged, read_finished_run
from tfunet.record import RunFolder

# What reading an archive of weights raises whose bytes are not those that were written.
DAMAGED_FILE = (OSError, EOFError, zipfile.BadZipFile, zlib.error)
# Takes windows (batch, *window, channels) and returns logits (batch, *window, num_logits).
Forward = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True, kw_only=True)
class TrainedNetwork:
    """A trained network.

    Args:
        config: Configuration of the run.
        path: File of its weights.
        channels: Channels of its images.
        num_classes: Labels that it knows, with background.
        outputs: What its logits stand for.
        patch: Spatial shape that it was trained with.
        preparation: How its images were prepared; None if code of the data set did it.
        names: Names of the labels from 1; empty in the record of an earlier version.
        mask_values: The values of each label in the masks of the training, background first; empty
            where they are not known.
        pixel_sizes: The least and the largest of its training images along each axis; empty where
            they are not known.
        pixel_unit: Unit of `pixel_sizes`.
        value_ends: The least and the largest intensity of its training images as it saw them;
            empty where they are not known.
    """

    config: RunConfig
    path: Path
    channels: int
    num_classes: int
    outputs: Outputs
    patch: tuple[int, ...]
    preparation: Mapping[str, Any] | None
    names: tuple[str, ...] = ()
    mask_values: tuple[tuple[int | str, ...], ...] = ()
    pixel_sizes: tuple[tuple[float, ...], ...] = ()
    pixel_unit: str = ""
    value_ends: tuple[float, ...] = ()

    def label_names(self) -> dict[int, str]:
        """Return a name for each label; its number where the run did not record one."""
        known = self.names or tuple(map(str, range(1, self.num_classes)))
        return dict(enumerate(known, start=1))

    def classes(self) -> dict[str, dict[str, Any]]:
        """Return each label's name, and its values in the masks of the training where known."""
        names = [BACKGROUND, *(name.split(" ", 1)[-1] for name in self.label_names().values())]
        classes: dict[str, dict[str, Any]] = {
            str(label): {"name": name} for label, name in enumerate(names)
        }
        for entry, values in zip(classes.values(), self.mask_values, strict=False):
            entry["mask_values"] = list(values)
        return classes

    @cached_property
    def _image_patterns(self) -> tuple[str, ...]:
        return image_patterns(self.config, (self.preparation or {}).get("num_files", 1))

    def check_files(self, files: Sequence[Path]) -> None:
        """Raise ValueError for files of an image that by their names belong in another order.

        Where the data of a run are made in code, an image is one file.
        """
        if self.preparation is None and len(files) > 1:
            raise ValueError(
                f"{files[0]}: the data of this run are made in code ({self.config.data!r}), so an "
                f"image is one file with all its channels, got {len(files)} files. If this code "
                "reads several files, say so in the preparation of its DataSource, and train again."
            )
        check_order(files, self._image_patterns)

    def channels_as_json(self) -> dict[str, list[str]]:
        """Return the pattern of each file of an image, where it has several."""
        return {"channels": list(self._image_patterns)} if self._image_patterns else {}

    def facts(self) -> "WindowFacts":
        """Return what its graph says about its windows; ValueError if the model has no graph."""
        model = self._build(self.patch)
        if not getattr(model, "operations", None):
            raise ValueError(
                f"The model {self.config.model!r} is no functional Keras model, so it is not known "
                "how it pools. Use --tiles gaussian."
            )
        try:
            reached, unknown = reach(model), ""
        except UnknownReachError as reason:
            reached, unknown = None, str(reason)
        return WindowFacts(
            reach=reached,
            reach_unknown=unknown,
            alignment=alignment(model),
            statistics_layers=tuple(statistics_layers(model)),
        )

    def forward(self, window: tuple[int, ...]) -> tuple[int, Forward]:
        """Return the number of logits of a voxel, and the function that computes them."""
        model = self.model(window, self.config.precision)
        shape = (None, *window, self.channels)
        logits = traced(
            lambda images: model(images, training=False),
            input_signature=[tf.TensorSpec(shape, tf.float32)],
        )
        (*_, num_logits) = logits.get_concrete_function().structured_outputs.shape
        # Not a copy, as .numpy() would be: new pages take as long as a window's sums.
        return num_logits, lambda images: np.asarray(logits(images))

    def model(self, window: tuple[int, ...], precision: str) -> keras.Model:
        """Return the model for windows of one size, with its trained weights."""
        keras.config.set_dtype_policy(precision)
        model = self._build(window)
        with warnings.catch_warnings():  # The weights of optimizers are not needed.
            warnings.filterwarnings("ignore", "Skipping variable loading for optimizer")
            try:
                model.load_weights(self.path)
            except DAMAGED_FILE as error:
                raise damaged(self.path) from error
        return model

    def _build(self, window: tuple[int, ...]) -> keras.Model:
        model = make_model(
            self.config.model,
            image_shape=(*window, self.channels),
            num_classes=self.outputs.num_probabilities,
            options=trained_options(self.config.model, self.config.model_options),
        )
        if not self.config.model.endswith(".keras"):
            return model
        fixed = tuple(model.input.shape[1:-1])
        if any(size not in (None, wanted) for size, wanted in zip(fixed, window, strict=True)):
            raise ValueError(
                f"The saved model {self.config.model!r} takes only windows of {fixed}, not "
                f"{window}. Give --window {','.join(map(str, fixed))}."
            )
        return model


@dataclass(frozen=True, kw_only=True)
class WindowFacts:
    """What the graph of a network says about its windows.

    Args:
        reach: How many voxels it looks to either side, along each axis; None if that is not known.
        reach_unknown: Why that is not known.
        alignment: Voxels by which a window may move and still be pooled alike.
        statistics_layers: Names of the layers whose result depends on all of the window.
    """

    reach: tuple[int, ...] | None
    reach_unknown: str
    alignment: tuple[int, ...]
    statistics_layers: tuple[str, ...]


def load_network(folder: RunFolder, weights: str | None = None) -> TrainedNetwork:
    """Return the network of a finished run; ValueError says what is missing.

    `weights` names a file in its folder to use instead of the last epoch's.
    """
    run = read_finished_run(folder, weights)
    data = run.data
    return TrainedNetwork(
        config=run.config,
        path=run.weights,
        channels=data["channels"],
        num_classes=data["num_classes"],
        outputs=_outputs(run.config, data),
        patch=tuple(data["patch"]),
        preparation=data["preparation"],
        names=tuple(data.get("label_names") or ()),
        mask_values=tuple(map(tuple, data.get("mask_values", _values_in(run.config)))),
        pixel_sizes=tuple(map(tuple, data.get("pixel_sizes") or ())),
        pixel_unit=data.get("pixel_unit") or "",
        value_ends=tuple(data.get("value_ends") or ()),
    )


def _outputs(config: RunConfig, data: Mapping[str, Any]) -> Outputs:
    """Return what the logits of a run's network stand for."""
    if not config.has_regions:
        return ClassOutputs(num_classes=data["num_classes"])
    regions = {name: tuple(labels) for name, labels in data["regions"].items()}
    return RegionOutputs(regions=regions)


def _values_in(config: RunConfig) -> list[list[int | str]]:
    """Return `mask_values` of a run of an earlier version, which did not record them."""
    classes = config.data_options.get("classes")
    if not isinstance(classes, Mapping):
        return []
    named = {BACKGROUND: 0, **classes}
    return [
        list(values) if isinstance(values, list | tuple) else [values]
        for values in (named.pop(BACKGROUND), *named.values())
    ]
