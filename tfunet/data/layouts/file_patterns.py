"""File patterns with placeholders: 'imagesTr/{case}.nii.gz'. Imports no TensorFlow."""

import re
from pathlib import Path
from typing import final

from tfunet.data.formats.container import composed, split_container

# A leading wildcard matches no hidden file or folder, nor does "**/".
NOT_HIDDEN = r"(?!\.)"
FOLDERS = rf"(?:{NOT_HIDDEN}[^/]+/)*"
_TOKEN = re.compile(r"\{([A-Za-z_]\w*)\}|(\*\*/)|(\*)|(\?)")


def placeholders(pattern: str) -> tuple[str, ...]:
    """Return the names of a pattern's placeholders, each once, in order of appearance."""
    if re.search(r"[{}]", _TOKEN.sub("", pattern)):
        raise ValueError(
            f"The pattern {pattern!r} has a brace that belongs to no placeholder. Write {{name}}: "
            "letters, digits and underscores."
        )
    names = [match[1] for match in _TOKEN.finditer(pattern) if match[1]]
    return tuple(dict.fromkeys(names))


def find(root: Path, pattern: str) -> dict[str, dict[str, str]]:
    """Return the files under `root` that match, in sorted order, with their placeholders' values.

    A placeholder stands for as few characters as possible within one name of the path, the same
    ones wherever it is repeated. `*` stands for any characters within a name, `?` for one, `**/`
    for any folders. None of them stands for the point before a hidden name (.name). A pattern finds
    folders if it ends in `/` or continues inside a zarr store. The part after the colon of
    'name.h5:array' or 'name.zarr:array' is the same for all files. Keys are relative to `root`,
    with slashes.
    """
    if Path(pattern).is_absolute():
        raise ValueError(f"The pattern {pattern!r} must be relative to root. Move its start there.")
    outside, inside = split_container(pattern)
    is_folder = pattern.endswith("/") or ".zarr" in outside.name.lower()
    within = f":{inside}" if inside else ""
    exact = compiled(outside.as_posix())
    files = {}
    for path in root.glob(_glob(outside.as_posix())):
        relative = path.relative_to(root).as_posix()
        match = exact.fullmatch(relative)
        if match and not path.name.startswith(".") and path.is_dir() == is_folder:
            files[relative + within] = match.groupdict()
    return dict(sorted(files.items()))


def in_other_case(root: Path, pattern: str) -> list[str]:
    """Return the files that match only if upper and lower case are the same, such as a.PNG."""
    outside, inside = split_container(pattern)
    if pattern.endswith("/") or inside or ".zarr" in outside.name.lower():
        return []
    exact, either = compiled(pattern), compiled(pattern, re.IGNORECASE)
    folder, _, name = _glob(pattern).rpartition("/")
    loose = re.sub(r"[A-Za-z]", lambda letter: f"[{letter[0].lower()}{letter[0].upper()}]", name)
    found = root.glob(f"{folder}/{loose}" if folder else loose)
    files = (path.relative_to(root).as_posix() for path in found)
    others = [file for file in files if either.fullmatch(file) and not exact.fullmatch(file)]
    return sorted(file for file in others if (root / file).is_file())


@final
class Expression:
    """The regular expression of a pattern, to which both Unicode forms of a name are one."""

    def __init__(self, expression: str, flags: int) -> None:
        self._compiled = re.compile(expression, flags)

    def fullmatch(self, name: str) -> re.Match[str] | None:
        """Return the match of a whole name, whose groups are `composed`."""
        return self._compiled.fullmatch(composed(name))


def compiled(pattern: str, flags: int = 0, *, longest: bool = False) -> Expression:
    """Return the expression of a pattern, with a group for each placeholder.

    A placeholder stands for as few characters as possible, or with `longest` for as many.
    """
    return Expression(_regex(composed(pattern), longest=longest), flags)


def _glob(pattern: str) -> str:
    """Return a glob that matches at least the pattern's files."""
    parts = []
    for part in _split(composed(pattern)):
        if isinstance(part, str):
            # A file may have a letter of several bytes in another form.
            parts.append(re.sub(r"[^\x00-\x7f]+", "*", part.replace("[", "[[]")))
        else:
            parts.append("*" if part[1] else part[0])
    return re.sub(r"\*\*+(?!/)", "*", "".join(parts))


def _regex(pattern: str, *, longest: bool) -> str:
    expression, few = "", "" if longest else "?"
    seen: set[str] = set()
    for part in _split(pattern):
        if isinstance(part, str):
            expression += re.escape(part)
            continue
        if part[0] != "**/" and (not expression or expression.endswith(("/", FOLDERS))):
            expression += NOT_HIDDEN
        if part[1]:
            expression += f"(?P={part[1]})" if part[1] in seen else f"(?P<{part[1]}>[^/]+{few})"
            seen.add(part[1])
        else:
            expression += {"**/": FOLDERS, "*": "[^/]*", "?": "[^/]"}[part[0]]
    return expression


def _split(pattern: str) -> list[str | re.Match[str]]:
    parts: list[str | re.Match[str]] = []
    end = 0
    for match in _TOKEN.finditer(pattern):
        parts += [pattern[end : match.start()], match]
        end = match.end()
    return [*parts, pattern[end:]]
