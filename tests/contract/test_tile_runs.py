"""Whole images, tile by tile, on processes of which one dies: the run of one device."""

import checks
import pytest
import runs
from runs import kill_at

from tfunet.arguments import from_dict
from tfunet.backend import Launch
from tfunet.loop import run
from tfunet.single_device import SingleDevice

pytestmark = [pytest.mark.multiprocess, pytest.mark.timeout(1200)]
NETWORK = {"filters": 4, "levels": 1, "convolutions": 1, "normalization": "none"}
SETTINGS = {
    "model_options": NETWORK,
    "loss": "crossentropy",
    "global_batch": 3,
    "epochs": 1,
    # A stage that counted another number of steps would have another rate.
    "learning_rate_schedule": "polynomial",
    **kill_at(5),
}
STAGES = {"stages": 2, "balance": ["up0_upsampling"], "share_cores": True}


@pytest.fixture(scope="module")
def whole(contract_folder):
    """The same samples without tiles, on one device."""
    config = from_dict({**runs.BASE, **SETTINGS, "cache_dir": str(contract_folder / "cache")})
    run(config, SingleDevice(Launch()), contract_folder / "untiled")
    return runs.Run(contract_folder / "untiled", 0, "")


def same(tiled, whole):
    assert tiled.exit_code == 0, tiled.output
    checks.same_samples(tiled, whole)
    checks.same_losses(tiled, whole)
    checks.same_weights(tiled, whole)
    checks.same_scores(tiled, whole)
    assert tiled.result["checks"] == {"weights": True, "scores": True, "samples": True}


def test_the_tiles_of_a_process_that_dies_are_shared_out_anew(whole, contract_folder):
    tiled = runs.train(
        contract_folder / "tiled",
        environment={"TFUNET_TEST_KILL": "1"},
        backend="horovod",
        num_replicas=2,
        tiling=[2, 1],
        elastic=True,
        trace=True,
        **SETTINGS,
    )
    assert "tfunet: going on with num_replicas=1 of 2" in tiled.output
    assert "Going on from step 4 of 7, now with num_replicas=1" in tiled.output
    assert tiled.result["replicas_from_step"] == [[1, 2], [5, 1]]
    same(tiled, whole)


def test_tiles_pass_through_the_stages_of_pipelines_with_parts_of_them(whole, contract_folder):
    """Killed on two devices, and gone on with each tile in two parts, on eight."""
    settings = {
        "backend": "multiworker",
        "tiling": [2, 2],
        "micro_batches": 3,
        **STAGES,
        **SETTINGS,
    }
    folder = contract_folder / "staged-tiles"
    killed = runs.train(folder, environment={"TFUNET_TEST_KILL": "1"}, **settings)
    checks.ended_at_once(killed, 1)
    tiled = runs.train(folder, num_replicas=2, split=[2, 1], **settings)
    same(tiled, whole)
    checks.same_network(tiled, whole, has_tiles=True)
    assert "Going on from step 4 of 7, now with num_replicas=2" in tiled.output
    assert "Split: each tile over 2 devices of each stage (2 x 1)." in tiled.output
    pipeline = tiled.result["pipeline"]
    assert len(pipeline["stage_seconds"]) == tiled.result["process_count"] == 8
    assert 0 < pipeline["bubble"] < 1
    # Two passes of three tiles: a part of each image goes forward, and gradients come back.
    assert min(pipeline["traced_sent_bytes"]) > 2 * 3 * 8 * 16
    assert tiled.result["exchanged_bytes"] > 0


CHUNKS = ["down0_0_activation", "up0_upsampling", "logits"]
IN_V = {**STAGES, "micro_batches": 2, "schedule": "v", "balance": CHUNKS}


@pytest.mark.parametrize(
    ("backend", "way"),
    [
        ("horovod", {**IN_V, "split": [2, 1], "time_parts": True}),
        ("mirrored", {**STAGES, "micro_batches": 2, "recompute": True}),
        # Uneven parts, of which some have nothing of a tile's own part.
        ("mirrored", {"split": [3, 1], "num_replicas": 2, "share_cores": True}),
    ],
    ids=["horovod-both", "mirrored-stages", "mirrored-split"],
)
def test_tiles_pass_through_stages_or_are_split_on_every_backend(
    backend, way, whole, contract_folder
):
    folder = contract_folder / f"{backend}-{'staged' if 'stages' in way else 'split'}-tiles"
    tiled = runs.train(folder, backend=backend, tiling=[2, 1], **SETTINGS, **way)
    same(tiled, whole)
    parts = way.get("split", [1])[0]
    assert (parts > 1) == (f"Split: each tile over {parts} devices" in tiled.output)
    timed = [
        name for name in tiled.result if name.endswith(("exchanging_seconds", "alone_seconds"))
    ]
    assert timed == (["exchanging_seconds", "alone_seconds"] if "time_parts" in way else [])
    if timed:
        assert tiled.result["bubble_seconds"] > 0
        assert [len(tiled.result[name]) for name in timed] == [2 * parts] * 2
