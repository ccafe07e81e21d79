"""Writes a first configuration for the data in a folder, each line with its reason.

Imports no TensorFlow.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, final

import numpy as np

from tfunet.config.sections import SplitKeys
from tfunet.data.defects import DefectsError
from tfunet.data.discovery.annotated_folders import find_annotated, other_annotations
from tfunet.data.discovery.case_folders import masks_reason
from tfunet.data.discovery.first_measured import add_measured
from tfunet.data.discovery.first_training import Machine, add_training
from tfunet.data.discovery.found_pairs import Pairs, derived
from tfunet.data.discovery.mask_contents import label_options
from tfunet.data.discovery.names import SIDES
from tfunet.data.discovery.object_files import object_options
from tfunet.data.discovery.pairs import find_pairs, list_files, masks_by_words
from tfunet.data.discovery.split_folders import sides_of
from tfunet.data.doubts import SAME_SPACING, sizes_in_words
from tfunet.data.formats.container import split_container
from tfunet.data.layouts.case_files import match_files
from tfunet.data.layouts.case_table import read_table
from tfunet.data.layouts.dataset_json import channel_names
from tfunet.data.layouts.file_patterns import compiled, find
from tfunet.data.source import DataSource, open_source
from tfunet.files.home import expand_home
from tfunet.files.printable import check_utf8
from tfunet.files.typed import read_json
from tfunet.process.terminal import counted

# Keys under which a JSON file beside an image states its pixel size, and the order of its numbers.
SIDECARS = {"PixelSize": "", "spacing": "array"}
GROUP_COLUMNS = (
    "group",
    "patient",
    "subject",
    "animal",
    "donor",
    "slide",
    "patient_id",
    "subject_id",
)
DESCRIBED = ("msd", "nnunet")
WIDTH = 98


@final
@dataclass(kw_only=True)
class RunFile:
    """The lines of a configuration.

    Args:
        source: The data set that it describes.
        keys: Keys of the run to (value, reason).
        augmentation: Changes of samples to (value, reason), if they are not among the keys.
        model_options: Options of the model to (value, reason).
        options: Options of the data set to (value, reason).
        unused: A sentence on files that it does not use; empty if it uses all.
    """

    source: DataSource
    keys: dict[str, tuple[Any, str]] = field(default_factory=dict)
    augmentation: dict[str, tuple[Any, str]] = field(default_factory=dict)
    model_options: dict[str, tuple[Any, str]] = field(default_factory=dict)
    options: dict[str, tuple[Any, str]] = field(default_factory=dict)
    unused: str = ""

    def text(self, head: Sequence[str]) -> str:
        """Return the file; `head` is its first comment."""
        lines = [f"# {line}" for line in head]
        for heading, table in {
            "": self.keys,
            "augmentation": self.augmentation,
            "model_options": self.model_options,
            "data_options": self.options,
        }.items():
            if heading and table:
                lines += ["", f"[{heading}]"]
            for key, (value, reason) in table.items():
                lines += [*([] if heading else [""]), *_comment(reason)]
                lines.append(f"{_key(key)} = {_toml(value)}")
        return "\n".join(lines) + "\n"

    def channel_names(self) -> tuple[str, ...]:
        """Return what a dataset.json calls the channels, such as "CT"."""
        if self.keys["data"][0] not in DESCRIBED:
            return ()
        return channel_names(expand_home(str(self.options["root"][0])))

    def summary(self) -> str:
        """Return what was found, in a few lines."""
        source = self.source
        classes = ", ".join(source.regions)
        cases = f"{len(source.case_ids)} case{'s' if len(source.case_ids) > 1 else ''}"
        lines = [
            f"{source.name}: {cases} in {len(source.patch)}D with {source.channels} "
            f"channel{'s' if source.channels > 1 else ''}; classes: {classes}"
        ]
        if self.unused:
            lines.append(self.unused)
        if source.defects:
            number = len(source.defects)
            lines.append(
                f"{number} defect{'s' if number > 1 else ''}, such as "
                f"{str(source.defects[0]).rstrip('.')}. "
                "`tfunet data check` lists all."
            )
        return "\n".join(lines)


def describe_folder(
    root: str,
    *,
    images: Sequence[str] = (),
    masks: Sequence[str] = (),
    labels: str | None = None,
    progress: Callable[[Iterable[str]], Iterable[str]] = iter,
    machine: Machine | None = None,
) -> RunFile:
    """Return a configuration for a first look at the data of a folder.

    `machine` is what it is to be trained on. The other arguments are those of `describe_data`.
    """
    run, share = describe_data(root, images=images, masks=masks, labels=labels, progress=progress)
    add_training(run.keys, run.model_options, run.source, share, machine or Machine.here())
    held_out = run.keys.get("validation_groups", ([], ""))[0]
    add_measured(
        run.keys,
        run.options,
        run.model_options,
        run.source,
        SplitKeys(validation_groups=tuple(held_out)),
        run.keys["global_batch"][0],
        channel_names=run.channel_names(),
    )
    return run


def describe_data(
    root: str,
    *,
    images: Sequence[str] = (),
    masks: Sequence[str] = (),
    labels: str | None = None,
    progress: Callable[[Iterable[str]], Iterable[str]] = iter,
) -> tuple[RunFile, float | None]:
    """Return what describes the data of a folder, and the share of foreground, where known.

    Args:
        root: The folder, as the configuration names it.
        images: Patterns of the images, if the names of the files do not say them.
        masks: Patterns of the masks.
        labels: "classes" or "objects": what the numbers in the masks are.
        progress: Wraps the files that are read, as tqdm does.

    Raises ValueError, with what to say, for what the folder does not say.
    """
    folder = check_folder(root)
    kind = None if images or masks else _described_by(folder)
    if kind is not None:
        source = _opened(kind, {"root": root})
        run = RunFile(source=source)
        run.keys["data"] = (kind, "dataset.json names the cases and the classes.")
        run.options["root"] = (root, "Relative to the folder in which tfunet is started.")
        share = None
    elif annotated := None if images or masks else _of_annotations(root, folder):
        run, share = annotated, None
    else:
        try:
            run, share = _of_pairs(root, folder, images, masks, labels, progress)
        except ValueError as error:
            if others := other_annotations(folder):
                raise ValueError(others) from error
            raise
    _add_pixel_size(run, folder)
    return run, share


def check_folder(root: str) -> Path:
    """Return the folder of the data; raise ValueError if it is none."""
    folder = expand_home(root)
    if not folder.is_dir():
        what = "is a file" if folder.exists() else "does not exist"
        raise ValueError(f"{root!r} {what}. Give the folder with your images and masks.")
    return folder


def _described_by(folder: Path) -> str | None:
    """Return the layout that a dataset.json describes; None without one."""
    description = read_json(folder / "dataset.json", dict[str, Any])
    if description is None or "labels" not in description:
        return None
    pairs = description.get("training")
    if isinstance(pairs, list) and pairs and isinstance(pairs[0], dict):
        # Version 1 of nnU-Net lists its cases, too, but its images have the channel in their names.
        listed = pairs[0].get("image")
        if isinstance(listed, str) and (folder / listed).exists():
            return "msd"
    return "nnunet"


def _of_annotations(root: str, folder: Path) -> RunFile | None:
    """Return what outlines say, where no name says that a file is a mask; None without."""
    files = list_files(folder)
    found = None if not files or masks_by_words(files) else find_annotated(folder, files)
    if found is None:
        return None
    options = {"root": root, **{name: value for name, (value, _) in found.options.items()}}
    check_utf8(str(options))
    source = _opened("annotations", options)
    run = RunFile(source=source, unused=found.unused)
    run.keys["data"] = ("annotations", "Masks are drawn from outlines.")
    if found.held_out:
        run.keys["validation_groups"] = (list(found.held_out), "The folder says it.")
    run.options = {
        "root": (root, "Relative to the folder in which tfunet is started."),
        **found.options,
        "classes": (
            {name: name for name in source.regions},
            "The name of each class, and its name, or names, in the annotations.",
        ),
    }
    return run


def _opened(data: str, options: Mapping[str, Any]) -> DataSource:
    try:
        return open_source(data, options, skip_bad=True)
    except DefectsError as error:
        raise ValueError(f"No case can be used. {error}") from error


def _of_pairs(
    root: str,
    folder: Path,
    images: Sequence[str],
    masks: Sequence[str],
    labels: str | None,
    progress: Callable[[Iterable[str]], Iterable[str]],
) -> tuple[RunFile, float]:
    files_there = list_files(folder)
    pairs = find_pairs(files_there, images, masks, root=folder)
    for name in (str(root), *pairs.images, *pairs.masks.values()):
        check_utf8(name)
    sides = sides_of(pairs, files_there)
    made = derived(sides.pairs, files_there)
    unused = _unused(files_there, pairs, made)
    pairs, held_out = sides.pairs, list(sides.held_out)
    patterns = list(pairs.masks.values())
    cases, _, found = match_files(
        folder, pairs.images, patterns, [*sides.exclude, *made], objects=pairs.objects
    )
    if not cases:
        raise ValueError(f"{found}, and no image has its mask. Say --images and --masks.")
    files = [
        {name: case.masks_of(label) for label, name in enumerate(pairs.masks, 1)} for case in cases
    ]
    if pairs.objects:
        contents = object_options(folder, pairs.masks, files, progress)
    else:
        single = {name: [own for case in files for own in case[name]] for name in pairs.masks}
        contents = label_options(folder, pairs.masks, single, labels, progress)
    options: dict[str, Any] = {
        "root": root,
        "images": pairs.images[0] if len(pairs.images) == 1 else list(pairs.images),
        **contents.options,
    }
    reasons = {
        "root": "Relative to the folder in which tfunet is started.",
        "images": " ".join(
            filter(None, (_pairs_reason(pairs, found, len(cases)) + sides.remark, unused))
        ),
        **contents.reasons,
    }
    if reason := masks_reason(pairs):
        reasons["masks"] = f"{contents.reasons.get('masks', '')} {reason}".strip()
    used = contents.options["masks"]
    left_out = [mask for name, mask in pairs.masks.items() if name and name not in used]
    if not any(
        compiled(pairs.images[0]).fullmatch(file)
        for mask in left_out
        for file in find(folder, mask)
    ):
        left_out = []
    left_out += made
    exclude = [*sides.exclude, *left_out]
    if left_out:
        reasons["exclude"] = (
            f"{', '.join(left_out)} match the pattern of the images, and are none: keep them here."
        )
    if exclude:
        options["exclude"] = exclude
    if sides.how_to_score:
        key = "exclude" if sides.exclude else "images"
        reasons[key] = "\n".join(filter(None, (reasons.get(key), sides.how_to_score)))
    table = _table(folder, [case.case_id for case in cases])
    if table is not None and not held_out:
        options["table"], held_out, reasons["table"] = table
    source = _opened("folder", options)
    if _mixes_colours(source):
        options["grey"] = True
        reasons["grey"] = "Some images are in colour and others grey: all become grey."
        source = _opened("folder", options)
    run = RunFile(source=source, unused=" ".join(filter(None, (sides.unused, unused))))
    run.keys["data"] = ("folder", "Images and masks are found by the patterns below.")
    if held_out:
        reason = "The folder itself, or its table, says what is for validation."
        run.keys["validation_groups"] = (held_out, reason)
    run.options = {key: (value, reasons.get(key, "")) for key, value in options.items()}
    return run, contents.foreground_share


def _unused(files: Sequence[str], pairs: Pairs, made: Sequence[str]) -> str:
    """Return a sentence on files that no pattern matches, or one of those `made` of images."""
    known, left_out = (
        [compiled(split_container(pattern)[0].as_posix()) for pattern in patterns]
        for patterns in ((*pairs.images, *pairs.masks.values()), made)
    )
    others = [
        file
        for file in files
        if not any(pattern.fullmatch(file) for pattern in known)
        or any(pattern.fullmatch(file) for pattern in left_out)
    ]
    if not others:
        return ""
    return f"Not used: {counted(len(others), 'file')} of other names, such as {others[0]}."


def _pairs_reason(pairs: Pairs, found: str, num_cases: int) -> str:
    reason = f"Found {found}: {num_cases} complete cases."
    if len(pairs.images) > 1:
        reason += " The files of a case become its channels, in this order."
    return reason


def _table(folder: Path, case_ids: Sequence[str]) -> tuple[dict[str, Any], list[str], str] | None:
    """Return the table of the folder that says sides or groups of the cases, if there is one."""
    for path in sorted([*folder.glob("*.csv"), *folder.glob("*.tsv")]):
        try:
            columns, rows = read_table(path)
        except ValueError:
            continue
        known = {column: {row[column] for row in rows} for column in columns}
        keys = [
            column
            for column in columns
            if set(case_ids) <= known[column] and len(known[column]) == len(rows)
        ]
        if not keys:
            continue
        options: dict[str, Any] = {"file": path.name, "key": keys[0]}
        for column in columns:
            sides = {value: SIDES.get(value.lower()) for value in known[column] if value}
            if {"train", "val"} <= set(sides.values()) and None not in sides.values():
                used = sorted(value for value, side in sides.items() if side in ("train", "val"))
                options |= {"group": column, "keep": {column: used}}
                held_out = [value for value in used if sides[value] == "val"]
                reason = f"Its column {column} has the split. Cases for tests are left out."
                return options, held_out, reason
        for column in columns:
            if column.lower() in GROUP_COLUMNS and len(known[column]) < len(rows):
                reason = f"Its column {column} says what a split must not divide."
                return {**options, "group": column}, [], reason
    return None


def _mixes_colours(source: DataSource) -> bool:
    return source.channels in (1, 3) and any("channel" in defect.what for defect in source.defects)


def _add_pixel_size(run: RunFile, folder: Path) -> None:
    """Add the size to resample to, if the pixels of cases differ in size."""
    data = run.keys["data"][0]
    known = [spacing for spacing in run.source.spacings if spacing is not None]
    if len(known) == len(run.source.case_ids):
        _add_target(run, data, known, {})
        return
    for pattern, key, order in _sidecars(run, folder):
        given: dict[str, Any] = {"file": pattern, "key": key, **({"order": order} if order else {})}
        try:
            sizes = _stated_sizes(folder, pattern, key, order, rank=len(run.source.patch))
        except ValueError:
            continue
        options = {name: value for name, (value, _) in run.options.items()}
        trial = {**options, "pixel_size": given, "target_pixel_size": 1.0}
        if sizes and _opened(data, trial).case_ids == run.source.case_ids:
            _add_target(run, data, sizes, {"pixel_size": given})
            return


def _stated_sizes(
    folder: Path, pattern: str, key: str, order: str, *, rank: int
) -> list[tuple[float, ...]]:
    """Return the pixel sizes that JSON files state, along the axes of arrays."""
    sizes = []
    for file in find(folder, pattern):
        stated = (read_json(folder / file, dict[str, Any]) or {}).get(key)
        listed = stated if isinstance(stated, list) else [stated] * rank
        if len(listed) != rank or not all(isinstance(size, int | float) for size in listed):
            return []
        sizes.append(tuple(map(float, listed if order == "array" else reversed(listed))))
    return sizes


def _sidecars(run: RunFile, folder: Path) -> list[tuple[str, str, str]]:
    """Return (pattern, key, order) of the JSON files that lie beside the images."""
    if "images" not in run.options:
        return []
    images = run.options["images"][0]
    first = PurePosixPath(images if isinstance(images, str) else images[0])
    example = folder / run.source.files[0]
    found = []
    for path in sorted(example.parent.glob("*.json")):
        try:
            keys = read_json(path, dict[str, Any]) or {}
        except ValueError:
            continue
        # One for each image, or for all images of a group.
        own = first.name[: first.name.index(".")] + ".json"
        names = [own, own.replace("{case}", "*"), path.name, "*.json"]
        found += [
            (first.with_name(name).as_posix(), key, order)
            for name in names
            for key, order in SIDECARS.items()
            if key in keys
        ]
    return found


def _add_target(
    run: RunFile, data: str, sizes: Sequence[tuple[float, ...]], given: Mapping[str, Any]
) -> None:
    low, high = np.min(sizes, 0), np.max(sizes, 0)
    if not (high > SAME_SPACING * low).any():
        return
    target = [float(f"{size:.4g}") for size in np.median(sizes, 0)]
    value = target[0] if len(set(target)) == 1 else target
    span = f"from {sizes_in_words(low)} to {sizes_in_words(high)}"
    for name, option in given.items():
        run.options[name] = (option, "The files beside the images state their pixel sizes.")
    reason = f"Pixel sizes go {span}. All images are resampled to the median."
    run.options["target_pixel_size"] = (value, reason)
    options = {name: option for name, (option, _) in run.options.items()}
    run.source = _opened(data, options)


def _comment(reason: str) -> list[str]:
    lines = []
    for part in reason.splitlines():
        if " = " in part:  # A line to copy.
            lines.append(f"# {part}")
            continue
        line = "#"
        for word in part.split():
            if len(line) + len(word) >= WIDTH:
                lines.append(line)
                line = "#"
            line += f" {word}"
        lines.append(line)
    return lines


def _toml(value: Any) -> str:
    if isinstance(value, Mapping):
        entries = (f"{_key(key)} = {_toml(entry)}" for key, entry in value.items())
        return f"{{ {', '.join(entries)} }}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml, value))}]"
    return json.dumps(value, ensure_ascii=False)


def _key(name: str) -> str:
    is_bare = name.isascii() and name.replace("_", "").replace("-", "").isalnum()
    return name if is_bare else json.dumps(name, ensure_ascii=False)
