"""Layouts ranked: which is first, which are refused and why, what another machine would give."""

from dataclasses import replace

import pytest
from planned_run import facts, graph, machine

from tfunet.config.amount import MIB
from tfunet.config.run import RunConfig
from tfunet.plan.layout import Layout
from tfunet.plan.predict import Predictor
from tfunet.plan.rank import by_time, ranked, short_list
from tfunet.plan.refusal import Refusals
from tfunet.plan.text import line, nothing_fits, ranking_json, ranking_text

NO_STAGES = "The model is a class of its own."


def config(**keys):
    return RunConfig(**{"global_batch": 8, "patch": (64, 64), "loss": "crossentropy", **keys})


def rank(*, run=None, on=None, **keys):
    known = facts(why_no_stages=NO_STAGES) if run is None else run
    return ranked(config(**keys), known, on or machine())


def test_the_fastest_comes_first():
    ranking = rank()
    seconds = [one.seconds for one in ranking.fitting]
    assert ranking.best.layout == Layout(backend="mirrored", num_replicas=4)
    assert seconds == pytest.approx(sorted(seconds), rel=0.02)
    assert all(one.fits for one in ranking.fitting)


def test_of_layouts_that_are_alike_the_simplest_comes_first():
    predictor = Predictor(facts(update=facts().update._replace(seconds=0.0)), machine())
    found = [predictor.predict(layout) for layout in (Layout(accumulation=2), Layout())]
    assert [one.layout for one in by_time(found)] == [Layout(), Layout(accumulation=2)]


@pytest.mark.parametrize(
    ("layout", "said", "more"),
    [
        (Layout(), None, {}),
        (Layout(backend="mirrored", num_replicas=3), "cannot be divided by num_replicas=3", {}),
        (Layout(backend="mirrored", stages=2), NO_STAGES, {}),
        (Layout(backend="mirrored", num_replicas=8), "runs on one machine", {}),
        (Layout(backend="horovod", num_replicas=2), "is not installed", {}),
        (Layout(backend="multiworker", split=(65, 1)), "cuts axis 0 into 65 parts", {}),
        (
            Layout(backend="multiworker", split=(2, 1)),
            "xla and split exclude each other",
            {"xla": True},
        ),
        (Layout(tiling=(64, 1)), "too many tiles", {}),
        (Layout(tiling=(16, 16)), None, {}),
        (Layout(tiling=(2, 2), accumulation=2), "each tile is a pass of its own", {}),
        (
            Layout(backend="mirrored", num_replicas=2),
            "another number of replicas",
            {"scale_learning_rate": True},
        ),
    ],
)
def test_refusals(layout, said, more):
    refusals = Refusals(
        config(**more),
        facts(why_no_stages=NO_STAGES),
        machine(hosts=2),
        {"horovod": "horovod is not installed"},
    )
    reason = refusals.reason(layout)
    assert reason is None if said is None else said in reason


def test_what_normalizes_by_the_samples_of_a_pass_keeps_their_number():
    run = facts(by_batch=("bn",))
    refusals = Refusals(config(), run, machine())
    assert "The layer 'bn' normalizes" in refusals.reason(Layout(accumulation=2))
    assert "with 4 instead of 8" in refusals.reason(Layout(backend="mirrored", num_replicas=2))
    assert refusals.reason(Layout(backend="multiworker", split=(2, 1))) is None


def test_tiles_of_whole_images_are_other_samples():
    run = facts(tiled_patch=(128, 128))
    assert "set patch = [64, 64]" in Refusals(config(), run, machine()).reason(
        Layout(tiling=(2, 2))
    )


def test_cores_have_their_share_of_devices():
    cores = machine(is_cpu=True, devices=2, cores=2)
    refusals = Refusals(config(cores_per_replica=2), facts(), cores)
    assert "needs 4 CPU cores" in refusals.reason(Layout(backend="mirrored", num_replicas=2))


def test_a_reason_is_told_once():
    ranking = rank()
    assert sum(one.reason == NO_STAGES for one in ranking.refused) == 1
    assert ranking.num_refused > len(ranking.refused)


def test_where_nothing_fits_the_nearest_is_named_with_what_is_missing():
    tiny = machine(memory_bytes=2 * MIB)
    ranking = rank(on=tiny)
    assert ranking.best is None
    assert "MiB are missing" in nothing_fits(ranking)
    with pytest.raises(ValueError, match=r"No layout fits surely\. The nearest is"):
        ranking_text(ranking)


def test_what_does_not_fit_is_tried_with_large_model_support():
    tight = machine(memory_bytes=60 * MIB, devices=1)
    run = facts(why_no_stages=NO_STAGES, why_no_tiles="no tiles")
    ranking = rank(run=run, on=tight)
    assert ranking.best.layout.swap == "60MiB"
    # With twice the memory one sample at a time fits.
    assert [name for name, _ in ranking.what_if] == ["one device more", "twice the memory"]


def test_a_faster_link_helps_where_messages_take_long():
    slow = replace(machine().device, link_bytes_per_second=4e8)
    ranking = rank(on=machine(device=slow))
    assert "a link twice as fast" in dict(ranking.what_if)
    quick = replace(machine().device, link_bytes_per_second=1e12)
    assert "a link twice as fast" not in dict(rank(on=machine(device=quick)).what_if)


def test_the_short_list_has_one_schedule_of_each_place():
    ranking = rank(run=facts(graph=graph(), why_no_tiles="no tiles"))
    chosen = short_list(ranking, 3)
    assert chosen[0] is ranking.best
    assert len({one.layout for one in chosen}) == 3


def test_words_and_json_name_the_same_layouts():
    ranking = rank()
    text, table = ranking_text(ranking), ranking_json(ranking)
    assert line(ranking, ranking.best, "run.toml") == (
        "tfunet train run.toml --backend mirrored --num_replicas 4 --replica_batch 2"
    )
    assert table["layouts"][0]["layout"] == {"backend": "mirrored", "num_replicas": 4}
    assert table["num_refused"] == ranking.num_refused
    assert NO_STAGES.rstrip(".") in text
    assert "Why the first: computation is" in text
    rows = [line for line in text.splitlines() if line.startswith("1 ")]
    assert len(rows) == 1
    assert "mirrored, 4 replicas" in rows[0]


def test_weights_and_states_that_may_leave_make_a_layout_fit():
    # The network takes 12 MiB for weights and states alone.
    small = rank(on=machine(memory_bytes=8 * MIB)).best
    assert small.layout.swap is not None
    assert small.num_bytes <= 8 * MIB
    assert small.parts.copies > 0
