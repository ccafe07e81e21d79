"""The lines of a first configuration, each with its reason. Imports no TensorFlow."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, final

from tfunet.data.class_lines import toml_key, toml_value
from tfunet.data.defects import DefectsError
from tfunet.data.layouts.dataset_json import channel_names
from tfunet.data.source import DataSource, open_source
from tfunet.files.remote import local
from tfunet.process.terminal import counted

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
                lines.append(f"{toml_key(key)} = {toml_value(value)}")
        return "\n".join(lines) + "\n"

    def channel_names(self) -> tuple[str, ...]:
        """Return what a dataset.json calls the channels, such as "CT"."""
        if self.keys["data"][0] not in DESCRIBED:
            return ()
        return channel_names(local(str(self.options["root"][0])))

    def summary(self) -> str:
        """Return what was found, in a few lines."""
        source = self.source
        lines = [
            f"{source.name}: {counted(len(source.case_ids), 'case')} in {len(source.patch)}D with "
            f"{counted(source.channels, 'channel')}; classes: {', '.join(source.regions)}"
        ]
        if self.unused:
            lines.append(self.unused)
        if source.defects:
            lines.append(
                f"{counted(len(source.defects), 'defect')}, such as "
                f"{str(source.defects[0]).rstrip('.')}. `tfunet data check` lists all."
            )
        return "\n".join(lines)


def opened(data: str, options: Mapping[str, Any]) -> DataSource:
    """Open a data set without what is wrong with it; ValueError where no case is left."""
    try:
        return open_source(data, options, skip_bad=True)
    except DefectsError as error:
        raise ValueError(f"No case can be used. {error}") from error


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
