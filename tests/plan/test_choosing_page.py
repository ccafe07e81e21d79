"""docs/choosing.md: its commands, and the table that it shows."""

import json
import re
import shlex

import pytest
from paths import ROOT

from tfunet import cli, exit_codes

PAGE = (ROOT / "docs" / "choosing.md").read_text()
CONFIG = re.search(r"^```toml\n# choose.toml\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)[1]
COMMANDS = re.findall(r"^tfunet (plan .*)$", PAGE, re.MULTILINE)
# Place, layout, step, parts, samples/s, memory.
ROWS = re.findall(
    r"^([\d-])  (single\S*(?: \S+)*) {2,}([\d.]+)  .*?([\d,]+) +800  +\d+%", PAGE, re.MULTILINE
)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "choose.toml").write_text(CONFIG)
    monkeypatch.chdir(tmp_path)


def plan(capsys, words):
    assert cli.main(shlex.split(words)) == exit_codes.OK
    return capsys.readouterr().out


def test_the_table_is_what_the_command_prints(folder, capsys):
    assert [row[0] for row in ROWS] == ["1", "2", "-", "-"]
    table = json.loads(plan(capsys, f"{COMMANDS[1]} --json"))
    for (place, _, milliseconds, mib), one in zip(ROWS, table["layouts"], strict=True):
        assert one["fits"] == (place != "-")
        assert 1e3 * one["step_seconds"] == pytest.approx(float(milliseconds), rel=0.1)
        assert one["memory_bytes"] / 2**20 == pytest.approx(float(mib.replace(",", "")), rel=0.1)


@pytest.mark.parametrize("command", [COMMANDS[0], COMMANDS[2]])
def test_a_plan_ends_with_the_line_to_type(folder, capsys, command):
    last = plan(capsys, command).splitlines()[-1]
    assert last.startswith("Train it so: tfunet train choose.toml")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--device v100-nvlink", "Did you mean 'v100-nvlink2'?"),
        ("--cluster v100", "is not understood. Write it as"),
        ("--cluster '2 h100' --device h100", "not both"),
        ("--device gh200 --memory 0.5", "must be an amount"),
        ("--device gh200 --devices 0", "at least 1, got 0"),
        ("--device gh200 --modell unet", "'model'"),
        ("--device gh200 --memory 20MiB", "No layout fits surely. The nearest is single"),
        ("--data nothing.toml", "nothing.toml"),
    ],
)
def test_bad_input_is_told_in_a_line(folder, capsys, words, said):
    assert cli.main(shlex.split(f"plan choose.toml {words}")) == exit_codes.BAD_INPUT
    lines = capsys.readouterr().err.splitlines()
    assert said in lines[-1]
    assert lines[-1].startswith("error: ")


@pytest.mark.parametrize(
    "words",
    [
        "swap plan choose.toml --device gh200",
        "models show unet --stages 6",
        "models show unet --image 9,9",
    ],
)
def test_old_commands_say_where_to_go(capsys, words):
    assert cli.main(shlex.split(words)) == exit_codes.BAD_INPUT
    assert "tfunet plan RUN.toml" in capsys.readouterr().err
