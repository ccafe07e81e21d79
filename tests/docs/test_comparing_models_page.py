"""docs/comparing-models.md: its two models are trained, and compared in the table that it shows."""

import re
import runpy
import tomllib
from pathlib import Path
from types import SimpleNamespace

from pages import blocks, put_example
from paths import ROOT
from synthetic_sweep import write_sweep

import tfunet
from tfunet import exit_codes
from tfunet.backend import Launch
from tfunet.bench.study.study_file import read_study
from tfunet.cli import main
from tfunet.config.refs import reference
from tfunet.config.run import RunConfig
from tfunet.loop import run
from tfunet.single_device import SingleDevice

PAGE = (ROOT / "docs/comparing-models.md").read_text()


def cells(lines):
    return [re.split(r"  +", line) for line in lines]


def test_the_example_prints_the_table_of_the_page(tmp_path, monkeypatch, capsys):
    put_example(PAGE, tmp_path, monkeypatch)
    commands = blocks(PAGE, "sh")[0].splitlines()
    plan, sweep, report = (line.split()[1:] for line in commands)
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


def test_any_keras_model_is_trained_as_the_page_says(tmp_path, monkeypatch):
    put_example(PAGE, tmp_path, monkeypatch)
    monkeypatch.syspath_prepend(str(tmp_path))
    asked = {}

    def compare(build, data, *, backends, num_replicas, **settings):
        # Each of its fifteen trials would start processes.
        asked.update(settings, model=reference(build), data=reference(data))
        return SimpleNamespace(html=f"{backends} {num_replicas}")

    monkeypatch.setattr(tfunet, "compare", compare)
    runpy.run_path("compare_flowers.py", run_name="__main__")
    configs = [RunConfig(**settings_of(asked))]
    for line in blocks(PAGE, "sh")[1].splitlines():
        table = tomllib.loads(Path(line.split()[-1]).read_text())
        configs.append(RunConfig(**settings_of(table)))
    scores = [
        run(config, SingleDevice(Launch()), tmp_path / str(number))["metrics"]
        for number, config in enumerate(configs)
    ]
    assert [list(each)[-1] for each in scores] == ["val_accuracy", "val_mae", "val_accuracy"]


def settings_of(table):
    return {key: tuple(value) if key == "metrics" else value for key, value in table.items()}
