"""Processes share a prediction: the bits are those of one, and nothing of a dead one is missing."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
import tifffile

from tfunet.machine.cores import usable_cores
from tfunet.prediction.shared_lines import BUSY, CLAIMS, OPEN, TAKEN, THERE, SharedLines, has_open

pytestmark = pytest.mark.multiprocess

DRIVER = Path(__file__).with_name("first_line_only.py")
SECONDS = 120


def command(run, images, out, *options):
    return ["predict", run, *images, "--out", out, "--probabilities", "--no-overlay", *options]


@contextlib.contextmanager
def started(program, words):
    """A process in a group of its own, which ends with the block."""
    process = subprocess.Popen(
        [sys.executable, *map(str, program), *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def until(is_so, process):
    end = time.monotonic() + SECONDS
    while not is_so():
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < end
        time.sleep(0.01)


def finished(process):
    said, _ = process.communicate(timeout=SECONDS)
    assert process.returncode == 0, said
    return said


def bits(out):
    return [(out / name).read_bytes() for name in ("scene.tif", "scene_probabilities.tif")]


@pytest.fixture(scope="module")
def scene(folder):
    return [folder / "scene.tif"]


@pytest.fixture(scope="module")
def alone(local_run, scene, tmp_path_factory):
    out = tmp_path_factory.mktemp("alone")
    with started(["-m", "tfunet"], command(local_run, scene, out)) as process:
        finished(process)
    return bits(out)


def states(out):
    with contextlib.suppress(OSError):
        return set((out / ".unfinished-scene" / CLAIMS).read_bytes())
    return set()


def test_lines_that_another_process_computed_give_the_same_bits(local_run, scene, alone, tmp_path):
    words = command(local_run, scene, tmp_path)
    with started([DRIVER, tmp_path / "never"], words) as main:
        until(lambda: TAKEN in states(tmp_path), main)
        # As srun starts them: each takes part in what it finds.
        with started(["-m", "tfunet"], words) as other:
            said = [finished(main), finished(other)]
    assert ["scene: 75 x 92 in 20 windows" in each for each in said] == [True, False]
    assert bits(tmp_path) == alone
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"scene.tif", "scene_probabilities.tif", "scene.json"}


def test_lines_of_a_process_that_was_killed_are_computed_by_the_others(
    local_run, scene, alone, tmp_path
):
    words = command(local_run, scene, tmp_path / "out")
    gone = tmp_path / "gone"
    with started([DRIVER, gone], words) as main:
        until(lambda: TAKEN in states(tmp_path / "out"), main)
        with started(["-m", "tfunet"], words) as other:
            until(lambda: states(tmp_path / "out") & {BUSY, THERE}, other)
        gone.touch()
        finished(main)
    assert bits(tmp_path / "out") == alone


def test_devices_of_one_command_give_the_same_bits_and_end_with_it(
    local_run, folder, scene, alone, tmp_path
):
    image = np.tile(tifffile.imread(scene[0]), (8, 8, 1))
    tifffile.imwrite(tmp_path / "large.tif", image, photometric="minisblack", planarconfig="contig")
    images = [*scene, *sorted(folder.glob("case*_image.tif")), tmp_path / "large.tif"]
    words = command(local_run, images, tmp_path / "out", "--devices", 2)

    def helpers(process):
        return psutil.Process(process.pid).children(recursive=True)

    with started(["-m", "tfunet"], words) as process:
        until(lambda: (tmp_path / "out/.unfinished-large" / CLAIMS).exists(), process)
        (helper,) = helpers(process)
        process.kill()
        process.wait()
        helper.wait(10)
    with started(["-m", "tfunet"], words) as process:
        until(lambda: helpers(process), process)
        said = finished(process)
    assert re.search(r"large: (going on at row|600 x 736|by another device)", said)
    assert bits(tmp_path / "out") == alone
    assert not list((tmp_path / "out").glob(".*"))
    with started(["-m", "tfunet"], command(local_run, images, tmp_path / "one")) as process:
        finished(process)
    for path in (tmp_path / "one").glob("*.tif"):
        assert path.read_bytes() == (tmp_path / "out" / path.name).read_bytes(), path.name
    facts = [json.loads((tmp_path / name / "large.json").read_text()) for name in ("one", "out")]
    assert facts[0] | {"seconds": 0} == facts[1] | {"seconds": 0}


def test_more_devices_than_there_are_and_a_helper_that_ends(local_run, scene, alone, tmp_path):
    few = len(usable_cores())
    words = command(local_run, scene, tmp_path / "few", "--devices", few + 1)
    with started(["-m", "tfunet"], words) as process:
        said, _ = process.communicate(timeout=SECONDS)
    assert process.returncode == 2
    assert f"--devices {few + 1}: there are {few} CPU cores" in said
    assert f"Give at most {few}." in said
    words = command(local_run, scene, tmp_path / "out", "--devices", 2)
    with started([DRIVER, tmp_path / "gone"], words) as main:
        until(lambda: psutil.Process(main.pid).children(), main)
        for helper in psutil.Process(main.pid).children():
            helper.kill()
        (tmp_path / "gone").touch()
        finished(main)
    assert bits(tmp_path / "out") == alone


def test_a_sum_that_was_damaged_or_is_from_an_earlier_process_is_seen_to(tmp_path):
    computed = []

    def compute(line):
        computed.append(line)
        return np.full((2, 3), line, np.float32)

    with SharedLines(tmp_path, 5, compute, 1) as lines:
        assert lines.help()
        assert lines.help()
    assert (tmp_path / CLAIMS).read_bytes() == bytes([TAKEN, THERE, THERE, OPEN, OPEN])
    (damaged,) = tmp_path.glob("sum-*-2.npy")
    damaged.write_bytes(b"")
    # A process that ended had these two.
    (tmp_path / CLAIMS).write_bytes(bytes([TAKEN, THERE, THERE, BUSY, TAKEN]))
    assert not has_open(tmp_path)
    with SharedLines(tmp_path, 5, compute, 1) as lines:
        assert has_open(tmp_path)
        for line in range(1, 5):
            np.testing.assert_array_equal(lines.take(line), compute(line))
    assert computed == [1, 2, 1, 2, 2, 3, 3, 4, 4]
    assert not has_open(tmp_path)
    assert not list(tmp_path.glob("sum-*"))
    with pytest.raises(FileNotFoundError):
        SharedLines(tmp_path / "nowhere", 5, compute)
