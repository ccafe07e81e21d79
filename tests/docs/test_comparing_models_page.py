"""docs/comparing-models.md: its two models are trained, and compared in the table that it shows."""

import re
from pathlib import Path

from pages import blocks, put_example
from paths import ROOT
from synthetic_sweep import write_sweep

from tfunet import exit_codes
from tfunet.backend import Launch
from tfunet.bench.study.study_file import read_study
from tfunet.cli import main
from tfunet.loop import run
from tfunet.single_device import SingleDevice

PAGE = (ROOT / "docs/comparing-models.md").read_text()


def cells(lines):
    return [re.split(r"  +", line) for line in lines]


def test_the_example_prints_the_table_of_the_page(tmp_path, monkeypatch, capsys):
    put_example(PAGE, tmp_path, monkeypatch)
    plan, sweep, report = (line.split()[1:] for line in "".join(blocks(PAGE, "sh")).splitlines())
    assert main(plan) == exit_codes.OK
    assert sweep == ["sweep", "run", "models.toml"]
    # In this process, rather than in ones that load TensorFlow, and of three repeats one.
    folder = Path("logs/models")
    for trial in write_sweep(folder, read_study(Path("models.toml")), write=lambda trial: False):
        if trial.repeat == 1:
            run(trial.config, SingleDevice(Launch()), folder / trial.id)
    capsys.readouterr()
    assert main(report) == exit_codes.OK
    (shown,) = blocks(PAGE, "text")
    title, *table = shown.split("\n\n")[0].splitlines()
    printed = capsys.readouterr().out
    assert f"\n{title}\n" in printed
    rows = cells(printed.partition(f"{title}\n")[2].splitlines()[: len(table)])
    header, *models = cells(table)
    assert rows[0] == header
    # Which is the better one depends on the last bits of the machine.
    assert {row[0] for row in rows[1:]} == {row[0] for row in models}
    for row in rows[1:]:
        assert len(row) == len(header)
        assert dict(zip(header, row, strict=True))["parameters"] in ("682", "1,266")
    assert re.search(r"\nAnswer: Of 2 configurations, model=nets.py:\w+ has the highest", printed)
    named = set(re.findall(r"report/(\S+\.csv)", PAGE))
    assert named == {"configurations.csv"}
    assert (folder / "report/configurations.csv").is_file()
