"""Whole images, tile by tile, on processes of which one dies: the run of one device."""

import checks
import pytest
import runs
from runs import kill_at

from tfunet.arguments import from_dict
from tfunet.backend import Launch
from tfunet.single_device import SingleDevice
from tfunet.train import run

pytestmark = [pytest.mark.multiprocess, pytest.mark.timeout(1200)]
NETWORK = {"filters": 4, "levels": 1, "convolutions": 1, "normalization": "none"}
SETTINGS = {
    "model_options": NETWORK,
    "loss": "crossentropy",
    "global_batch": 3,
    "epochs": 1,
    **kill_at(5),
}


def test_the_tiles_of_a_process_that_dies_are_shared_out_anew(contract_folder):
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
    assert tiled.exit_code == 0, tiled.output
    assert "tfunet: going on with num_replicas=1 of 2" in tiled.output
    assert "Going on from step 4 of 7, now with num_replicas=1" in tiled.output
    assert tiled.result["replicas_from_step"] == [[1, 2], [5, 1]]
    config = from_dict({**runs.BASE, **SETTINGS, "cache_dir": str(contract_folder / "cache")})
    run(config, SingleDevice(Launch()), contract_folder / "untiled")
    whole = runs.Run(contract_folder / "untiled", 0, "")
    checks.same_samples(tiled, whole)
    checks.same_losses(tiled, whole)
    checks.same_weights(tiled, whole)
    checks.same_scores(tiled, whole)
