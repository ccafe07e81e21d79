"""`tfunet plan --measure` and `--out`: constants, short runs, what they change, and the page."""

import json
import re
import statistics

import pytest
from planned_run import facts, machine

from tfunet import cli, exit_codes
from tfunet.bench import machine_constants
from tfunet.bench.machine_constants import Constants
from tfunet.bench.plan_page import best_by_devices, write_page
from tfunet.bench.plan_text import measured_lines, plan_json, plan_text
from tfunet.bench.planned import Plan
from tfunet.bench.short_runs import Measurement, measure
from tfunet.config.run import RunConfig
from tfunet.files.atomic import WriteError
from tfunet.plan.rank import ranked

RUN = """
data = "cells"
patch = [32, 32]
model_options = { filters = 4, levels = 2 }
global_batch = 4
"""


@pytest.fixture(scope="module")
def ranking():
    config = RunConfig(global_batch=8, patch=(64, 64), loss="crossentropy")
    return ranked(config, facts(why_no_stages="none", why_no_tiles="none"), machine())


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TFUNET_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.toml").write_text(RUN)


def test_what_is_measured_comes_before_what_is_predicted(ranking):
    first, second, third = ranking.fitting[:3]
    plan = Plan(
        ranking=ranking,
        measurements=(
            Measurement(predicted=first, seconds=(0.05, 0.04)),
            Measurement(predicted=second, seconds=(0.02,), num_bytes=2**21),
            Measurement(predicted=third, failure="out of memory: no room"),
        ),
    )
    assert plan.best is second
    lines = measured_lines(plan)
    assert f"Measured, {second.layout} is the first, whose step is 56% shorter than" in lines[-2]
    assert lines[-1] == f"{third.layout} failed: out of memory: no room"
    assert plan_text(plan, "run.toml").endswith(second.layout.words(ranking.config))
    table = plan_json(plan)
    assert [row["step_seconds"] for row in table["measured"]] == [0.045, 0.02, None]
    assert table["best"]["backend"] == second.layout.backend
    alone = Plan(ranking=ranking, measurements=plan.measurements[:1])
    assert measured_lines(alone)[-1] == "The first stays the first."
    assert measured_lines(Plan(ranking=ranking)) == []


def test_corrections_are_said(ranking):
    plan = Plan(ranking=ranking, corrections=(("mirrored replicas", 1.25),))
    assert "measured here before: mirrored replicas by 1.25." in plan_text(plan, "run.toml")


def test_the_page_has_two_pictures_and_the_text(ranking, tmp_path):
    write_page(Plan(ranking=ranking), "run.toml", tmp_path / "plan.html")
    page = (tmp_path / "plan.html").read_text()
    assert page.count("<svg") == 2
    assert "Train it so: tfunet train run.toml" in page
    assert "<script" not in page
    with pytest.raises(WriteError):
        write_page(Plan(ranking=ranking), "run.toml", tmp_path / "missing" / "plan.html")
    lines = best_by_devices(ranking.fitting)
    assert [one.layout.num_devices for one in lines["multiworker"]] == [2, 3, 4]


def test_a_signal_ends_measuring_with_what_is_known(ranking):
    assert measure(ranking.config, ranking.fitting[:2], [2]) == []


@pytest.mark.multiprocess
def test_averages_and_exchanges_are_timed_and_kept(cache):
    before = Constants(software={}, steps=[{"kind": "single", "measured": 2.0}])
    found = machine_constants.measured(before, ["multiworker"])
    assert not found.is_stale()
    assert found.steps == before.steps
    assert found.busy >= 1
    assert found.core["flops_per_second"] > 1e8
    sizes, seconds = zip(*found.averages["multiworker"], strict=True)
    assert sizes == tuple(sorted(sizes))
    assert 0 < seconds[-1] < 10
    assert len(found.exchanges["multiworker"]) == 3


@pytest.mark.multiprocess
def test_the_best_layouts_are_measured_and_remembered(cache, tmp_path, capfd):
    machine_constants.keep(
        Constants(
            software=machine_constants.software(),
            date="2026-11-28",
            core={"flops_per_second": 3e10, "bytes_per_second": 2e9},
            busy=1.1,
        )
    )
    command = ["plan", "run.toml", "--devices", "1", "--measure", "1", "--out", "plan.html"]
    assert cli.main(command) == exit_codes.OK
    shown = capfd.readouterr().out
    assert re.search(r"^measured +step \(ms\) +predicted", shown, re.MULTILINE)
    assert "The first stays the first." in shown
    assert (tmp_path / "plan.html").is_file()
    # Of two runs, in turns.
    steps = machine_constants.read().steps
    assert [step["kind"] for step in steps] == ["single"] * 2
    # A later plan is corrected by it, and measures nothing.
    assert cli.main(["plan", "run.toml", "--json"]) == exit_codes.OK
    table = json.loads(capfd.readouterr().out)
    assert list(table["corrections"]) == ["single"]
    took = statistics.median(step["measured"] for step in steps)
    assert any(row["step_seconds"] == pytest.approx(took) for row in table["layouts"])
    assert table["measured"] == []
