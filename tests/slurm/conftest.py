"""A SLURM of our own for the tests that are marked `slurm`."""

import pytest
from cluster import NoClusterError, running_cluster


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
