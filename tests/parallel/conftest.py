import pytest


@pytest.fixture(autouse=True)
def _all_in_float64(float64):
    pass
