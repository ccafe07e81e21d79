"""The cases of a data set that a run's predictions are scored on."""

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from tfunet.config.keys import KEYS
from tfunet.data.check import raw_case
from tfunet.data.defects import BadFileError, DefectsError, defect_of, lines_by_cause
from tfunet.data.description_file import described
from tfunet.data.source import DataSource, RawCase, open_source
from tfunet.files.remote import local
from tfunet.files.typed import parse_toml, toml_text
from tfunet.files.urls import is_url
from tfunet.prediction.ensemble import Member
from tfunet.prediction.network import TrainedNetwork
from tfunet.prediction.trained_cases import trained_on
from tfunet.process.terminal import counted, lines_of
from tfunet.record import as_recorded

# Keys that a configuration may have, and no description of a data set.
OF_RUNS = set(KEYS) - {"data", "patch", "seed", "steps", "fold", "folds"}


def opened(data: str, network: TrainedNetwork, *, skip_bad: bool) -> DataSource:
    """Return the data set that a user names for a run: a folder, a description, a configuration."""
    path = local(data)
    config = network.config
    if path.is_dir():
        if "root" not in config.data_options:
            raise ValueError(
                f"{data} is a folder, and the data of this run, {config.data!r}, have no root=. "
                "Name a .toml file that describes the data set."
            )
        options = {**config.data_options, "root": data if is_url(data) else str(path)}
        return open_source(config.data, options, skip_bad=skip_bad)
    if path.suffix != ".toml" or not path.is_file():
        raise ValueError(
            f"{data!r} is neither a folder nor a .toml file. Name a configuration, a description "
            "of a data set, or a folder that is laid out as the run's own."
        )
    try:
        table = parse_toml(toml_text(path))
    except ValueError as error:
        raise ValueError(f"{path} is not a TOML file: {error}.") from error
    kind = str(table.get("data", "folder"))
    if "data_options" in table or kind.endswith(".toml") or OF_RUNS.intersection(table):
        described_data, options = described(kind, table.get("data_options", {}))
        return open_source(described_data, options, skip_bad=skip_bad)
    return open_source(data, {}, skip_bad=skip_bad)


def chosen_cases(
    source: DataSource, members: Sequence[Member], *, with_training_cases: bool, skip_bad: bool
) -> tuple[list[int], list[RawCase]]:
    """Return the cases to score, without their pixels: not all pixels at once.

    Raises ValueError for a data set that the networks were not made for, or DefectsError.
    """
    network = members[0].network
    _check(source, network)
    chosen = _not_trained_on(source, members, with_training_cases=with_training_cases)
    chosen, cases = _readable(source, chosen, skip_bad=skip_bad)
    is_of_files = network.preparation is not None and ":" not in network.config.data
    # Packed images are as training saw them.
    is_alike = as_recorded(source.preparation) == network.preparation
    if not all(case.image_files for case in cases) and is_of_files and not is_alike:
        raise ValueError(
            f"The images of the data set {source.name!r} are made in code, and those of this run "
            f"were read from files and prepared as {network.config.data!r} does. Name files, laid "
            "out as a folder, msd, nnunet or csv; or train with a data set in code."
        )
    return chosen, cases


def _check(source: DataSource, network: TrainedNetwork) -> None:
    ours, theirs = tuple(source.label_names().values()), network.names
    if source.num_classes != network.num_classes or (theirs and ours != theirs):
        known = ", ".join(theirs) or f"{network.num_classes - 1} classes"
        raise ValueError(
            f"The data set {source.name!r} has the classes {', '.join(ours)}, and the network was "
            f"trained on {known}. Describe the masks with the classes of the run, in their order."
        )


def _not_trained_on(
    source: DataSource, members: Sequence[Member], *, with_training_cases: bool
) -> list[int]:
    """Return the cases to score: without those that the run was trained on, and a line on them."""
    everything = list(range(len(source.case_ids)))
    trained: dict[int, Path] = {}
    for member in members:
        trained = trained_on(member.run, source) | trained
    if not trained:
        return everything
    runs = {member.run for member in members}
    before = [str(run) for run in trained.values() if run not in runs]
    began = (
        f" {len(before)} of them were training cases of {', '.join(dict.fromkeys(before))}, whose "
        "weights it began with."
        if before
        else ""
    )
    if with_training_cases:
        what = f"warning: the network was trained on {len(trained)} of these cases.{began}"
        print(lines_of(what), file=sys.stderr)
        return everything
    left_out = f"{counted(len(trained), 'case')} {'is' if len(trained) == 1 else 'are'} left out"
    what = f"{left_out}: the network was trained on them (--training_cases).{began}"
    print(lines_of(what))
    rest = [index for index in everything if index not in trained]
    if not rest:
        raise ValueError(
            "The network was trained on all of these cases. Name others, or give --training_cases."
        )
    return rest


def _readable(
    source: DataSource, chosen: Sequence[int], *, skip_bad: bool
) -> tuple[list[int], list[RawCase]]:
    """Return the cases that can be read, without their pixels."""
    cases: dict[int, RawCase] = {}
    defects = list(source.defects)
    for index in chosen:
        try:
            cases[index] = _without_pixels(raw_case(source, index))
        except BadFileError as error:
            if not skip_bad:
                raise
            defects.append(defect_of(error, source.case_ids[index], source.root))
    if not cases:
        raise DefectsError(source.name, defects, source.found)
    for line in lines_by_cause(defects):
        print(lines_of(f"warning: left out: {line}"), file=sys.stderr)
    return list(cases), list(cases.values())


def _without_pixels(raw: RawCase) -> RawCase:
    return replace(raw, image=np.empty(0), mask=np.empty(0))
