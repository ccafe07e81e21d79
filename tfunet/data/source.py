"""The interface of a data set: cases by index. Imports no TensorFlow."""

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from tfunet.config.own_code import OURS, explain
from tfunet.config.refs import call, resolve
from tfunet.data import DATASETS
from tfunet.data.arrays import SIDES, ArraySamples, read_samples
from tfunet.data.class_lines import BACKGROUND, inline_table
from tfunet.data.defects import Defect, DefectsError
from tfunet.data.description_file import described
from tfunet.data.encoded import EncodedCases
from tfunet.data.formats.units import METRES
from tfunet.data.preparation_options import check_preparation
from tfunet.data.preprocess import Intensity, Statistics
from tfunet.files.remote import named
from tfunet.files.typed import typed
from tfunet.record import as_recorded


@dataclass(frozen=True, kw_only=True)
class RawCase:
    """A case as its files hold it, before preprocessing.

    Args:
        image: float32 (*spatial, channels), in the files' own intensities.
        mask: Labels, uint8 (*spatial), and `DataSource.ignored`.
        file: The file to name in messages.
        image_dtype: Type of the stored pixels.
        mask_dtype: Type of the stored labels.
        spacing: Pixel size along the spatial axes, where known.
        target: Pixel size to resample to, if any.
        notes: What may be a mistake in its files.
        image_files: The image's files, relative to the data set's `root`; empty for a generated
            image.
    """

    image: np.ndarray
    mask: np.ndarray
    file: str
    image_dtype: str
    mask_dtype: str
    spacing: tuple[float, ...] | None = None
    target: tuple[float, ...] | None = None
    image_files: tuple[str, ...] = ()
    notes: tuple[Defect, ...] = ()


@dataclass(frozen=True, kw_only=True)
class StoredCase:
    """A case to be stored, in parts where the whole takes much memory.

    Args:
        shape: Spatial shape of the case.
        parts: (image, mask) cut along the first axis, in order: float32 (rows, ..., channels), not
            yet normalised, and uint8 (rows, ...).
        statistics: Those of the whole image, for `tfunet.data.preprocess.normalise`; None where it
            needs none.
        dtype: Type of whole numbers that holds the image of a case in parts exactly, where its
            files say one.
    """

    shape: tuple[int, ...]
    parts: Iterable[tuple[np.ndarray, np.ndarray]]
    statistics: Statistics | None = None
    dtype: str = ""


# (start, stop) to that box of a case: image (*box, channels) and mask (*box), as `read` gives them.
BoxReader = Callable[[Sequence[int], Sequence[int]], tuple[np.ndarray, np.ndarray]]


