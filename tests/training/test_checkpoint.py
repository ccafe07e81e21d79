"""A damaged checkpoint is named before training; nothing of it is used."""

import io
import random
import tracemalloc

import keras
import numpy as np
import pytest
from mutants import HOSTILE, MUTATIONS, mutated_json, refusal

from tfunet.backend import Launch
from tfunet.files.typed import RecordError
from tfunet.record import RunFolder
from tfunet.single_device import SingleDevice
from tfunet.training import checkpoint
from tfunet.training.held import EveryVariable
from tfunet.training.progress import FACTS, Progress

CALLBACKS = {"0": {"best": float("inf"), "wait": 2}}
FOUND = Progress(
    step=3,
    step_seconds=[0.5],
    logs={"loss": float("nan")},
    replicas_from_step=[(1, 1)],
    began=[(1, 2.5)],
)


def restored(folder, variables):
    backend = SingleDevice(Launch())
    topology = backend.start()
    held = EveryVariable(backend, topology, keras.Sequential(), variables)
    return checkpoint.restore(folder, backend, topology, held, FACTS)


def resumed(folder, variables):
    _, facts = restored(folder, variables)
    facts.pop("callbacks", {})
    return Progress(**facts)


@pytest.fixture
def saved(tmp_path):
    folder, variables = RunFolder(tmp_path), [keras.Variable([1.0, 2.0])]
    facts = {**vars(FOUND), "callbacks": CALLBACKS}
    values = [variable.numpy() for variable in variables]
    checkpoint.save(folder, values, {"sums": np.arange(3)}, facts)
    return folder, variables


def test_what_was_saved_comes_back(saved):
    folder, variables = saved
    variables[0].assign([0.0, 0.0])
    arrays, facts = restored(folder, variables)
    np.testing.assert_array_equal(arrays["sums"], np.arange(3))
    np.testing.assert_array_equal(variables[0].numpy(), [1, 2])
    assert facts.pop("callbacks") == CALLBACKS
    assert np.isnan(facts.pop("logs")["loss"])
    assert facts.pop("began") == [[1, 2.5]]
    assert resumed(folder, variables).step == 3


def test_a_damaged_one_is_named(saved):
    folder, variables = saved
    path, dice = folder.path / checkpoint.NAME, random.Random(5)
    whole = path.read_bytes()
    with np.load(path) as file:
        arrays = {name: file[name] for name in file.files}
    text = arrays["facts"].tobytes().decode().replace("NaN", "1").replace("Infinity", "1")
    for number in range(MUTATIONS // 8):
        content = io.BytesIO()
        if number % 4 == 0:
            at = dice.randrange(len(whole))
            content.write(dice.choice((whole[:at], whole[:at] + b"x" * 9 + whole[at + 9 :])))
        elif number % 4 == 1:
            gone = dice.choice(list(arrays))
            facts = np.array([str(dice.choice(HOSTILE))])
            others = {name: array for name, array in arrays.items() if name != gone}
            np.savez(content, **others, **({"facts": facts} if gone == "facts" else {}))
        else:
            facts = np.frombuffer(mutated_json(text, dice), np.uint8)
            np.savez(content, **{**arrays, "facts": facts})
        path.write_bytes(content.getvalue())
        variables[0].assign([5.0, 5.0])
        error = refusal(lambda: resumed(folder, variables), RecordError, ValueError)
        if error is not None:
            assert str(path) in str(error)
            np.testing.assert_array_equal(variables[0].numpy(), [5, 5])


def test_no_two_values_are_in_memory_when_they_come_back(tmp_path):
    folder, variables = RunFolder(tmp_path), [keras.Variable([0.0])] * 16
    checkpoint.save(folder, (np.full(2**18, float(i)) for i in range(16)), {}, vars(FOUND))
    seen = []

    class Taking(EveryVariable):
        shapes = [(2**18,)] * 16

        def restore(self, values):
            seen.extend(value[0] for value in values)

    backend = SingleDevice(Launch())
    topology = backend.start()
    held = Taking(backend, topology, keras.Sequential(), variables)
    tracemalloc.start()
    try:
        checkpoint.restore(folder, backend, topology, held, FACTS)
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert seen == list(range(16))
    assert most < 4 * 2**18 * 8
