"""`tfunet.train`, `tfunet.predict` and `tfunet.evaluate`, as a notebook calls them."""

import os
import signal
import subprocess
import sys
import time

import numpy as np
import psutil
import pytest
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import KernelManager
from pages import blocks
from paths import ROOT
from PIL import Image

import tfunet
from tfunet import exit_codes
from tfunet.bench.launch.process_output import last_error
from tfunet.bench.launch.supervisor import RunOutcome
from tfunet.bench.one_run import _raise_unless_done
from tfunet.files.atomic import WriteError
from tfunet.files.table import read_rows

PAGE = (ROOT / "docs/notebooks.md").read_text()
SECONDS = 300
LONG = (
    'tfunet.train("run.toml", epochs=100000, backend="multiworker", num_replicas=2, '
    'cores_per_replica=1, out="logs/long")'
)


class Kernel:
    """A kernel of this Python, which runs cells one after the other."""

    def __init__(self, folder):
        specs = KernelSpecManager(kernel_dirs=[])
        self.manager = KernelManager(
            kernel_spec_manager=specs, connection_file=str(folder / "kernel.json")
        )
        own = {"PYTHONPATH": str(ROOT), "MPLBACKEND": "Agg", "IPYTHONDIR": str(folder / "ipython")}
        cache = {"TFUNET_CACHE": str(folder / "cache")}
        self.manager.start_kernel(cwd=str(folder), env={**os.environ, **own, **cache})
        self.client = self.manager.blocking_client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=SECONDS)
        self.printed = []

    def run(self, code):
        """Run a cell; return the name and the words of its error, "" and "" without one."""
        self.printed.clear()
        return self.answer(self.client.execute(code, store_history=False))

    def answer(self, message):
        while True:
            reply = self.client.get_iopub_msg(timeout=SECONDS)
            if reply["parent_header"].get("msg_id") != message:
                continue
            content = reply["content"]
            if reply["msg_type"] == "stream":
                self.printed.append(content["text"])
            if content.get("execution_state") == "idle":
                break
        while True:
            reply = self.client.get_shell_msg(timeout=SECONDS)
            if reply["parent_header"].get("msg_id") == message:
                return reply["content"].get("ename", ""), reply["content"].get("evalue", "")

    def workers(self):
        children = psutil.Process(self.manager.provisioner.pid).children(recursive=True)
        return [child for child in children if "tfunet.worker" in child.cmdline()]

    def end(self):
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)


@pytest.fixture
def kernel(tmp_path):
    kernel = Kernel(tmp_path)
    yield kernel
    kernel.end()


def write_data(folder):
    rng = np.random.default_rng(0)
    for case in "abcd":
        mask = np.zeros((32, 32), np.uint8)
        top, left = rng.integers(0, 16, 2)
        mask[top : top + 16, left : left + 16] = 1
        image = (rng.integers(0, 80, mask.shape) + 120 * mask).astype(np.uint8)
        for name, pixels in (("images", image), ("masks", mask), ("new", image)):
            (folder / name).mkdir(exist_ok=True)
            Image.fromarray(pixels).save(folder / name / f"{case}.png")
    (folder / "run.toml").write_text(
        'data = "folder"\npatch = [32, 32]\npatches_per_case = 4\nvalidation_share = 0.5\n'
        "checkpoint_steps = 1\nmodel_options = { filters = 2, levels = 1 }\n"
        '[data_options]\nroot = "."\nimages = "images/{case}.png"\n'
        'masks = "masks/{case}.png"\nclasses = { square = 1 }\n'
    )


