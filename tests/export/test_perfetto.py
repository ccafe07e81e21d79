import json

import pytest

from tfunet.export.perfetto import trace
from tfunet.record import RunFolder
from tfunet.timing.recorded import OpSpan

BEGIN = 1_700_000_000.0
TIMELINE = """[
{"name": "process_name", "ph": "M", "pid": 0, "args": {"start_time_since_epoch_in_micros":%d}},
{"name": "process_name", "ph": "M", "pid": 1, "args": {"name": "gradients"}},
{"ph": "B", "name": "ALLREDUCE", "ts": 1000, "pid": 1},{"ph": "E", "ts": 3000, "pid": 1}"""


@pytest.fixture
def run(tmp_path):
    """Two processes, of which the second begins later and has made one step less."""
    folder = RunFolder(tmp_path)
    for process, steps in ((0, 2), (1, 1)):
        with folder.spans_table(process) as table:
            at = BEGIN + process
            row = {"step": 0, "name": "start", "begin_seconds": at, "seconds": 0.5}
            table.append(row)
            for step in range(1, steps + 1):
                at = BEGIN + process + step
                table.append({"step": step, "name": "input", "begin_seconds": at, "seconds": 0.1})
                table.append({"step": step, "name": "step", "begin_seconds": at, "seconds": 0.25})
    return tmp_path


def rows(found):
    return {
        (event["pid"], event["tid"]): event["args"]["name"]
        for event in found["traceEvents"]
        if event["name"] == "thread_name"
    }


def shown(found):
    return [
        (event["pid"], event["name"], event["ts"], event["dur"])
        for event in found["traceEvents"]
        if event["ph"] == "X"
    ]


def test_every_process_has_its_rows_and_time_begins_with_the_first(run):
    traced = json.loads(json.dumps(trace(run)))
    assert shown(traced) == [
        (0, "start", 0.0, 500_000.0),
        (0, "first step", 1_000_000.0, 250_000.0),
        (0, "step", 2_000_000.0, 250_000.0),
        (0, "input", 1_000_000.0, 100_000.0),
        (0, "input", 2_000_000.0, 100_000.0),
        (1, "start", 1_000_000.0, 500_000.0),
        (1, "first step", 2_000_000.0, 250_000.0),
        (1, "input", 2_000_000.0, 100_000.0),
    ]
    assert traced["otherData"]["begin_unix_seconds"] == BEGIN
    named = rows(traced)
    at = {
        (event["pid"], event["tid"]) for event in traced["traceEvents"] if event["name"] == "input"
    }
    assert {named[event] for event in at} == {"input"}
    at = {
        (event["pid"], event["tid"]) for event in traced["traceEvents"] if event["name"] == "step"
    }
    assert {named[event] for event in at} == {"run"}


def test_replicas_of_one_process_that_overlap_are_in_rows_of_their_own(tmp_path):
    with RunFolder(tmp_path).spans_table(0) as table:
        for begin, seconds in ((1.0, 0.5), (1.2, 0.5), (2.0, 0.1), (1.8, 0.1)):
            row = {"step": 1, "name": "all-reduce", "begin_seconds": begin, "seconds": seconds}
            table.append(row)
    traced = trace(tmp_path)
    at = [event["tid"] for event in traced["traceEvents"] if event["name"] == "all-reduce"]
    named = [rows(traced)[0, tid] for tid in at]
    assert named == ["all-reduce", "all-reduce", "all-reduce", "all-reduce 2"]


def test_first_step_of_each_attempt_is_named(tmp_path):
    with RunFolder(tmp_path).spans_table(0) as table:
        for at, name in enumerate(("start", "step", "step", "start", "saving", "step", "step")):
            table.append({"step": at, "name": name, "begin_seconds": at, "seconds": 1.0})
    names = [event["name"] for event in trace(tmp_path)["traceEvents"] if event["ph"] == "X"]
    assert names == ["start", "first step", "step", "start", "saving", "first step", "step"]


def test_ops_are_below_their_process(run):
    op = OpSpan(thread="/host:CPU worker", name="Conv2D", begin_seconds=BEGIN + 1.5, seconds=0.01)
    traced = trace(run, {1: [op]})
    (event,) = [event for event in traced["traceEvents"] if event["name"] == "Conv2D"]
    assert (event["pid"], event["ts"], event["dur"]) == (1, 1_500_000.0, 10_000.0)
    assert rows(traced)[1, event["tid"]] == "TensorFlow: /host:CPU worker"


@pytest.mark.parametrize(
    "end", ["", ",\n", "]", ',{"ph": "E", "ts": 4000, "pid": 1}]', ',{"ph": ', ',{"args": {"a": 1}']
)
def test_timeline_of_horovod_is_moved_to_the_time_of_the_run(run, end):
    # The list has no end where Horovod was killed.
    path = run / "profile" / "process-0" / "horovod.json"
    path.parent.mkdir(parents=True)
    path.write_text(TIMELINE % ((BEGIN + 1) * 1e6) + end)
    events = trace(run)["traceEvents"]
    (event,) = [event for event in events if event.get("name") == "ALLREDUCE"]
    assert event["ts"] == 1_001_000.0
    assert event["pid"] not in (0, 1)
    names = [event["args"]["name"] for event in events if event.get("name") == "process_name"]
    assert names == ["process 0", "process 1", "Horovod: timeline", "Horovod: gradients"]


def test_run_that_was_not_traced_says_what_to_do(tmp_path):
    with pytest.raises(ValueError, match="--trace true"):
        trace(tmp_path)
