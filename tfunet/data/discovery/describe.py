"""Describes the data in a folder for a first configuration. Imports no TensorFlow."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from tfunet.config.data_keys import SplitKeys
from tfunet.data.discovery.annotated_folders import find_annotated, other_annotations
from tfunet.data.discovery.case_folders import masks_reason
from tfunet.data.discovery.first_measured import add_measured
from tfunet.data.discovery.first_training import Machine, add_training
from tfunet.data.discovery.found_pairs import Pairs, derived
from tfunet.data.discovery.mask_contents import LabelOptions, label_options
from tfunet.data.discovery.object_files import object_options
from tfunet.data.discovery.pairs import find_pairs, list_files, masks_by_words
from tfunet.data.discovery.resampling import add_pixel_size
from tfunet.data.discovery.run_file import RunFile, opened
from tfunet.data.discovery.split_folders import sides_of
from tfunet.data.discovery.split_table import find_table
from tfunet.data.formats.container import split_container
from tfunet.data.layouts.case_files import CaseFiles, match_files
from tfunet.data.layouts.file_patterns import compiled, find
from tfunet.data.source import DataSource
from tfunet.files.printable import check_utf8
from tfunet.files.remote import fetched_ahead, local
from tfunet.files.typed import read_json
from tfunet.process.terminal import counted


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
        source = opened(kind, {"root": root})
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
    add_pixel_size(run, folder)
    return run, share


def check_folder(root: str) -> Path:
    """Return the folder of the data; raise ValueError if it is none."""
    folder = local(root)
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
    source = opened("annotations", options)
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
    cases, _, found = match_files(
        folder,
        pairs.images,
        list(pairs.masks.values()),
        [*sides.exclude, *made],
        objects=pairs.objects,
    )
    if not cases:
        raise ValueError(f"{found}, and no image has its mask. Say --images and --masks.")
    contents = _contents(folder, pairs, cases, labels, progress)
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
    left_out = [*_unused_masks(folder, pairs, contents.options["masks"]), *made]
    if left_out:
        reasons["exclude"] = (
            f"{', '.join(left_out)} match the pattern of the images, and are none: keep them here."
        )
    if exclude := [*sides.exclude, *left_out]:
        options["exclude"] = exclude
    if sides.how_to_score:
        key = "exclude" if sides.exclude else "images"
        reasons[key] = "\n".join(filter(None, (reasons.get(key), sides.how_to_score)))
    table = find_table(folder, [case.case_id for case in cases])
    if table is not None and not held_out:
        options["table"], held_out, reasons["table"] = table
    unused = " ".join(filter(None, (sides.unused, unused)))
    return _run_of_pairs(options, reasons, held_out, unused), contents.foreground_share


def _contents(
    folder: Path,
    pairs: Pairs,
    cases: Sequence[CaseFiles],
    labels: str | None,
    progress: Callable[[Iterable[str]], Iterable[str]],
) -> LabelOptions:
    """Return what the masks of the cases hold."""
    files = [
        {name: case.masks_of(label) for label, name in enumerate(pairs.masks, 1)} for case in cases
    ]

    def reading(masks: Iterable[str]) -> Iterable[str]:
        return fetched_ahead(progress(masks), lambda mask: [split_container(folder / mask)[0]])

    if pairs.objects:
        return object_options(folder, pairs.masks, files, reading)
    single = {name: [own for case in files for own in case[name]] for name in pairs.masks}
    return label_options(folder, pairs.masks, single, labels, reading)


def _run_of_pairs(
    options: dict[str, Any], reasons: dict[str, str], held_out: Sequence[str], unused: str
) -> RunFile:
    """Return the run of a folder's pairs; all images become grey where some are in colour."""
    source = opened("folder", options)
    if _mixes_colours(source):
        options["grey"] = True
        reasons["grey"] = "Some images are in colour and others grey: all become grey."
        source = opened("folder", options)
    run = RunFile(source=source, unused=unused)
    run.keys["data"] = ("folder", "Images and masks are found by the patterns below.")
    if held_out:
        reason = "The folder itself, or its table, says what is for validation."
        run.keys["validation_groups"] = (list(held_out), reason)
    run.options = {key: (value, reasons.get(key, "")) for key, value in options.items()}
    return run


def _unused_masks(folder: Path, pairs: Pairs, used: Any) -> list[str]:
    """Return the patterns of masks that are not used, if they match that of the images, too."""
    unused = [mask for name, mask in pairs.masks.items() if name and name not in used]
    images = compiled(pairs.images[0])
    are_images = any(images.fullmatch(file) for mask in unused for file in find(folder, mask))
    return unused if are_images else []


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


def _mixes_colours(source: DataSource) -> bool:
    return source.channels in (1, 3) and any("channel" in defect.what for defect in source.defects)