@pytest.mark.multiprocess
def test_cells_train_predict_and_score_and_an_interrupt_ends_all_processes(kernel, tmp_path):
    write_data(tmp_path)
    train, predict = (block for block in blocks(PAGE, "python") if "strip.py" not in block)
    # What is asked of `run` and of the table is compared where it is.
    print_run = 'print(run.scores["dice"], run.history["epoch"], len(run.history["val_loss"]))\n'
    assert kernel.run(f"{train}\n{print_run}") == ("", ""), kernel.printed
    text = "".join(kernel.printed)
    assert "epoch 2:" in text
    (dice,) = (row["dice_square"] for row in read_rows(tmp_path / "logs/mine/epochs.csv")[-1:])
    assert f"{{'square': {dice}}} [1, 2] 2" in text
    assert kernel.run("import sys; assert 'tensorflow' not in sys.modules; run.folder") == ("", "")

    kind, words = kernel.run('tfunet.train("run.toml", loss="dicee")')
    assert (kind, words[:21]) == ("ValueError", "Unknown loss 'dicee'.")

    message = kernel.client.execute(LONG)
    deadline = time.monotonic() + SECONDS
    while not (tmp_path / "logs/long/checkpoint.npz").exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    workers = kernel.workers()
    assert len(workers) == 2
    kernel.manager.interrupt_kernel()
    kind, words = kernel.answer(message)
    assert (kind, words) == (
        "KeyboardInterrupt",
        "The run in logs/long was interrupted. The same call goes on.",
    )
    assert not psutil.wait_procs(workers, timeout=10)[1]
    assert "Saved after step" in "".join(kernel.printed)

    assert kernel.run(predict) == ("", ""), kernel.printed
    assert "mean Dice" in "".join(kernel.printed)
    assert sorted(path.name for path in (tmp_path / "predicted").glob("?.png")) == [
        f"{name}.png" for name in "abcd"
    ]
    kind, words = kernel.run('tfunet.predict("logs/mine", "new/*.png", "other", tile="halo")')
    assert (kind, words[:45]) == ("ValueError", "Unknown option 'tile'. Did you mean 'tiles'? ")


def test_public_names_are_shown_and_hidden_by_no_module():
    assert dir(tfunet) == sorted([*tfunet.__all__, "__version__"])
    for name in tfunet.__all__:
        assert callable(getattr(tfunet, name))
        # Importing a module would put it in the place of the function.
        assert not (ROOT / "tfunet" / name / "__init__.py").exists()
        assert not (ROOT / "tfunet" / f"{name}.py").exists()
    with pytest.raises(AttributeError, match="no attribute 'trian'"):
        assert tfunet.trian


@pytest.mark.parametrize(
    ("outcome", "kind", "words"),
    [
        (RunOutcome(2, "process 0 of 1 ended", 0, error="two\nlines"), ValueError, "^two\nlines$"),
        (RunOutcome(5, "Cannot write x: No space left"), WriteError, "^Cannot write x"),
        (RunOutcome(4, "", 0, error="no"), exit_codes.CheckFailedError, "^no$"),
        (RunOutcome(3, "process 1 of 2 was killed by SIGKILL", 1), RuntimeError, "SIGKILL$"),
        (RunOutcome(130, "interrupted by SIGINT"), KeyboardInterrupt, "The same call goes on"),
        (RunOutcome(3, "ended without a result"), RuntimeError, "without a result"),
    ],
)
def test_how_a_run_ended_becomes_an_exception(tmp_path, outcome, kind, words):
    with pytest.raises(kind, match=words):
        _raise_unless_done(outcome, tmp_path)


def test_the_error_of_a_process_has_all_its_lines():
    tail = ["error: of before", "error: two", "lines", "2024-05-01 12:00:00.000000: E file.cc"]
    assert last_error(tail) == "two\nlines"
    assert last_error(["Traceback", "  File"]) == ""


def test_a_terminated_run_terminates_who_called_it(tmp_path):
    code = (
        "from pathlib import Path\n"
        "from tfunet.bench.launch.supervisor import RunOutcome\n"
        "from tfunet.bench.one_run import _raise_unless_done\n"
        "_raise_unless_done(RunOutcome(143, 'interrupted by SIGTERM'), Path('x'))\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], timeout=SECONDS, check=False)
    assert ended.returncode == -signal.SIGTERM
