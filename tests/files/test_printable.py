"""No text from outside begins another line, moves the cursor or turns what is read around."""

import csv
import io
import re

import pytest

from tfunet import cli, exit_codes
from tfunet.bench.launch.slurm_job_script import ArrayJob, Shape, job_script
from tfunet.bench.report.number_text import csv_text, markdown_list, markdown_text
from tfunet.bench.study.slurm_settings import Slurm
from tfunet.bench.study.study_file import Study
from tfunet.files.printable import is_printable, printable
from tfunet.files.table import Table, read_rows
from tfunet.files.typed import column_names, typed_rows
from tfunet.process.terminal import columns, lines_of

# A newline, a return, an escape sequence that clears the screen, one of C1, a change of direction,
# a separator of lines, a zero byte, half a character.
NASTY = ["\n", "\r", "\x1b[2J", "\x9b2J", "\u202e", "\u2028", "\0", "\udc80", "\t", "\x7f"]


@pytest.mark.parametrize("text", NASTY)
def test_hidden_characters_are_shown_as_python_writes_them(text):
    assert not is_printable(f"a{text}b")
    shown = printable(f"a{text}b")
    assert is_printable(shown)
    assert shown == f"a{text}b".encode("unicode_escape", "surrogatepass").decode()


@pytest.mark.parametrize("text", ["", "cells", "Größe 4\u00a0µm", "細胞", "a b|c", "👩", "\\n"])
def test_what_a_person_reads_stays(text):
    assert is_printable(text)
    assert printable(text) == text


@pytest.mark.parametrize("text", NASTY)
def test_a_cell_stays_one_line_everywhere(text, tmp_path):
    cell = f"case{text}rm -rf ~"
    assert all(map(is_printable, columns([["case"], [cell]])))
    assert len(markdown_text([{"case": cell}]).splitlines()) == 3
    assert len(markdown_list("Cases", [cell]).splitlines()) == 3
    assert len(csv_text([{"case": cell}]).splitlines()) == 2
    with Table(tmp_path / "t.csv", ("step", f"dice_{text}")) as table:
        table.append({"step": 1, f"dice_{text}": cell})
    (row,) = read_rows(tmp_path / "t.csv")
    assert list(row.values()) == ["1", printable(cell)]
    # A resumed table keeps its rows.
    with Table(tmp_path / "t.csv", ("step", f"dice_{text}"), last=1):
        assert len((tmp_path / "t.csv").read_text().splitlines()) == 2
    for said in (csv_text([{"case": cell}]), (tmp_path / "t.csv").read_text()):
        assert next(csv.reader(io.StringIO(said)))
        assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f]", said)


FORMULAS = ["=1+1", "+cmd|x", "-x", "@SUM(A1)", "\uff1d1", "'=x", "''@x", "-0.5 (-1 to 0)", "=,'\""]
# Numbers and marks are none, and stay as they are.
PLAIN = ["-0.5", "+3", "-inf", "-1e-9", "-", "=", "a=b", "'", "'a", "", "nan", "x-1"]


@pytest.mark.parametrize("text", [*FORMULAS, *PLAIN])
def test_no_cell_is_a_formula_and_all_are_read_back(text, tmp_path):
    with Table(tmp_path / "t.csv", ("step", text)) as table:
        table.append({"step": 1, text: text})
    written = (tmp_path / "t.csv").read_text()
    for said in (written, csv_text([{"step": 1, text: text}])):
        header, row = csv.reader(io.StringIO(said))
        assert row[1] == header[1] == (f"'{text}" if text in FORMULAS else text)
    assert read_rows(tmp_path / "t.csv") == [{"step": "1", text: text}]
    assert list(typed_rows(tmp_path / "t.csv", {text: str})) == [{text: text}]
    assert column_names(tmp_path / "t.csv") == ["step", text]
    with Table(tmp_path / "t.csv", ("step", text), last=1):
        assert (tmp_path / "t.csv").read_text() == written


def test_numbers_stay_numbers(tmp_path):
    assert csv_text([{"a": -0.5, "b": -3, "c": None}]) == "a,b,c\n-0.5,-3,\n"


def test_an_error_keeps_its_lines_and_nothing_else():
    assert lines_of("two\n\tlines\x1b[2J") == "two\n\tlines\\x1b[2J"


@pytest.mark.parametrize("text", NASTY)
@pytest.mark.parametrize("where", ["name", "partition", "account", "constraint", "sbatch", "srun"])
def test_a_study_cannot_write_a_line_of_its_job_scripts(where, text):
    value = f"low{text}touch owned"
    make = Study if where == "name" else Slurm
    with pytest.raises(ValueError, match=f"{where} (must be|in .slurm. becomes)"):
        make(**{where: (value,) if where in ("sbatch", "srun") else value})


def test_commands_of_the_setup_may_have_several_lines():
    setup = ("if true; then\n\tmodule load x\nfi",)
    assert Slurm(setup=setup).setup == setup
    with pytest.raises(ValueError, match="setup in"):
        Slurm(setup=("module load x\x1b[2J",))


SCRIPT = {
    "study": "cells",
    "path": "/home/me/logs/cells/slurm/001.sh",
    "folder": "/home/me/logs/cells",
    "code": "0123",
    "python": "/usr/bin/python3",
    "cwd": "/home/me",
}


@pytest.mark.parametrize("text", NASTY)
@pytest.mark.parametrize("where", [*SCRIPT, "trial"])
def test_no_path_begins_a_line_of_a_job_script(where, text, tmp_path):
    shape = Shape(nodes=1, tasks=1, tasks_per_node=1, cpus_per_task=1, gpus_per_node=0)
    values = {**SCRIPT, where: f"/home/me{text}touch /tmp/owned"}
    job = ArrayJob(shape=shape, trials=(values.pop("trial", "single-1r"),))
    paths = {name: tmp_path / values.pop(name) for name in ("path", "folder", "cwd")}
    with pytest.raises(ValueError, match="A job script cannot hold"):
        job_script(job, Slurm(), **values, **paths)


def test_a_study_with_a_command_in_its_partition_ends_before_anything_is_written(
    tmp_path, capsys, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    study = tmp_path / "study.toml"
    study.write_text('[base]\nsteps = 1\n[slurm]\npartition = "low\\ntouch owned"\n')
    assert cli.main(["sweep", "run", "study.toml", "--slurm", "--dry-run"]) == exit_codes.BAD_INPUT
    said = capsys.readouterr()
    assert said.out == ""
    assert "error: partition in [slurm] becomes a part of a line" in said.err
    assert [path.name for path in tmp_path.iterdir()] == ["study.toml"]


def test_an_error_about_a_hostile_name_does_nothing_to_the_terminal(capsys):
    assert cli.main(["report", "no\x1b[2Jfolder"]) == exit_codes.BAD_INPUT
    assert "\x1b" not in capsys.readouterr().err
