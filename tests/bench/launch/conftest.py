"""What tests of launched processes share."""

import uuid

import pytest
from paths import ROOT
from supervised import MARK, marked


@pytest.fixture
def mark(monkeypatch, tmp_path):
    """Mark every process that the test starts; none of them may be left at its end."""
    value = uuid.uuid4().hex
    monkeypatch.setenv(MARK, value)
    # Programs import this tfunet, wherever they run.
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.chdir(tmp_path)
    yield value
    left = marked(value)
    for process in left:
        process.kill()
    assert left == []
