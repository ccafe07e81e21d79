"""The time of the first step of a run beside this one."""

import os

import pytest

from tfunet.config.run import RunConfig
from tfunet.record import RunFolder
from tfunet.training.earlier_first_step import earlier_first_step

CONFIG = RunConfig(model_options={"filters": 4})


def write_run(path, seconds, *, config=CONFIG, step=1, traced=1, age=0):
    folder = RunFolder(path)
    folder.create()
    folder.write_config(config)
    table = folder.steps_table()
    table.append({"step": step, "seconds": seconds, "loss": 1.0, "traced": traced})
    table.close()
    os.utime(path, (1e9 - age, 1e9 - age))


def test_it_is_that_of_the_latest_run_with_the_same_network(tmp_path):
    own = tmp_path / "own"
    write_run(own, 99.0)
    assert earlier_first_step(own, CONFIG) is None
    write_run(tmp_path / "old", 7.0, age=30)
    write_run(tmp_path / "new", 5.5, age=20)
    other = RunConfig(model_options={"filters": 8})
    write_run(tmp_path / "other", 80.0, config=other, age=10)
    assert earlier_first_step(own, CONFIG) == (tmp_path / "new", 5.5)
    assert earlier_first_step(own, other) == (tmp_path / "other", 80.0)
    # One whose folder is not there yet.
    assert earlier_first_step(tmp_path / "nowhere/run", CONFIG) is None


@pytest.mark.parametrize(
    "harm",
    [
        lambda run: (run / "config.json").write_text("{"),
        lambda run: (run / "steps.csv").write_text("step,seconds,loss,traced\n1,soon,1,1\n"),
        lambda run: (run / "steps.csv").write_text("step,seconds,loss,traced\n"),
        lambda run: (run / "steps.csv").unlink(),
        lambda run: (run / "steps.csv").write_text("step,seconds,loss,traced\n7,3.0,1,1\n"),
        lambda run: (run / "steps.csv").write_text("step,seconds,loss,traced\n1,3.0,1,0\n"),
    ],
)
def test_what_is_damaged_or_did_not_begin_there_is_passed_over(harm, tmp_path):
    write_run(tmp_path / "bad", 3.0)
    harm(tmp_path / "bad")
    write_run(tmp_path / "good", 5.5, age=30)
    assert earlier_first_step(tmp_path / "own", CONFIG) == (tmp_path / "good", 5.5)
