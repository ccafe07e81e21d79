"""Mutants of files: one fault of type, range, shape or nesting, torn, or no file at all."""

import copy
import json
import os

# How many files are mutated; by default as many as take ten seconds.
MUTATIONS = int(os.environ.get("TFUNET_MUTATIONS", "640"))
HOSTILE = (
    *(None, True, False, 0, -1, 1, 7, 2**31, 2**63, 2**64, -(2**63), 10**30, 10**400),
    *(0.5, -0.5, 1e-320, 1e15, 1e300, -1e300, float("nan"), float("inf"), float("-inf")),
    *("", "abc", "1", "NaN", "x" * 300, "../../outside", "/", ".", "..", "a/b", "nul\0l"),
    *("\x1b[2J", "two\nlines", "\u202e", "\ud800", "é", r"$\frac$", "<script>", "=1+1", "|"),
    *([], {}, [[]], [None], [{}], {"": {}}, {"a": {"b": []}}, [1, "a", None], [[1, 2], [3]]),
    [[[[[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]]]],
)
NO_FILE = ("folder", "loop", "dangling", "pipe", "endless")


def paths_in(value, at=()):
    """Return the path of every value inside a JSON value."""
    if not isinstance(value, dict | list):
        return [at]
    inner = value.items() if isinstance(value, dict) else enumerate(value)
    return [at, *(path for key, value in inner for path in paths_in(value, (*at, key)))]


def mutated_json(text, dice):
    """Return the bytes of a JSON file with one fault of type, range, shape or nesting."""
    table = copy.deepcopy(json.loads(text))
    *way, last = dice.choice([path for path in paths_in(table) if path])
    inside = table
    for key in way:
        inside = inside[key]
    kind = dice.choice(("value", "value", "value", "value", "gone", "renamed", "more"))
    hostile = copy.deepcopy(dice.choice(HOSTILE))
    if kind == "value":
        inside[last] = hostile
    elif kind == "gone":
        del inside[last]
    elif isinstance(inside, dict):
        key = hostile if isinstance(hostile, str) else str(hostile)[:300]
        inside[key] = inside.pop(last) if kind == "renamed" else hostile
    else:
        inside.insert(last, hostile)
    return json.dumps(table).encode()


def mutated_csv(text, dice):
    """Return the bytes of a CSV file with one wrong cell, row or column."""
    rows = [line.split(",") for line in text.splitlines()]
    row = dice.choice(rows)
    kind = dice.choice(("cell", "cell", "cell", "gone", "more", "row"))
    hostile = dice.choice(HOSTILE)
    value = hostile if isinstance(hostile, str) else json.dumps(hostile)
    if kind == "cell":
        row[dice.randrange(len(row))] = value
    elif kind == "gone":
        del row[dice.randrange(len(row))]
    elif kind == "more":
        row.append(dice.choice((value, '"', "y" * 200_000)))
    else:
        rows.insert(dice.randrange(len(rows)), [value])
    return "".join(f"{','.join(cells)}\n" for cells in rows).encode("utf-8", "surrogatepass")


def mutated_bytes(text, dice):
    """Return the bytes of a file that was torn, stored in another encoding, or is no such file."""
    data = text.encode()
    at = dice.randrange(len(data) + 1)
    return dice.choice(
        (
            lambda: data[:at],
            lambda: data[:at],
            lambda: data[:at] + dice.randbytes(3) + data[at + 3 :],
            lambda: data[:at] + b"\xff\xfe" + data[at:],
            lambda: text.encode("utf-16"),
            lambda: b"\xef\xbb\xbf" + data,
            lambda: data.replace(b"1", b"\0"),
            lambda: b"",
            lambda: b"[" * 100_000,
            lambda: b'{"a":' * 100_000,
            lambda: json.dumps(dice.choice(HOSTILE)).encode(),
        )
    )()


def mutate(path, dice):
    """Replace a file by a mutant of it."""
    text = path.read_text()
    if dice.random() < 0.04:
        path.unlink()
        kind = dice.choice(NO_FILE)
        if kind == "folder":
            path.mkdir()
        elif kind == "pipe":
            os.mkfifo(path)
        else:
            path.symlink_to({"loop": path, "dangling": "/nowhere", "endless": "/dev/zero"}[kind])
        return
    by_format = mutated_json if path.suffix == ".json" else mutated_csv
    path.write_bytes((mutated_bytes if dice.random() < 0.25 else by_format)(text, dice))


def refusal(run, *errors):
    """Return which of these errors a function raised; None if it raised nothing."""
    try:
        run()
    except errors as error:
        return error
    return None
