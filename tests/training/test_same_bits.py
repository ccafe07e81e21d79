"""Runs on a CPU are equal to the bit, also where TensorFlow would add up gradients as they come."""

from tfunet.backend import Launch
from tfunet.config.run import RunConfig
from tfunet.single_device import SingleDevice
from tfunet.train import run

# A step of more than 200 MiB: four fifths of what TensorFlow's memory optimizer takes a CPU for.
LARGE = RunConfig(
    data="cells",
    data_options={"num_cases": 9, "size": 256},
    model_options={"filters": 8, "levels": 1},
    validation_share=0.1,
    global_batch=8,
    steps=5,
)


def test_two_runs_have_the_same_bits(tmp_path):
    hashes = {run(LARGE, SingleDevice(Launch()), tmp_path / name)["weights_hash"] for name in "abc"}
    assert len(hashes) == 1
