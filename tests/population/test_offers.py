import contextlib
import functools
import gc
import io
import json
import math
import os
import socket
import threading
import time
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pytest

from tfunet.files.typed import RecordError
from tfunet.population.meeting import PopulationFolder
from tfunet.population.offers import Offer, from_bfloat16, load, publish, read, to_bfloat16
from tfunet.population.pairing import partner
from tfunet.population.turn import Turn, mates, num_places
from tfunet.record import RunFolder

VALUES = [np.array([1.1, -2.7], np.float32), np.array([3, 2**60], np.int64)]
OFFER = Offer(score=0.5, hyperparameters={"learning_rate": 0.1}, is_rounded=False)


@pytest.fixture
def trainers(tmp_path):
    """Two trainers that have joined, and whose runs hold their folders."""
    meetings = [PopulationFolder(tmp_path / "meeting", trainer) for trainer in (0, 1)]
    for meeting in meetings:
        run = tmp_path / f"run-{meeting.trainer}"
        RunFolder(run).create()
        meeting.join(run)
    return meetings


def run_of(meeting):
    return RunFolder(meeting.folder.parent / f"run-{meeting.trainer}")


def open_below(folder):
    """Return the files below a folder that this process has open: others are of other tests."""
    found = []
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # It has been closed.
            found.append(os.readlink(link))
    return [path for path in found if path.startswith(str(folder))]


def test_a_model_arrives_to_the_bit(trainers):
    publish(trainers[0], 3, VALUES, OFFER)
    assert trainers[1].state(3, 0) == "here"
    assert read(trainers[1], 3, 0) == OFFER
    offer, loaded = load(trainers[1], 3, 0, VALUES)
    assert offer == OFFER
    assert [value.tobytes() for value in loaded] == [value.tobytes() for value in VALUES]
    assert [value.dtype for value in loaded] == [value.dtype for value in VALUES]


def test_a_rounded_model_has_half_the_bytes_and_a_bounded_error(trainers):
    rng = np.random.default_rng(0)
    weights = (rng.normal(size=4000) * 10.0 ** rng.integers(-30, 30, 4000)).astype(np.float32)
    rounded = Offer(score=None, hyperparameters={}, is_rounded=True)
    publish(trainers[0], 1, [weights, VALUES[1]], rounded)
    size = (trainers[0].folder / "round-00001/trainer-0.npz").stat().st_size
    publish(trainers[0], 2, [weights, VALUES[1]], OFFER)
    assert size < 0.6 * (trainers[0].folder / "round-00002/trainer-0.npz").stat().st_size
    offer, (loaded, whole) = load(trainers[1], 1, 0, [weights, VALUES[1]])
    assert offer.is_rounded
    assert np.array_equal(whole, VALUES[1])
    assert loaded.dtype == np.float32
    assert np.max(np.abs(loaded / weights - 1)) <= 2**-8


def test_a_scalar_stays_one_where_models_are_rounded(trainers):
    # The loss scale of mixed_float16; a transposed kernel.
    values = [np.array(2.0**15, np.float32), np.arange(6, dtype=np.float32).reshape(2, 3).T]
    rounded = Offer(score=None, hyperparameters={}, is_rounded=True)
    publish(trainers[0], 1, values, rounded)
    _, loaded = load(trainers[1], 1, 0, values)
    assert [value.shape for value in loaded] == [(), (3, 2)]
    assert all(np.array_equal(one, other) for one, other in zip(loaded, values, strict=True))


def test_rounding_is_to_the_nearest_and_keeps_what_is_not_finite():
    values = np.array([1, 1 + 2**-8, 1 + 3 * 2**-8, np.inf, -np.inf, 0, -0.0], np.float32)
    assert from_bfloat16(to_bfloat16(values)).tolist() == [
        *(1, 1, 1 + 4 * 2**-8, np.inf, -np.inf, 0, -0.0)
    ]
    # The payload of this NaN would round up to infinity.
    odd = np.array([0x7FFFFFFF, 0xFFFFFFFF], np.uint32).view(np.float32)
    assert np.isnan(from_bfloat16(to_bfloat16(odd))).all()


