"""Two runs compared: the same, the same but for rounding, or different."""

import json
import re
import shutil

import pytest

from tfunet import exit_codes
from tfunet.backend import Launch
from tfunet.bench.analysis.two_runs import OTHER, ROUNDED, SAME, compare_runs
from tfunet.cli import main
from tfunet.config.run import RunConfig
from tfunet.loop import run
from tfunet.single_device import SingleDevice


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A run, and a copy of its folder that a test changes."""
    folder = tmp_path_factory.mktemp("runs")
    config = RunConfig(
        data_options={"num_cases": 10, "size": 32},
        model_options={"filters": 2, "levels": 1},
        cache_dir=str(folder / "cache"),
        global_batch=4,
        steps=4,
        metrics=("accuracy",),
    )
    run(config, SingleDevice(Launch()), folder / "one")
    shutil.copytree(folder / "one", folder / "two")
    return folder


def changed(folder, name, pattern, new):
    path = folder / "two" / name
    text = path.read_text()
    path.write_text(re.sub(pattern, new, text, count=1))
    assert path.read_text() != text


@pytest.mark.parametrize(
    ("name", "pattern", "new", "verdict", "words"),
    [
        ("config.json", '"seed": 0', '"seed": 5', SAME, ("seed", "0", "5")),
        ("env.json", '"cpu": "[^"]*"', '"cpu": "other"', SAME, None),
        ("steps.csv", r"(?m)^(2,[^,]*,\d\.\d{6})\d*", r"\1", ROUNDED, "from step 2 on, by"),
        ("steps.csv", r"(?m)^(3,[^,]*,)\d", r"\g<1>7", OTHER, "from step 3 on, by"),
        ("steps.csv", r"(?m)^(3,[^,]*,)[^,]*", r"\g<1>nan", OTHER, "from step 3 on, by inf"),
        ("steps.csv", r"\n4,.*\n", "\n", OTHER, "4 and 3 steps"),
        ("epochs.csv", "[0-9a-f]{16},([0-9a-f]{16})", r"\1,\1", ROUNDED, "weights: not the same"),
        ("epochs.csv", "([0-9a-f]{16}),[0-9a-f]{16}", r"\1,\1", OTHER, "samples: not the same"),
        ("result.json", r'"accuracy": [\d.]+', '"accuracy": 0.0125', OTHER, None),
    ],
)
def test_what_differs_is_told(runs, name, pattern, new, verdict, words):
    kept = (runs / "two" / name).read_bytes()
    try:
        changed(runs, name, pattern, new)
        found = compare_runs(runs / "one", runs / "two")
    finally:
        (runs / "two" / name).write_bytes(kept)
    assert found.verdict == verdict
    assert (words in found.rows) if isinstance(words, tuple) else (words or "") in str(found.notes)
    if name in ("env.json", "result.json"):
        assert len(found.rows) == 1


def test_the_command_prints_it(runs, capsys):
    words = ["compare", str(runs / "one"), str(runs / "two")]
    assert main(words) == exit_codes.OK
    assert "what the runs computed is the same to the last bit." in capsys.readouterr().out
    assert main([*words, "--json"]) == exit_codes.OK
    assert json.loads(capsys.readouterr().out)["verdict"] == SAME
