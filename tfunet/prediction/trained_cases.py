"""The cases of a data set that a run was trained on. Imports no TensorFlow."""

import sys
from collections.abc import Sequence
from pathlib import Path

from tfunet.config.run import RunConfig
from tfunet.data.source import DataSource, made_by
from tfunet.files.home import expand_home
from tfunet.files.remote import named
from tfunet.files.typed import RecordError
from tfunet.process.terminal import counted, lines_of
from tfunet.record import RunFolder

# With more cases, a line names the first ones only.
MOST_NAMED = 10


def trained_on(run: Path, source: DataSource) -> dict[int, Path]:
    """Return the run that each case was trained on with, however the cases are described.

    It is this run, or one whose weights it began with, and so on. A warning names weights whose
    run is not known any more.
    """
    return _trained([run], source)


def seen_before(config: RunConfig, source: DataSource, validation: Sequence[int]) -> str:
    """Return a warning of validation cases that the weights to begin with were trained on; "" for
    none."""
    runs = [file.parent for file in _begun_with(config) if file.is_file()]
    try:
        trained = _trained(runs, source)
    except RecordError as error:
        return (
            f"warning: cases that the initial weights were trained on are not recognised. {error}"
        )
    seen = [index for index in validation if index in trained]
    if not seen:
        return ""
    names = ", ".join(source.case_ids[index] for index in seen[:MOST_NAMED])
    before = ", ".join(dict.fromkeys(str(trained[index]) for index in seen))
    were, their = (
        ("was a training case", "its score is")
        if len(seen) == 1
        else ("were training cases", "their scores are")
    )
    return (
        f"warning: {len(seen)} of {counted(len(validation), 'validation case')} {were} of "
        f"{before}, whose weights this run begins with, so {their} too good: {names}"
        f"{', ...' if len(seen) > MOST_NAMED else ''}. Hold out the cases that were held out there."
    )


def _trained(runs: Sequence[Path], source: DataSource) -> dict[int, Path]:
    trained: dict[int, Path] = {}
    seen: set[Path] = set()
    waiting = [*runs]
    while waiting:
        folder = waiting.pop(0)
        config = RunFolder(folder).read_config()
        if config is None or folder.resolve() in seen:
            continue
        seen.add(folder.resolve())
        for index in _of_run(RunFolder(folder), config, source):
            trained.setdefault(index, folder)
        for file in _begun_with(config):
            if file.is_file():
                waiting.append(file.parent)
            else:
                what = (
                    f"warning: {folder} began with the weights {file}, which are not there any "
                    "more: cases that they were trained on are not recognised."
                )
                print(lines_of(what), file=sys.stderr)
    return trained


def _begun_with(config: RunConfig) -> list[Path]:
    """Return the files of the weights that a run began with."""
    named = [config.initial_weights, config.model if config.model.endswith(".keras") else None]
    return [expand_home(file) for file in named if file]


def _of_run(folder: RunFolder, config: RunConfig, source: DataSource) -> set[int]:
    files = set((folder.read_data() or {}).get("training_files") or ())
    trained = {index for index, path in enumerate(source.paths()) if path in files}
    # By their names too: the data may have moved with the run, or are made in code.
    own = config.data_options.get("root")
    is_same = own is not None and named(own) == named(source.root)
    if is_same or source.made_by == made_by(config.data, config.data_options):
        names = set((folder.read_split() or {}).get("train", ()))
        trained |= {index for index, name in enumerate(source.case_ids) if name in names}
    return trained