@pytest.mark.parametrize("what", ["torn", "other shape", "other type", "fewer", "no facts"])
def test_a_model_that_cannot_be_used_is_named(trainers, what):
    path = trainers[0].folder / "round-00001/trainer-0.npz"
    changed = {
        "other shape": [VALUES[0][:1], VALUES[1]],
        "other type": [VALUES[0].astype(np.float64), VALUES[1]],
        "fewer": VALUES[:1],
    }
    publish(trainers[0], 1, changed.get(what, VALUES), OFFER)
    if what == "torn":
        path.write_bytes(path.read_bytes()[:-40])
    if what == "no facts":
        np.savez(path, variable_00000=VALUES[0])
    with pytest.raises(RecordError, match=r"round-00001/trainer-0.npz cannot be used"):
        load(trainers[1], 1, 0, VALUES)


def claims(shape, dtype="<f4", content=bytes(8)):
    """Return an array as a file that claims to be of another shape."""
    header = io.BytesIO()
    fields = {"descr": dtype, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(header, fields)
    return header.getvalue() + content


def said(**changes):
    table = {"score": 0.5, "hyperparameters": {"learning_rate": 0.1}, "is_rounded": False}
    array = io.BytesIO()
    np.save(array, np.frombuffer(json.dumps({**table, **changes}).encode(), np.uint8))
    return array.getvalue()


HOSTILE = {
    # Nine trillion numbers, 36 TiB.
    "a claim": ({"facts": said(), "variable_00000": claims((9 * 2**40,))}, "claims to be"),
    "a claim of facts": ({"facts": claims((2**45,), "|u1")}, "claims to be"),
    "an odd product": ({"facts": said(), "variable_00000": claims((2**62, 4))}, "claims to be"),
    "a negative shape": ({"facts": said(), "variable_00000": claims((-1, -2))}, "cannot be used"),
    "programs": ({"facts": said(), "variable_00000": claims((1,), "|O")}, "cannot be used"),
    "a bomb": (
        {"facts": said(), "variable_00000": claims((2**26,), content=bytes(2**28))},
        "it unpacks to more than 1 MiB",
    ),
    "facts that are a bomb": (
        {"facts": claims((2**28,), "|u1", bytes(2**28))},
        "it unpacks to more than 1 MiB",
    ),
    "many members": (
        {"facts": said(), **{f"variable_{at}": claims((2,)) for at in range(20_000)}},
        "it unpacks to more than",
    ),
    "a learning rate of NaN": (
        {"facts": said(hyperparameters={"learning_rate": math.nan})},
        "learning_rate|hyperparameters",
    ),
    "an infinite one": ({"facts": said(hyperparameters={"momentum": math.inf})}, "expected float"),
    "a score of NaN": ({"facts": said(score=math.nan)}, "score: expected float"),
    "a text as score": ({"facts": said(score="1")}, "score: expected"),
}


@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
@pytest.mark.parametrize("what", HOSTILE)
def test_nothing_that_a_model_claims_is_believed(trainers, what, compression):
    members, words = HOSTILE[what]
    path = trainers[0].folder / "round-00001/trainer-0.npz"
    path.parent.mkdir(parents=True)
    with zipfile.ZipFile(path, "w", compression, compresslevel=1) as archive:
        for name, content in members.items():
            archive.writestr(f"{name}.npy", content)
    tracemalloc.start()
    with pytest.raises(RecordError, match=words):
        load(trainers[1], 1, 0, VALUES)
    with contextlib.suppress(RecordError):
        read(trainers[1], 1, 0)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 2**25


def test_a_model_that_is_a_pipe_holds_nobody_up(trainers):
    path = trainers[0].folder / "round-00001/trainer-0.npz"
    path.parent.mkdir(parents=True)
    os.mkfifo(path)
    assert trainers[1].state(1, 0) == "gone"
    for reads in (functools.partial(load, like=VALUES), read):
        with pytest.raises(RecordError, match="it is a pipe"):
            reads(trainers[1], 1, 0)


def test_a_trainer_is_awaited_while_it_runs_and_not_after_its_end(trainers, tmp_path):
    first, second = trainers
    assert second.state(1, 0) == "gone"  # It has joined, and nothing holds its folder.
    second.forget(0)
    assert second.state(1, 0) == "awaited"  # It may still start.
    first.join(run_of(first).path)
    with run_of(first).locked():
        assert second.state(1, 0) == "awaited"
        publish(first, 2, VALUES, OFFER)
        # It is past this round, and deletes a model only if this trainer is past it, too.
        assert [second.state(round, 0) for round in (1, 2, 3)] == ["gone", "here", "awaited"]
        run_of(first).write_failure("killed", 3)
        assert second.state(3, 0) == "gone"
        run_of(first).clear_failure()
    # Locks of other hosts cannot be seen: their runs are taken for alive.
    path = first.folder / "trainer-0.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "host": "elsewhere"}))
    assert second.state(3, 0) == "awaited"
    run_of(first).write_result({})
    assert second.state(3, 0) == "gone"
    path.write_text("{")
    assert second.state(3, 0) == "awaited"


def test_models_are_kept_until_their_readers_are_past_the_round(trainers):
    first, second = trainers
    with run_of(first).locked(), run_of(second).locked():
        for round in (1, 2, 3):
            publish(first, round, VALUES, OFFER)
        publish(second, 1, VALUES, OFFER)
        readers = {round: [1] for round in first.rounds()}
        first.clear(readers)
        # Trainer 1 may be killed now, and take round 1 again.
        assert first.rounds() == [1, 2, 3]
        publish(second, 3, VALUES, OFFER)
        first.clear(readers)
        assert first.rounds() == [3]
        run_of(second).write_result({})
        first.clear(readers)
        assert first.rounds() == []


def test_partial_files_are_no_models(trainers):
    publish(trainers[0], 1, VALUES, OFFER)
    path = trainers[0].folder / "round-00001/trainer-0.npz"
    path.rename(path.with_name(f".partial-12-ab-{path.name}"))
    assert trainers[1].state(1, 0) == "gone"


def test_a_model_is_seen_only_when_all_of_it_is_written(trainers):
    """As Ray Tune's test of a trial that saves for seconds while others want its model."""
    first, second = trainers
    begun, goes_on = threading.Event(), threading.Event()

    class Slow:
        def __array__(self, dtype=None, copy=None):
            begun.set()
            assert goes_on.wait(60)
            return VALUES[0]

    slow = [Slow(), VALUES[1]]
    with run_of(first).locked(), run_of(second).locked():
        writer = threading.Thread(target=publish, args=(first, 1, slow, OFFER))
        writer.start()
        try:
            assert begun.wait(60)
            # Half of it is in a file now.
            assert len(list(first.folder.glob("round-00001/*"))) == 1
            assert second.state(1, 0) == "awaited"
        finally:
            goes_on.set()
        deadline = time.monotonic() + 60
        while (state := second.state(1, 0)) == "awaited":
            assert time.monotonic() < deadline
        assert state == "here"
        _, loaded = load(second, 1, 0, VALUES)
        writer.join()
    assert loaded[0].tobytes() == VALUES[0].tobytes()


def test_mates_share_a_place_and_take_turns_in_it(tmp_path, monkeypatch):
    assert [mates(trainer, 5, 2) for trainer in range(5)] == [[2, 4], [3], [0, 4], [1], [0, 2]]
    assert mates(1, 3, 3) == []
    first, second = Turn(tmp_path / "place"), Turn(tmp_path / "place")
    assert first.take()
    assert first.take()
    assert not second.take()
    first.give_back()
    assert second.take()
    assert not first.take()
    for text, number in (("2", 2), ("", None), ("x", None), ("0", None)):
        monkeypatch.setenv("TFUNET_PLACES", text)
        assert num_places() == number


def test_an_address_leads_to_the_run_from_wherever_the_folder_is_seen(trainers):
    table = json.loads((trainers[0].folder / "trainer-0.json").read_text())
    assert table == {"folder": os.path.join("..", "run-0"), "host": socket.gethostname()}


def test_a_long_tournament_keeps_few_models_and_opens_few_files(tmp_path):
    meetings = [PopulationFolder(tmp_path, trainer) for trainer in range(4)]
    used = []
    tracemalloc.start()
    for round in range(1, 11):
        gc.collect()
        used.append(tracemalloc.get_traced_memory()[0])
        for meeting in meetings:
            publish(meeting, round, VALUES, OFFER)
        for meeting in meetings:
            other = partner(meeting.trainer, 4, seed=0, round=round)
            # Nobody takes from a model that is deleted already.
            assert load(meeting, round, other, VALUES)
            readers = {
                past: [partner(meeting.trainer, 4, seed=0, round=past)] for past in meeting.rounds()
            }
            meeting.clear(readers)
    tracemalloc.stop()
    assert max(used[5:]) < used[4] + 2**16
    assert all(meeting.rounds() == [10] for meeting in meetings)
    assert open_below(tmp_path) == []
