from itertools import pairwise

import pytest

from tfunet.record import RunFolder
from tfunet.timing.recorded import read_spans
from tfunet.timing.spans import Spans


def run_names(spans):
    return [(span.step, span.name) for span in spans if span.name not in ("input", "all-reduce")]


def test_everything_from_the_start_on_is_in_one_span_after_another(tmp_path):
    told = []
    spans = Spans(1000.0, lambda *given: told.append(given))
    spans.begin("opening the data")
    spans.begin("decoding")
    spans.begin("decoding")
    # What came before the file was there is written too.
    spans.write_to(RunFolder(tmp_path).spans_table(3), 0)
    spans.begin("step 1", 1)
    spans.add("input", 2000.0, 2000.5)
    spans.begin("callbacks after step 1")
    spans.begin("step 2", 2)
    spans.begin("step 3", 3)
    spans.begin("evaluation")
    spans.begin("evaluation")
    spans.close()
    assert told[-1] == ("evaluation", None)
    assert told[3] == ("step 1", 1)
    (found,) = read_spans(tmp_path).values()
    assert run_names(found) == [
        (0, "start"),
        (0, "opening the data"),
        (0, "decoding"),
        (1, "first step"),
        (1, "callbacks after step"),
        (2, "step"),
        (3, "step"),
        (3, "evaluation"),
    ]
    run = [span for span in found if span.name != "input"]
    for before, after in pairwise(run):
        assert before.begin_seconds + before.seconds == pytest.approx(after.begin_seconds)
    assert run[0].begin_seconds == 1000.0
    (inside,) = [span for span in found if span.name == "input"]
    assert (inside.begin_seconds, inside.seconds) == (2000.0, 0.5)


def test_what_a_killed_attempt_did_stays(tmp_path):
    folder = RunFolder(tmp_path)
    for last, steps in ((0, (1, 2, 3)), (2, (3, 4))):
        spans = Spans(0.0, lambda *given: None)
        spans.write_to(folder.spans_table(0), last)
        for step in steps:
            spans.begin(f"step {step}", step)
        if last:
            spans.close()  # The first attempt is killed in step 3.
    first = [(0, "start"), (1, "first step"), (2, "step")]
    again = [(2, "start"), (3, "first step"), (4, "step")]
    assert run_names(read_spans(tmp_path)[0]) == [*first, *again]


def test_run_without_spans_says_what_to_do(tmp_path):
    RunFolder(tmp_path).spans_table(1).close()
    with pytest.raises(ValueError, match="--trace true"):
        read_spans(tmp_path)
