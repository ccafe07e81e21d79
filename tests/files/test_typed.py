"""One reader for what anybody may have written: typed values, or the file and field at fault."""

import math
import os

import pytest

from tfunet.files.typed import (
    Amount,
    Count,
    FieldError,
    Name,
    RecordError,
    amount,
    check_fields,
    check_known_fields,
    number,
    number_or_none,
    parse_toml,
    read_json,
    typed_rows,
    whole,
)

TABLE = dict[str, object]


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (b"", "Expecting value"),
        (b"[1]", "expected object, got array"),
        (b"\xff{}", "it is not UTF-8 at byte 0"),
        (b"[" * 100_000, "maximum recursion depth exceeded"),
        (b'{"a":' + b"[" * 60 + b"]" * 60 + b"}", "nested more than 50 deep"),
        (b'{"a": 1' + b"0" * 400 + b"}", "a whole number of more than 64 bits"),
        (b'{"a": 1' + b"0" * 5000 + b"}", "Exceeds the limit"),
        (b'{"a": "\\ud800"}', "a text that is not Unicode"),
        (b'{"\\ud800": 1}', "a text that is not Unicode"),
    ],
)
def test_what_is_no_record_is_named(content, fault, tmp_path):
    path = tmp_path / "result.json"
    path.write_bytes(content)
    with pytest.raises(RecordError) as raised:
        read_json(path, TABLE)
    assert str(raised.value).startswith(f"{path} cannot be used: ")
    assert fault in raised.value.fault
    assert raised.value.row.startswith("result.json cannot be used: ")


def test_a_path_may_hold_bytes_that_are_not_utf8(tmp_path):
    path = tmp_path / "plan.json"
    path.write_text('{"working_folder": "/data/\\udcff"}')
    table = read_json(path, TABLE)
    assert os.fsencode(table["working_folder"]) == b"/data/\xff"


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("folder", "a folder"),
        ("loop", "a symbolic link"),
        ("dangling", "a link to nothing"),
        ("pipe", "a pipe"),
        ("endless", "a device"),
    ],
)
def test_what_is_no_regular_file_is_named_and_nothing_waits(kind, words, tmp_path):
    path = tmp_path / "env.json"
    links = {"loop": path, "dangling": tmp_path / "nowhere", "endless": "/dev/zero"}
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to(links[kind])
    with pytest.raises(RecordError, match=rf"env\.json cannot be used: it is {words}"):
        read_json(path, TABLE)
    assert read_json(tmp_path / "none", TABLE) is None
    (tmp_path / "file").touch()
    assert read_json(tmp_path / "file" / "inside", TABLE) is None


def test_a_file_that_is_too_large_is_not_read(tmp_path):
    path = tmp_path / "result.json"
    with path.open("wb") as file:
        file.truncate(2**40)
    with pytest.raises(RecordError, match="more than 256 MiB"):
        read_json(path, TABLE)


@pytest.mark.parametrize(
    ("kind", "wrong"),
    [
        (Count, [None, "1", 1.5, True, -1, 2**63, []]),
        (Amount, [None, "1", True, -0.5, math.nan, math.inf, 10**400, 1e16, {}]),
        (
            Name,
            ["", ".", "..", "../a", "a/b", "a\nb", "a\0", "\x1b[2J", "x" * 201, ".git", 5, None],
        ),
    ],
    ids=["Count", "Amount", "Name"],
)
def test_a_wrong_value_names_its_field(kind, wrong):
    for value in wrong:
        with pytest.raises(FieldError, match=r"^trials\[3\]\.id: "):
            check_fields({"id": value}, {"id": kind}, "trials[3]")
    check_fields({"other": 1}, {"id": kind})


def test_a_field_inside_is_named():
    with pytest.raises(FieldError, match=r"pairs\[1\]\[0\]: expected float, got str"):
        check_fields({"pairs": [[1, 2], ["a", 2]]}, {"pairs": list[tuple[float, float]]})
    with pytest.raises(FieldError, match=r"dice\[\]: expected float, got null"):
        check_fields({"dice": {"cell": None}}, {"dice": dict[str, float]})
    with pytest.raises(FieldError, match="'colour' is no key of this version"):
        check_known_fields({"colour": 1}, {"size": int})


CELLS = {"step": whole, "seconds": amount, "loss": number, "dice": number_or_none}


@pytest.mark.parametrize(
    ("rows", "fault"),
    [
        ("1,0.5,nan,\n2,0.5,1.0,0.5\n3,0.", None),  # The last row is not complete.
        ("1,0.5,1.0,\n2,fast,1.0,\n", "line 3, seconds: could not convert"),
        ("1,-0.5,1.0,\n", "line 2, seconds: expected float >= 0"),
        ("1,inf,1.0,\n", "line 2, seconds: expected float"),
        ("1.5,0.5,1.0,\n", "line 2, step: invalid literal"),
        ("1,0.5\n", "line 2, loss: the row ends before it"),
        (f"1,0.5,{'9' * 200_000},\n", "field larger than field limit"),
    ],
)
def test_the_first_wrong_cell_of_a_table_is_named(rows, fault, tmp_path):
    path = tmp_path / "steps.csv"
    path.write_text(f"step,seconds,loss,dice\n{rows}")
    if fault is None:
        first, second = typed_rows(path, CELLS)
        assert (first["step"], first["dice"], second["dice"]) == (1, None, 0.5)
        assert math.isnan(first["loss"])
        return
    with pytest.raises(RecordError, match=r"steps\.csv cannot be used") as raised:
        list(typed_rows(path, CELLS))
    assert fault in raised.value.fault


def test_a_table_without_a_column_is_named_and_a_missing_one_is_empty(tmp_path):
    path = tmp_path / "steps.csv"
    path.write_text("\nstep,seconds\n1,0.5\n")
    with pytest.raises(RecordError, match="it has no column step"):
        list(typed_rows(path, CELLS))
    assert list(typed_rows(tmp_path / "none.csv", CELLS)) == []


def test_toml_has_the_values_of_json():
    assert parse_toml("a = [[1, 2.5], ['x']]") == {"a": [[1, 2.5], ["x"]]}
    with pytest.raises(ValueError, match="nested more than 50 deep"):
        parse_toml("a = " + "[" * 20_000 + "]" * 20_000)
    with pytest.raises(ValueError, match="date or time 2020-01-01: write it as text, in quotes"):
        parse_toml("a = 2020-01-01")
