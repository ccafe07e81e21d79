"""The contract's checks on finished runs; each raises AssertionError where it is broken."""

from itertools import pairwise

import numpy as np

from tfunet.bench.records.run_tables import COUNTS
from tfunet.bench.records.shown_cases import read_shown_cases
from tfunet.timing.recorded import INSIDE, read_spans


def same_weights(run, single, tolerance=1e-6):
    """k steps on 2 replicas give the weights of k steps on 1 with the same global batch."""
    for weight, other in zip(run.weights, single.weights, strict=True):
        np.testing.assert_allclose(weight, other, rtol=0, atol=tolerance)


def same_network(run, single, tolerance=1e-6, *, has_tiles=False):
    """What predict, evaluate, export and best load of a run is the network of one device.

    One that was trained on tiles predicts windows of their size.
    """
    from tfunet.prediction.network import load_network  # Only this one needs TensorFlow.
    from tfunet.record import RunFolder

    networks = [load_network(RunFolder(finished.folder)) for finished in (run, single)]
    assert len({(network.channels, network.num_classes) for network in networks}) == 1
    assert (networks[0].patch == networks[1].patch) != has_tiles
    weights = [network.model(network.patch, "float32").get_weights() for network in networks]
    for ours, theirs in zip(*weights, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=tolerance)


def same_samples(run, single):
    """Step k holds the same samples; the epochs differ from each other."""
    hashes = [row["samples_hash"] for row in run.rows("epochs.csv")]
    assert hashes == [row["samples_hash"] for row in single.rows("epochs.csv")]
    assert len(set(hashes)) == len(hashes)


def same_losses(run, single):
    """The loss of each step and the metrics of each epoch are those of one device."""
    for row, other in zip(run.rows("steps.csv"), single.rows("steps.csv"), strict=True):
        assert abs(float(row["loss"]) - float(other["loss"])) < 2e-6
    for row, other in zip(run.rows("epochs.csv"), single.rows("epochs.csv"), strict=True):
        for name in ("loss", "val_loss"):
            assert abs(float(row[name]) - float(other[name])) < 2e-6


def same_scores(run, single):
    """The counts of every case, and of all pixels together, are those of one device."""
    assert run.rows("cases.csv") == single.rows("cases.csv")
    assert run.rows("confusion.csv") == single.rows("confusion.csv")


def shown_cases_have_their_scores(run):
    """The pictures of three cases hold each pixel that was counted: whole images, no part twice."""
    shown = read_shown_cases(run.folder)
    counts = {row["case"]: row for row in run.rows("cases.csv")}
    assert [case.rank for case in shown.cases] == ["worst", "median", "best"]
    for case in shown.cases:
        (plane,) = case.planes
        predicted, truth = plane.labels == 1, plane.mask == 1
        found = (predicted & truth).sum(), (predicted & ~truth).sum(), (truth & ~predicted).sum()
        row = counts[case.case_id]
        assert found == tuple(int(row[name]) for name in COUNTS), case.case_id


def only_the_chief_wrote(audit, folder):
    """No other process opened a file of the run for writing, or moved one there."""
    lines = [line.split(" ", 1) for line in audit.read_text().splitlines()]
    written = {(index, path) for index, path in lines if str(folder) in path}
    assert written, "The chief wrote nothing: the audit does not work."
    assert {index for index, _ in written} == {"0"}


def ended_at_once(run, process):
    """A killed process ended the whole run, non-zero, soon, and is named."""
    assert run.exit_code == 3
    assert f"process {process}" in run.failure["reason"]
    assert "SIGKILL" in run.failure["reason"]
    assert not (run.folder / "result.json").exists()
    # The step after the checkpoint is where it is killed. Unnoticed, it would be ended after 500 s.
    killed, ended = (run.folder / name for name in ("checkpoint.npz", "failure.json"))
    assert ended.stat().st_mtime - killed.stat().st_mtime < 200


def bit_identical(run, uninterrupted):
    """All variables of the last checkpoint have the same bits."""
    for weight, other in zip(run.weights, uninterrupted.weights, strict=True):
        assert weight.dtype == other.dtype
        assert weight.tobytes() == other.tobytes()


def same_records(run, uninterrupted):
    """The tables have the same rows but for times; means over an epoch in two parts round."""
    for name in ("steps.csv", "epochs.csv", "cases.csv", "confusion.csv"):
        for row, other in zip(run.rows(name), uninterrupted.rows(name), strict=True):
            for column in row:
                if "seconds" in column or column == "traced":
                    continue
                if column == "loss":
                    assert abs(float(row[column]) - float(other[column])) < 1e-6
                else:
                    assert row[column] == other[column], (name, column)


def whole_trace(folder, *, processes, steps, averages):
    """Every process tells of every step what is in it, and of all its time what it did."""
    spans = read_spans(folder)
    assert list(spans) == list(range(processes))
    for rows in spans.values():
        made = [span for span in rows if span.name in ("first step", "step")]
        # Steps after the checkpoint were made again.
        assert {span.step for span in made} == set(range(1, steps + 1))
        for step in made:
            inside = [span for span in rows if span.name in INSIDE and within(span, step)]
            named = {span.name for span in inside}
            assert named == ({"input", "all-reduce"} if averages else {"input"})
        run = [span for span in rows if span.name not in INSIDE]
        gaps = [
            after.begin_seconds - (before.begin_seconds + before.seconds)
            for before, after in pairwise(run)
            if after.name != "start"
        ]
        assert max(map(abs, gaps)) < 0.01
        assert sum(span.name == "start" for span in run) == 2


def within(span, other):
    """Whether one span lies in another, give or take 2 ms; both are of the host's clock."""
    begin, end = other.begin_seconds - 0.002, other.begin_seconds + other.seconds + 0.002
    return begin <= span.begin_seconds and span.begin_seconds + span.seconds <= end
