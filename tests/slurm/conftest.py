"""A SLURM of our own for the tests that are marked `slurm`."""

import os

import pytest
from cluster import NoClusterError, running_cluster
from paths import ROOT


@pytest.fixture(scope="session")
def cluster(request):
    """Two idle nodes, n2 and n10; tests are skipped where this machine cannot have them."""
    started = running_cluster()
    capture = request.config.pluginmanager.getplugin("capturemanager")
    try:
        with capture.global_and_fixture_disabled():  # It says what it installs.
            one = started.__enter__()
    except NoClusterError as error:
        pytest.skip(f"No SLURM here, so nothing under it is tested: {error}.")
    yield one
    started.__exit__(None, None, None)


@pytest.fixture
def on_cluster(cluster, tmp_path, monkeypatch):
    """A folder in which this process is a user of the cluster, as it is after a login."""
    monkeypatch.chdir(tmp_path)
    for name in [variable for variable in os.environ if variable.startswith(("SLURM_", "SBATCH_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("SLURM_CONF", cluster.environment["SLURM_CONF"])
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("TFUNET_CACHE", str(tmp_path / "cache"))
    return tmp_path
