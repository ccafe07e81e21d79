"""What a run says of itself while it trains."""

import re

from tfunet.backend import Launch
from tfunet.config.run import RunConfig
from tfunet.process import terminal
from tfunet.single_device import SingleDevice
from tfunet.train import run
from tfunet.training.logbook import _duration


def test_lines_of_a_run_without_a_terminal(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(terminal, "LINE_SECONDS", 0.0)
    config = RunConfig(
        data="cells",
        data_options={"num_cases": 10, "size": 32},
        model_options={"filters": 2, "levels": 1},
        cache_dir=str(tmp_path / "cache"),
        global_batch=2,
        steps=3,
    )
    run(config, SingleDevice(Launch()), tmp_path / "run")
    lines = capsys.readouterr().out.splitlines()
    (first,) = (at for at, line in enumerate(lines) if line.startswith("Compiling the training"))
    assert "2 samples of 32 x 32 x 1. The first step" in lines[first]
    steps = [line for line in lines[first:] if line.startswith("step ")]
    assert re.fullmatch(r"step 1 of 3: loss \d\.\d+", steps[0])
    assert re.fullmatch(r"step 3 of 3: loss \S+, \S+ s a step, 0 s of steps left", steps[2])
    (epoch,) = (line for line in lines if line.startswith("epoch 1"))
    assert "val_dice " in epoch


def test_durations():
    assert [_duration(seconds) for seconds in (45, 720, 12600)] == ["45 s", "12 min", "3.5 h"]
