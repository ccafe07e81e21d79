"""Whole commands on an object store: exit codes, few requests, and no secret in any file."""

import os
import signal
import subprocess
import sys

import object_store
import pytest
from object_store import BUCKET, SECRET
from paths import ROOT

NUM_CASES = 1000
NUM_FILES = 2 * NUM_CASES
NUM_LISTS = NUM_FILES // 1000
RUN = f"""
data = "folder"
model = "unet"
patch = [16, 16]
global_batch = 64
epochs = 40
cores_per_replica = 1
checkpoint_steps = 5
validation_share = 0.02

[model_options]
filters = 2
levels = 1

[data_options]
root = "s3://{BUCKET}/cells"
images = "images/{{case}}.png"
masks = "masks/{{case}}.png"
classes = {{ cell = 255 }}
"""


@pytest.fixture(scope="module")
def store():
    with object_store.serving() as running:
        object_store.fill(running, NUM_CASES)
        yield running


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("remote")
    (path / "run.toml").write_text(RUN)
    return path


def started(store, folder, *words, **more):
    variables = {**os.environ, **store.variables(), "TFUNET_CACHE": str(folder / "cache")}
    variables["PYTHONPATH"] = os.pathsep.join([*more.pop("before", ()), str(ROOT)])
    return subprocess.Popen(
        [sys.executable, "-m", "tfunet", *words],
        env=variables,
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        **more,
    )


def told(store, folder, *words, code=0, **more):
    process = started(store, folder, *words, **more)
    out, err = process.communicate(timeout=300)
    assert process.returncode == code, err
    return out, err


@pytest.mark.slow
def test_training_is_killed_and_goes_on_and_its_network_predicts_and_is_scored(store, folder):
    store.asked()
    train = ("train", "run.toml", "--out", "logs/run")
    process = started(store, folder, *train)
    for line in process.stdout:
        if line.startswith("epoch 2"):
            break
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    # The launcher looks at the headers before it starts the process of the run, which lists again.
    assert store.asked() == {"LIST": 2 * NUM_LISTS, "GET": NUM_FILES}

    out, _ = told(store, folder, *train)
    assert "epoch 40" in out
    assert "epoch 1:" not in out
    assert store.asked() == {"LIST": 2 * NUM_LISTS}

    store.put("new/a.png", object_store.png(object_store.np.zeros((40, 40), "uint8")))
    told(store, folder, "predict", "logs/run", f"s3://{BUCKET}/new/*.png", "--out", "predicted")
    assert (folder / "predicted/a.png").is_file()
    assert f"s3://{BUCKET}/new/a.png" in (folder / "predicted/a.json").read_text()
    assert store.asked() == {"LIST": 1, "GET": 1}

    out, _ = told(store, folder, "evaluate", "logs/run", f"s3://{BUCKET}/cells", "--out", "scored")
    assert "980 cases are left out: the network was trained on them" in out
    assert store.asked() == {"LIST": NUM_LISTS}

    for path in folder.rglob("*"):
        if path.is_file() and path.stat().st_mode & 0o400:
            content = path.read_bytes()
            assert SECRET.encode() not in content, path
            if "cache" not in path.parts:  # What is recorded is the same wherever the cache is.
                assert str(folder / "cache/remote").encode() not in content, path


@pytest.mark.slow
def test_first_configuration_of_a_bucket_keeps_its_url(store, folder):
    out, _ = told(store, folder, "init", f"s3://{BUCKET}/cells", "--out", "first.toml")
    assert f"{NUM_CASES} cases in 2D with 1 channel" in out
    assert f'root = "s3://{BUCKET}/cells"' in (folder / "first.toml").read_text()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("init", "s3://no-such-bucket/a"), "s3://no-such-bucket/a is not there"),
        (("init", f"s3://{BUCKET}/nowhere"), "There is nothing at"),
        (("init", f"https://me:{SECRET}@host/a"), "with a name or a password in it"),
        (
            ("train", "run.toml", "--data_options.root", f"https://h/a?sig={SECRET}"),
            "with a query",
        ),
        (
            ("train", "run.toml", "--out", f"s3://{BUCKET}/logs"),
            "is on a server, and this is read and written on a disk",
        ),
    ],
    ids=["bucket", "folder", "password", "signature", "out"],
)
def test_mistake_is_told_on_one_line(store, folder, words, said):
    _, err = told(store, folder, *words, code=2)
    *_, line = err.splitlines()  # After wrong arguments it follows a line of usage.
    assert said in line
    assert SECRET not in err
    assert "Traceback" not in err


@pytest.mark.slow
def test_tensorflow_io_reads_where_fsspec_is_not_installed_and_the_process_ends_well(
    store, tmp_path
):
    (tmp_path / "without").mkdir()
    (tmp_path / "without/fsspec.py").write_text("raise ImportError('not installed')")
    object_store.fill(store, 20, "few")
    out, _ = told(store, tmp_path, "init", f"s3://{BUCKET}/few", before=[str(tmp_path / "without")])
    assert "20 cases in 2D with 1 channel" in out