@dataclass(frozen=True, kw_only=True)
class DataSource:
    """Cases (images or volumes with their masks) that can be read in any order.

    Args:
        name: For messages and records.
        case_ids: A unique name for each case.
        groups: The group of each case (animal, patient). A split never divides a group.
        num_classes: Labels are 0..num_classes-1; 0 is background. 1 if there are targets.
        channels: Channels of every image.
        regions: Region name to its labels. Each region is scored; regions may overlap.
        class_names: The names of the labels from 1, where they have names of their own beside
            those of regions.
        targets: Names of numbers that are predicted for a whole case, and the value of each case.
            Such a data set has no regions, and its masks are all zero.
        samples: The samples of a data set of arrays, whose cases they are. It has no regions.
        patch: Spatial shape of training samples if the configuration gives none.
        fingerprint: Changes when a file or a setting that changes the pixels changes.
        read: Case index to (image, mask): float32 (*spatial, channels), preprocessed, and
            uint8 (*spatial). Raises ValueError that names the file for one that cannot be used.
            Called in any order, from several threads at once.
        stored: Case index to what a store keeps of it; by default the result of `read`.
        intensity: How the images of `stored` are normalised: `read` gives the result.
        boxes: Case index, and its statistics where they are known, to what reads boxes of it
            without the rest; None for a case whose files are read as a whole.
        own_store: Makes its own `tfunet.data.case_store.CaseStore`, where all is known of its
            cases without reading them.
        raw: Case index to the case before preprocessing, for `tfunet data check`; raises as
            `read`. By default the result of `read`.
        notes: Case index to what may be a mistake in its files, once `read` or `stored` has
            read them.
        files: The file of each case to name in messages; by default the case's name.
        spacings: Pixel size of each case as training sees it, where known.
        unit: Unit of `spacings`, "nm", "µm", "mm" or "m"; empty where the files do not say it.
        shapes: Spatial shape of each case as training sees it, where known.
        root: Folder to which files in messages are relative.
        defects: What was wrong at opening; these cases are not among `case_ids`.
        warnings: What may be a mistake, seen at opening.
        found: How many files there are, in words, for messages.
        preparation: How images were prepared (`tfunet.prediction.prepare`, docs/data.md); None if
            the data set's own code did it.
        swapped: What to do where the background is what one looks for; empty for several classes.
        ignored: Label, beyond the others, of pixels that count neither in the loss nor in scores.
        has_background: Whether pixels without a class are label 0. If not, each pixel has a class,
            and no mask holds 0.
        in_colour: Whether pictures show the first three channels as red, green and blue.
        mask_values: The values of each label in the masks' files, background first; colours are
            "#rrggbb". Empty where they are not known, or each class has a file of its own.
        restore: Case index to what gives pixels (..., channels) of `read` the intensities of the
            case's files again, for pictures in colour. By default pixels stay as they are.
        made_by: What `made_by` tells of it; empty if it was not opened by a configuration.
        encoded: Returns the cases as files that decoders in C read to the same pixels; raises
            ValueError, which says why, where they do not. None where cases are no files.
        objects: Case index, and spatial shape to resize to, to the number of the object in each
            pixel of the mask, int32, 0 where none is. None where masks do not tell objects apart.
    """

    name: str
    case_ids: tuple[str, ...]
    groups: tuple[str, ...]
    num_classes: int
    channels: int
    regions: Mapping[str, tuple[int, ...]]
    patch: tuple[int, ...]
    fingerprint: str
    read: Callable[[int], tuple[np.ndarray, np.ndarray]]
    stored: Callable[[int], StoredCase] | None = None
    intensity: Intensity = "none"
    boxes: Callable[[int, Statistics | None], BoxReader | None] = lambda index, statistics: None
    own_store: Callable[[], Any] | None = None
    targets: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    samples: ArraySamples | None = None
    raw: Callable[[int], RawCase] | None = None
    notes: Callable[[int], Sequence[Defect]] = lambda index: ()
    files: tuple[str, ...] = ()
    spacings: tuple[tuple[float, ...] | None, ...] = ()
    unit: str = ""
    shapes: tuple[tuple[int, ...], ...] = ()
    root: Path = Path()
    defects: tuple[Defect, ...] = ()
    warnings: tuple[Defect, ...] = ()
    found: str = ""
    preparation: Mapping[str, Any] | None = None
    swapped: str = ""
    ignored: int | None = None
    class_names: tuple[str, ...] = ()
    has_background: bool = True
    in_colour: bool = False
    mask_values: tuple[tuple[int | str, ...], ...] = ()
    restore: Callable[[int], Callable[[np.ndarray], np.ndarray]] = lambda index: np.asarray
    made_by: str = ""
    encoded: Callable[[], EncodedCases] | None = None
    objects: Callable[[int, Sequence[int]], np.ndarray | None] = lambda index, shape: None

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise ValueError(f"The name of a data set must be a text, got {self.name!r}.")
        for name in ("case_ids", "groups", "files", "class_names", "patch"):
            if isinstance(given := getattr(self, name), str):
                raise ValueError(
                    f"The data set {self.name!r} has {name}={given!r}: give a tuple, such as "
                    f"({given!r},), and not a text."
                )
        if not self.case_ids:
            raise ValueError(f"The data set {self.name!r} has no cases.")
        if len(set(self.case_ids)) != len(self.case_ids):
            twice = sorted({name for name in self.case_ids if self.case_ids.count(name) > 1})
            raise ValueError(f"The data set {self.name!r} names cases twice: {twice[:5]}.")
        for name in ("groups", "files", "spacings", "shapes"):
            given = len(getattr(self, name))
            if given != len(self.case_ids) and (given or name == "groups"):
                raise ValueError(
                    f"The data set {self.name!r} has {len(self.case_ids)} cases and {given} "
                    f"{name}: give one for each case{'' if name == 'groups' else ', or none'}."
                )
        if self.samples is not None:
            return
        if self.targets:
            self._check_targets()
        elif self.ignored is not None and self.ignored < self.num_classes:
            raise ValueError(
                f"The data set {self.name!r} has ignored={self.ignored}, which is one of its "
                f"{self.num_classes} labels. Give a higher one, such as 255."
            )
        elif self.num_classes < 2:
            raise ValueError(
                f"num_classes must be at least 2, the background included, got {self.num_classes}."
            )
        if self.class_names and len(self.class_names) != self.num_classes - 1:
            raise ValueError(
                f"The data set {self.name!r} has num_classes={self.num_classes}, the background "
                f"included, and {len(self.class_names)} class_names: give one for each other label."
            )
        if not self.regions and not self.targets:
            raise ValueError(
                f"The data set {self.name!r} has no regions, so nothing could be scored. Give "
                'some, such as regions={"cell": (1,)}.'
            )
        for region, labels in self.regions.items():
            if not labels or not all(1 <= label < self.num_classes for label in labels):
                raise ValueError(
                    f"Region {region!r} has labels {labels}; allowed: 1..{self.num_classes - 1}."
                )
        if self.preparation is not None:
            try:
                check_preparation(self.preparation, len(self.patch), self.channels)
            except ValueError as error:
                raise ValueError(
                    f"The preparation of the data set {self.name!r} cannot be used: {error}"
                ) from error
        self._check_optional()

    def read_case(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the image and the mask of a case.

        Raises ValueError for what a function of a user's own raises, or returns instead.
        """
        try:
            case: Any = self.read(index)
        except (ValueError, OSError, MemoryError):
            raise
        except (Exception, SystemExit) as error:
            if (getattr(self.read, "__module__", None) or "").partition(".")[0] in OURS:
                raise
            file = getattr(self.read, "__globals__", {}).get("__file__", "")
            explain(error, "its read raised", file)
            raise
        is_pair = isinstance(case, tuple | list) and len(case) == 2
        if not is_pair or not all(isinstance(part, np.ndarray) for part in case):
            got = [type(part).__name__ for part in case] if is_pair else type(case).__name__
            raise ValueError(
                f"read must return an image and a mask as two NumPy arrays, and returned {got}."
            )
        return case[0], case[1]

    def to_store(self, index: int) -> StoredCase:
        """Return what a store keeps of a case. Raises as `read_case`."""
        if self.stored is not None:
            return self.stored(index)
        image, mask = self.read_case(index)
        return StoredCase(shape=mask.shape, parts=[(image, mask)])

    def _check_targets(self) -> None:
        if self.regions or self.num_classes != 1:
            raise ValueError(
                f"The data set {self.name!r} has targets, so it has no regions and num_classes=1; "
                f"got regions {list(self.regions)} and num_classes={self.num_classes}."
            )
        for target, values in self.targets.items():
            if len(values) != len(self.case_ids) or not np.isfinite(values).all():
                raise ValueError(
                    f"The target {target!r} of the data set {self.name!r} must have a finite "
                    f"number for each of the {len(self.case_ids)} cases, got {len(values)} values."
                )

    def _check_optional(self) -> None:
        """Raise ValueError for what would be noticed only when it is used, long after."""
        for name in ("spacings", "shapes"):
            for sizes in getattr(self, name):
                if sizes is not None and len(sizes) != len(self.patch):
                    raise ValueError(
                        f"The data set {self.name!r} has {name} such as {sizes}, and "
                        f"patch={self.patch}: give a number for each axis."
                    )
        if self.unit and self.unit not in METRES:
            raise ValueError(
                f"The data set {self.name!r} has unit={self.unit!r}. Known: {', '.join(METRES)}."
            )
        try:
            num_labels = len(typed(as_recorded(self.mask_values), list[list[int | str]]))
        except ValueError:
            num_labels = -1
        if num_labels not in (0, self.num_classes):
            raise ValueError(
                f"The data set {self.name!r} has mask_values={self.mask_values!r}. Give the values "
                f"of each of the {self.num_classes} labels, the background first, such as "
                "((0,), (255,)), or none."
            )

    def paths(self) -> tuple[str, ...]:
        """Return the path of each case's file, the same however the data are described."""
        return tuple(named(self.root / file) for file in self.files)

    @property
    def label_around(self) -> int:
        """The label of what is around an image that is smaller than the patch."""
        return 0 if self.ignored is None else self.ignored

    @property
    def has_masks(self) -> bool:
        """Whether cases have masks; others have numbers to predict, or are samples of arrays."""
        return not self.targets and self.samples is None

    @property
    def instead_of_masks(self) -> str:
        """What cases have where they have no masks, in words."""
        if self.targets:
            return f"numbers to predict: {', '.join(self.targets)}"
        return "arrays instead"

    def check_images(self, reader: str) -> None:
        """Raise ValueError for arrays, where `reader` takes images of cases."""
        if self.samples is not None:
            raise ValueError(
                f"The data set {self.name!r} has arrays, and {reader} is for images of cases. A "
                "run checks arrays when it opens them."
            )

    @property
    def num_outputs(self) -> int:
        """Channels of a model's output: one for each class, or for each target."""
        return len(self.targets) or self.num_classes

    def chosen_patch(
        self, patch: tuple[int, ...] | None, *, is_tiled: bool = False
    ) -> tuple[int, ...]:
        """Return the patch of the configuration, or this data set's own.

        Where samples are tiled, the latter is as large as the largest image.
        """
        if patch is None:
            if is_tiled and self.shapes:
                return tuple(map(max, *self.shapes, self.shapes[0]))
            return self.patch
        if len(patch) != len(self.patch):
            raise ValueError(
                f"patch={patch} has {len(patch)} sizes; the images of {self.name} have "
                f"{len(self.patch)} dimensions. Give one size for each."
            )
        return patch

    def label_names(self) -> dict[int, str]:
        """Return a name for each label: its number and its class, or else its smallest region."""
        names = {}
        for label in range(1, self.num_classes):
            if self.class_names:
                names[label] = f"{label} {self.class_names[label - 1]}"
                continue
            regions = [name for name, labels in self.regions.items() if label in labels]
            smallest = min(regions, key=lambda name: len(self.regions[name]), default="")
            names[label] = f"{label} {smallest}".strip()
        return names


def open_source(data: str, options: Mapping[str, Any], *, skip_bad: bool = False) -> DataSource:
    """Open the data set that a configuration names.

    Raises ValueError for wrong options, and DefectsError for defects unless `skip_bad` is given.
    """
    data, options = described(data, options)
    function = resolve("data set", data, DATASETS, (DataSource, Iterable))
    if data in DATASETS:
        _check_background(data, function, options)
    source = call("data set", function, options, ref=data)
    if not isinstance(source, DataSource):
        source = _of_arrays(data, source)
    if source.defects and not skip_bad:
        raise DefectsError(source.name, source.defects, source.found)
    return replace(source, made_by=made_by(data, options))


def _of_arrays(data: str, given: Any) -> DataSource:
    """Return the data set of what a function gave instead of one; ValueError for what is none."""
    samples = read_samples(given, data)
    num_samples, num_train = len(samples.x), samples.num_train
    digits = len(str(num_samples - 1))
    ids = tuple(f"{number:0{digits}d}" for number in range(num_samples))
    sides = (SIDES[0],) * num_train + (SIDES[1],) * (num_samples - num_train)

    def read(index: int) -> tuple[np.ndarray, np.ndarray]:
        return samples.x[index], samples.y[index]

    return DataSource(
        name=data,
        case_ids=ids,
        groups=sides if num_train else ids,
        num_classes=samples.num_outputs,
        channels=samples.x.shape[-1],
        regions={},
        patch=samples.x.shape[1:-1],
        fingerprint=samples.content,
        read=read,
        samples=samples,
    )


def made_by(data: str, options: Mapping[str, Any]) -> str:
    """Return a text that two data sets share if cases with one name are the same case in both.

    The code that makes cases names them, whatever its options, and wherever its file is.
    """
    root = options.get("root", options.get("file"))
    place = named(root) if isinstance(root, str) else None
    return f"{Path(data).name} {place}"


def _check_background(data: str, function: Callable[..., Any], options: Mapping[str, Any]) -> None:
    """Raise ValueError for a background that stands beside the classes, not inside."""
    classes = options.get("classes", {"NAME": 255})
    takes = inspect.signature(function).parameters
    if BACKGROUND in options and "classes" in takes and isinstance(classes, Mapping):
        line = inline_table({**classes, BACKGROUND: options[BACKGROUND]})
        raise ValueError(
            f"The data set {data!r} has no option {BACKGROUND!r}. It belongs inside classes: "
            f"classes = {line}."
        )
