"""Steps with states shared out among devices: those of the same devices without, to the bit."""

import json
import subprocess
import sys

import pytest
from paths import SUPPORT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
CASES = (
    *("SGD", "momentum", "RMSprop", "centered", "Adam", "amsgrad", "AdamW", "Adadelta", "Adagrad"),
    *("Adamax", "Nadam", "Ftrl", "Lion", "Lamb", "Muon", "Adafactor", "ScheduleFree"),
)
KINDS = ["own train_step", "two optimizers", "shared layers", "3D", "frozen", "mixed_float16"]
KINDS += ["mixed_bfloat16", "regularizer", "constraint", "loss scale", "accumulated"]
# Norms are sums over parts, and three gradients are added up in another order.
TOLERANCE = 1e-6


@pytest.fixture(scope="module", params=[2, 3])
def found(request):
    """For each case and `zero`: the largest differences of weights, devices and states; bytes."""
    done = subprocess.run(
        [sys.executable, SUPPORT / "shared_steps.py", str(request.param)],
        capture_output=True,
        text=True,
        timeout=800,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    return request.param, {(name, option): both for name, option, both in rows}


def test_each_optimizer_and_each_kind_was_tried(found):
    _, rows = found
    assert {name for name, _ in rows} == {*CASES, *KINDS}
    assert {option for name, option in rows if name == "Adam"} == {
        *("", "decay, ema", "clipvalue", "clipnorm", "global_clipnorm")
    }


def test_shared_states_change_no_bit(found):
    _, rows = found
    differing = {
        case: both["1"]
        for case, both in rows.items()
        if any(both["1"][of] for of in ("weights", "devices", "states"))
    }
    assert not differing


def test_shared_gradients_change_no_more_than_rounding(found):
    num_devices, rows = found
    for (name, option), both in rows.items():
        if "2" not in both:
            continue
        share = both["2"]
        assert share["devices"] == 0, (name, option)
        is_exact = num_devices == 2 and "norm" not in option and name != "mixed_float16"
        most = 0 if is_exact else TOLERANCE
        assert max(share["weights"], share["states"]) <= most, (name, option, share)


def test_each_device_has_its_part_of_the_states(found):
    num_devices, rows = found
    for name in ("momentum", "Adam"):
        held = rows[name, ""]["1"]["bytes"]
        parameters, slots, counters = 725, {"momentum": 1, "Adam": 2}[name], 12
        for num_bytes in held:
            share = (num_bytes - counters) / parameters
            assert share == pytest.approx(4 * slots / num_devices, rel=0.05)
