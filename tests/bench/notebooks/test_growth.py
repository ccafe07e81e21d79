"""What trains under a cap, read from made-up sweeps whose truth is known."""

from dataclasses import replace

import pytest
from growth_sweep import CAP, write_growth_sweep
from synthetic_sweep import (
    make_study,
    write_sweep,
)

from tfunet.bench.analysis.sweep_summary import shared_environment
from tfunet.bench.notebooks.growth import cost_rows, ended, growth_sentences, read_growth, size_rows
from tfunet.bench.notebooks.growth_plots import GROWTH, growth_figure
from tfunet.bench.records.sweep_record import read_sweep
from tfunet.bench.report.plots import drawn
from tfunet.machine.cpu_memory import LIMIT
from tfunet.record import RunFolder


@pytest.fixture(scope="module")
def growth(tmp_path_factory):
    folder = tmp_path_factory.mktemp("growth")
    write_growth_sweep(folder)
    return read_growth(read_sweep(folder))


def test_the_largest_size_of_each_way_is_found(growth):
    assert growth.cap == CAP
    assert growth.ways == ("without", "swap auto", "swap 0.5")
    assert [growth.largest(way).label for way in growth.ways] == [
        "48 x 48 x 48",
        "48 x 48 x 48",
        "80 x 80 x 80",
    ]


def test_what_does_not_fit_is_a_row(growth):
    rows = size_rows(growth)
    assert [row["everything kept (MiB)"] for row in rows] == [str(size) for size in (32, 48, 80)]
    assert rows[2] == {
        "size": "80 x 80 x 80",
        "everything kept (MiB)": "80",
        f"without, in {CAP}": "out of memory",
        f"swap auto, in {CAP}": "out of memory",
        f"swap 0.5, in {CAP}": "trains",
    }


def test_the_planted_cost_comes_out(growth):
    rows = cost_rows(growth)
    # Five that trained with support: nothing without it, and none of the failed.
    assert [(row["size"], row["budget"]) for row in rows] == [
        ("32 x 32 x 32", "swap auto"),
        ("32 x 32 x 32", "swap 0.5"),
        ("48 x 48 x 48", "swap auto"),
        ("48 x 48 x 48", "swap 0.5"),
        ("80 x 80 x 80", "swap 0.5"),
    ]
    assert rows[4]["times as long"] == "1.25"
    assert rows[4]["predicted"] == "1.11"
    assert rows[4]["swapped, recomputed, split"] == "1, 1, 0"
    assert rows[4]["step (ms)"] == "736 [704, 768]"


def test_the_growth_is_said_with_its_cost(growth):
    assert growth_sentences(growth) == [
        "In 200MiB the largest size that trains without support is 48 x 48 x 48.",
        "With swap auto it is 48 x 48 x 48, 1.00 times the voxels; a step takes 1.10 "
        "times that with everything kept, which needs 48 MiB.",
        "With swap 0.5 it is 80 x 80 x 80, 4.63 times the voxels; a step takes 1.25 "
        "times that with everything kept, which needs 80 MiB.",
    ]


def test_a_size_that_trains_only_sometimes_does_not(tmp_path):
    write_growth_sweep(tmp_path, killed={(48, None, 2)})
    growth = read_growth(read_sweep(tmp_path))
    assert growth.largest("without").label == "32 x 32 x 32"
    assert size_rows(growth)[1]["without, in 200MiB"] == "1 of 2: killed by SIGSEGV"


def test_without_runs_with_everything_kept_there_is_no_cost(tmp_path):
    write_growth_sweep(tmp_path, kept=None, repeats=1)
    growth = read_growth(read_sweep(tmp_path))
    assert growth.largest("swap 0.5").label == "80 x 80 x 80"
    assert {row["times as long"] for row in cost_rows(growth)} == {"-"}
    assert growth_sentences(growth)[-1].endswith("4.63 times the voxels.")
    assert "<svg" in drawn("growth", *GROWTH, lambda: growth_figure(growth)).svg


def test_a_sweep_without_support_is_refused_with_what_to_do(tmp_path):
    write_sweep(tmp_path, make_study(repeats=1))
    for trial in read_sweep(tmp_path).trials:
        RunFolder(trial.folder).write_data({"name": "cells", "patch": (64, 64)})
    with pytest.raises(ValueError, match=r'swap = \["none", "auto"\] in its \[grid\]'):
        read_growth(read_sweep(tmp_path))


def test_caps_of_a_study_are_no_different_machines(tmp_path):
    write_growth_sweep(tmp_path, repeats=1)
    sweep = read_sweep(tmp_path)
    limits = {"200MiB": "200", "8GiB": "8192"}
    trials = [
        replace(trial, environment={**trial.environment, f"switches.{LIMIT}": limits[cap]})
        for trial in sweep.trials
        if trial.result is not None and (cap := trial.config.cpu_memory)
    ]
    assert shared_environment(trials)[1] == {}
    # Only the environment tells of a cap that somebody set beside the study.
    by_hand = [replace(trial, config=replace(trial.config, cpu_memory=None)) for trial in trials]
    assert list(shared_environment(by_hand)[1]) == [f"switches.{LIMIT}"]


def test_records_that_tell_no_size_are_refused(tmp_path):
    write_growth_sweep(tmp_path, repeats=1)
    for trial in read_sweep(tmp_path).trials:
        (trial.folder / "data.json").unlink()
    with pytest.raises(ValueError, match="The size of samples is not recorded"):
        read_growth(read_sweep(tmp_path))


def test_the_figure_shows_every_way_and_the_cap(growth):
    svg = drawn("growth", *GROWTH, lambda: growth_figure(growth)).svg
    for words in ("without", "swap auto", "swap 0.5", "cap, 200MiB", "everything kept"):
        assert f">{words}<" in svg


def test_a_cell_without_trials_is_told_apart_from_one_that_failed(growth):
    assert ended(()) == "-"
    trained = growth.sizes[0].ways["without"]
    assert ended(trained) == "trains"
    lost = replace(trained[0], result=None, state="failed", reason="correctness checks failed")
    assert ended([lost]) == "failed"
