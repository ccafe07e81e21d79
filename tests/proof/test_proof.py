"""Steps of right runs are proved; those that cannot be say why, and what differs is named."""

import numpy as np
import pytest
import tifffile
from paths import SUPPORT
from proving import processes, proof, trained

__all__ = ["processes"]
pytestmark = [pytest.mark.multiprocess, pytest.mark.timeout(400)]
UNIVERSES = {
    "data": "universes",
    "data_options": {"num_cases": 8, "size": 16},
    "patch": [16, 16, 16],
    "loss": "MeanSquaredError",
    "metrics": ["MeanAbsoluteError"],
}


def of(model, **settings):
    return {"model": f"{SUPPORT / 'proof_models.py'}:{model}", **settings}


def proved(processes, settings):
    found = processes.call(proof, settings, devices=devices_of(settings))
    assert isinstance(found, dict), found
    assert found["is_proved"], found
    assert max(found["differences"].values()) < 1e-9 or found["precision"] == "float32"
    return found


def devices_of(settings):
    parts = settings.get("split", [1])
    return max(2, settings.get("num_replicas", 1) * parts[0] * settings.get("stages", 1))


RIGHT = {
    "replicas": of("plain", num_replicas=2, metrics=["accuracy"]),
    "split": of("plain", split=[2, 1], metrics=["accuracy"]),
    "stages": of("plain", stages=2, micro_batches=2, metrics=["accuracy"]),
    "accumulation": of("plain", accumulation=2, metrics=["accuracy"]),
    "tiling": of("plain", tiling=[2, 2], loss="crossentropy", metrics=["accuracy"]),
    "replicas and split": of("plain", num_replicas=2, split=[2, 1]),
    "replicas and accumulation": of("plain", num_replicas=2, accumulation=2, global_batch=4),
    "replicas and tiling": of("plain", num_replicas=2, tiling=[2, 1], loss="crossentropy"),
    "split and tiling": of("plain", split=[2, 1], tiling=[1, 2], loss="crossentropy"),
    "a moving mean": of("moving_mean", accumulation=2),
    "a penalty": of("penalized", split=[2, 1]),
    "class weights": of("plain", num_replicas=2, loss_options={"class_weights": "balanced"}),
    "weights in split": of("plain", split=[2, 1], loss_options={"class_weights": "balanced"}),
    "Adam": of("plain", num_replicas=2, optimizer="adam"),
    "clipping": of("plain", num_replicas=2, optimizer_options={"global_clipnorm": 1e-3}),
    "a train_step": {"model": f"{SUPPORT / 'own_step.py'}:build", "split": [2, 1]},
    "numbers": {**UNIVERSES, **of("number", num_replicas=2)},
    "numbers in split": {**UNIVERSES, **of("number", split=[2, 1, 1])},
    "a network of its own": {"num_replicas": 2},
    "normalisation in split": of("normalized", split=[2, 1]),
    "Dropout in split": of("dropped", split=[2, 1]),
    "one size": of("of_one_size", num_replicas=2),
    "Flatten": of("flat", num_replicas=2),
}


@pytest.mark.parametrize("name", RIGHT)
def test_right_step_is_proved_in_float64(name, processes):
    found = proved(processes, RIGHT[name])
    assert found["precision"] == "float64"
    if name != "a network of its own":
        assert found["left_out"] == []
    if name == "one size":
        assert found["patch"] == [32, 32]


@pytest.mark.parametrize(
    "settings",
    [
        of("only_float32", num_replicas=2),
        # It joins its tensors with those of tf.one_hot.
        {"model": f"{SUPPORT / 'adversary.py'}:build", "num_replicas": 2},
    ],
)
def test_network_that_fails_in_float64_is_proved_in_float32(settings, processes):
    assert proved(processes, settings)["precision"] == "float32"


def test_layer_whose_statistics_are_of_a_part_is_left_out_by_name(processes):
    found = proved(processes, of("normalized", num_replicas=2))
    assert found["left_out"] == ["norm takes its statistics from a part of the batch"]


