import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
import runs  # the folder is not a package, so that tests need no __init__ files

KILL_STEP = 7


@pytest.fixture(scope="session")
def contract_folder(tmp_path_factory):
    return tmp_path_factory.mktemp("contract")


@pytest.fixture(scope="session")
def single(contract_folder):
    run = runs.train(contract_folder / "single", **kill_at(KILL_STEP))
    assert run.exit_code == 0, run.output
    return run


def kill_at(step):
    """The callback is part of the configuration; without the variable it does nothing."""
    name = f"{Path(__file__).parent / 'kill.py'}:KillAt"
    return {"callbacks": [{"name": name, "step": step}]}
