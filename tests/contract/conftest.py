import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
import runs  # the folder is not a package, so that tests need no __init__ files


@pytest.fixture(scope="session")
def contract_folder(tmp_path_factory):
    return tmp_path_factory.mktemp("contract")


@pytest.fixture(scope="session")
def single(contract_folder):
    """An uninterrupted run of one device."""
    return runs.audited(contract_folder / "single", **runs.kill_at(runs.KILL_STEP))


@pytest.fixture(autouse=True)
def _begins_anew():
    runs.forget_runs()