@pytest.mark.parametrize(
    ("most", "why_not"), [(1.0, "is too large"), (1e6, "The image must have 32 pixels")]
)
def test_step_that_cannot_be_tried_says_why_not(most, why_not, processes):
    found = processes.call(_within, of("of_one_size", num_replicas=2), most)
    assert not found["is_proved"]
    assert why_not in found["why_not"]


def _within(settings, most):
    """Return what a proof says that may take so many operations."""

    def fault(patch):
        patch.setattr("tfunet.proof.prove.MOST_FLOPS", most)
        patch.setattr("tfunet.proof.prove.SHARE", 0.0)

    return proof(settings, fault)


def test_run_that_is_not_to_be_proved_says_so(processes):
    found = processes.call(proof, of("plain", num_replicas=2, prove=False))
    assert found == {"is_proved": False, "ways": ["num_replicas"], "why_not": "prove = false"}


def test_train_step_that_mixes_parts_is_found_by_name(processes):
    said = processes.call(proof, of("mirrored", split=[2, 1]))
    assert isinstance(said, str), said
    name = "the output of the layer 'first' (Conv2D) in Mirrored.train_step"
    assert f"First of all, {name} differs" in said


def test_layer_that_draws_in_its_own_way_is_left_out_by_name(processes):
    found = proved(processes, of("with_noise", accumulation=2))
    assert found["left_out"] == ["noise draws other random numbers"]


@pytest.mark.parametrize("model", ["noisy", "with_own_noise"])
def test_step_that_draws_random_numbers_of_its_own_is_not_compared(model, processes):
    found = processes.call(proof, of(model, accumulation=2))
    assert "draws random numbers" in found["why_not"], found


@pytest.mark.parametrize(
    ("settings", "is_proved"),
    [(of("dropped", num_replicas=2), True), (of("noisy", accumulation=2), False)],
)
def test_proof_draws_no_random_number_of_the_run(settings, is_proved, processes):
    with_proof = processes.call(trained, settings)
    without = processes.call(trained, {**settings, "prove": False})
    assert with_proof["proved"]["is_proved"] == is_proved, with_proof["proved"]
    assert is_proved or "random" in with_proof["proved"]["why_not"]
    assert with_proof["weights_hash"] == without["weights_hash"]


@pytest.fixture(scope="module")
def labelled(tmp_path_factory):
    """Four images with three labels, and a border that counts for nothing."""
    root, rng = tmp_path_factory.mktemp("labelled"), np.random.default_rng(0)
    for case in range(4):
        mask = np.kron(rng.integers(0, 4, (8, 8)), np.ones((4, 4))).astype(np.uint8)
        mask[:, :5] = 9
        tifffile.imwrite(root / f"case{case}_mask.tif", mask)
        tifffile.imwrite(root / f"case{case}_image.tif", rng.integers(0, 99, (32, 32), np.uint16))
    return {
        "root": str(root),
        "images": "{case}_image.tif",
        "masks": "{case}_mask.tif",
        "classes": {"rim": 1, "ring": 2, "core": 3},
        "ignore_label": 9,
    }


REGIONS = {"regions": {"whole": ["rim", "ring", "core"], "core": ["core"]}}


@pytest.mark.parametrize("more", [{}, REGIONS])
@pytest.mark.parametrize(
    "settings",
    [
        of("plain", num_replicas=2),
        of("plain", split=[2, 1]),
        of("plain", accumulation=2),
        of("plain", stages=2),
        of("plain", tiling=[2, 1], loss="crossentropy"),
    ],
    ids=["replicas", "split", "accumulation", "stages", "tiling"],
)
def test_pixels_that_count_for_nothing_and_regions_are_proved(settings, more, labelled, processes):
    data = {"data": "folder", "data_options": {**labelled, **more}}
    outputs = {"outputs": "regions"} if more else {}
    if more and "tiling" in settings:
        outputs |= {"loss": "BinaryCrossentropy", "loss_options": {"from_logits": True}}
    proved(processes, {**settings, **data, **outputs})
