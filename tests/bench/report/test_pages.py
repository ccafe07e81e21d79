"""Every command of docs/report.md and docs/studies.md does what the page says."""

import functools
import json
import re
import shlex
import sys

import pytest
from campaign_logs import GPUS, ONE_GPU, PUBLISHED, write_log
from paths import ROOT, SUPPORT
from synthetic_sweep import make_study, write_sweep

from tfunet import exit_codes
from tfunet.bench.launch import local_sweep
from tfunet.cli import main

DOCS = ROOT / "docs"
FAKE = SUPPORT / "fake_trial.py"


def commands(page):
    blocks = re.findall(r"^```sh\n(.*?)^```", (DOCS / page).read_text(), re.DOTALL | re.MULTILINE)
    return [shlex.split(line, comments=True) for block in blocks for line in block.splitlines()]


def fake_command(folder):
    return [sys.executable, "-I", "-S", str(FAKE), "well", str(folder)]


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder with what the pages name: sweeps in logs/, the published logs, the study."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        "tfunet.bench.analysis.repeats_needed.measure_noise", lambda: {"spread": 0.05}
    )
    monkeypatch.setattr(
        local_sweep, "run_sweep", functools.partial(local_sweep.run_sweep, command=fake_command)
    )
    for name in ("mystudy", "before", "after"):
        write_sweep(tmp_path / "logs" / name, make_study())
    (tmp_path / "published").mkdir()
    for kind, efficiencies in PUBLISHED.items():
        for count, value in zip((1, *GPUS), (1.0, *efficiencies), strict=True):
            write_log(tmp_path / f"published/log_{kind}{count}.csv", ONE_GPU[kind] / count / value)
    study = (DOCS / "studies.md").read_text().split("```toml\n")[1].split("```")[0]
    (tmp_path / "filters.toml").write_text(study)
    return tmp_path


@pytest.mark.parametrize("command", commands("report.md"), ids=" ".join)
def test_commands_of_the_page_on_reports(command, place, capsys):
    assert command[0] == "tfunet"
    assert main(command[1:]) == exit_codes.OK
    shown = capsys.readouterr().out
    if "--json" in command:
        assert json.loads(shown)["schema_version"] == 1
        assert not list(place.glob("logs/*/report"))
    elif command[1] == "report":
        assert (place / command[2] / "report").is_dir()
    if "published" in command:
        assert "0.962" in shown


@pytest.mark.slow
def test_commands_of_the_page_on_studies(place, capsys):
    given = commands("studies.md")
    last = [arguments[1:3] for arguments in given][-3:]
    assert last == [["sweep", "run"], ["sweep", "watch"], ["sweep", "status"]]
    for command in given:
        assert main(command[1:]) == exit_codes.OK, command
    shown = capsys.readouterr().out
    assert "repeats find a difference of 5 % between two ways" in shown
    assert "30 done" in shown


def test_precision_is_part_of_the_plan_for_programs(place, capsys):
    arguments = ["filters.toml", "--precision", "5%", "--noise", "0.01", "--json"]
    assert main(["sweep", "plan", *arguments]) == exit_codes.OK
    table = json.loads(capsys.readouterr().out)["precision"]
    assert (table["precision"], table["noise_freedom"]) == (0.05, None)
    assert "your assumption" in table["noise_source"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["sweep", "plan", "filters.toml", "--noise", "1%"], "needs --precision. Give it too"),
        (["sweep", "plan", "filters.toml", "--precision", "200%"], "between 0 % and 100 %"),
        (["compare", "logs/before", "logs/none"], "There is no folder 'logs/none'"),
        (["report", "published/none"], "There is no folder 'published/none'"),
    ],
)
def test_bad_input_is_said_without_a_traceback(arguments, words, place, capsys):
    assert main(arguments) == exit_codes.BAD_INPUT
    assert words in capsys.readouterr().err


def test_a_share_is_a_number_or_a_percentage(place, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["sweep", "plan", "filters.toml", "--precision", "little"])
    assert ended.value.code == exit_codes.BAD_INPUT
    assert "write it as 2% or 0.02, got 'little'" in capsys.readouterr().err


def test_a_slower_sweep_ends_with_the_code_of_the_page(place, capsys):
    write_sweep(place / "logs" / "slow", make_study(), speed={"horovod": 0.3})
    assert main(["compare", "logs/before", "logs/slow"]) == exit_codes.SLOWER
    page = (DOCS / "report.md").read_text()
    for code in (exit_codes.OK, exit_codes.BAD_INPUT, exit_codes.SLOWER, exit_codes.CANNOT_TELL):
        assert f"\n| {code} | " in page
