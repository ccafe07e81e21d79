"""The notebooks run from top to bottom, as they lie there and on a sweep of one's own."""

import asyncio
import html
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from statistics import fmean

import nbformat
import numpy as np
import pytest
from campaign_logs import GPUS, ONE_GPU, PUBLISHED, write_log
from growth_sweep import write_growth_sweep
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from nbformat.v4 import new_code_cell, new_notebook
from pages import blocks
from paths import ROOT
from PIL import Image
from synthetic_sweep import write_swap_sweep  # of a folder that is not a package

from tfunet.bench.report.campaign_report import WARNINGS

NOTEBOOKS = ROOT / "notebooks"
NAMES = sorted(path.stem for path in NOTEBOOKS.glob("*.ipynb"))
REAL = NOTEBOOKS / "../../shared/data/axondeepseg_sem"
PAGE = (ROOT / "docs" / "notebooks.md").read_text()
CELL_SECONDS = 300


def read(name):
    return nbformat.read(NOTEBOOKS / f"{name}.ipynb", 4)


def environment(folder):
    own = {"PYTHONPATH": str(ROOT), "MPLBACKEND": "Agg", "IPYTHONDIR": str(folder / "ipython")}
    return {**os.environ, **own, "TFUNET_CACHE": str(folder / "cache")}


def execute(notebook, folder, **variables):
    """Execute a notebook in a fresh kernel of this very Python, where the notebooks lie."""
    # Without the folders of kernels it is ipykernel's own, whatever is installed there.
    specs = KernelSpecManager(kernel_dirs=[])
    manager = AsyncKernelManager(
        kernel_spec_manager=specs, connection_file=str(folder / "kernel.json")
    )
    place = {"metadata": {"path": str(NOTEBOOKS)}}
    seconds = {"timeout": CELL_SECONDS, "startup_timeout": CELL_SECONDS}
    client = NotebookClient(notebook, km=manager, resources=place, **seconds)
    try:
        client.execute(env={**environment(folder), **variables})
    finally:
        # The client ends only kernels whose manager is its own.
        asyncio.run(manager.shutdown_kernel(now=True))
    return notebook


def parameters_at(notebook):
    (at,) = (
        number
        for number, cell in enumerate(notebook.cells)
        if "parameters" in cell.metadata.get("tags", ())
    )
    return at


def executed(name, folder, **parameters):
    """Execute one of ours with other parameters, as papermill gives them."""
    notebook = read(name)
    given = "\n".join(f"{key} = {value!r}" for key, value in parameters.items())
    notebook.cells.insert(parameters_at(notebook) + 1, new_code_cell(given))
    return execute(notebook, folder)


def outputs(notebook):
    return [output for cell in notebook.cells for output in cell.get("outputs", ())]


def printed(notebook):
    return "".join(output.text for output in outputs(notebook) if output.output_type == "stream")


def shown(notebook, kind):
    """What was displayed in a MIME type."""
    return [output.data[kind] for output in outputs(notebook) if kind in output.get("data", {})]


def titles(notebook):
    pages = shown(notebook, "text/html")
    assert all("<svg" in page for page in pages)
    return [html.unescape(re.match("<h4>(.*?)</h4>", page)[1]) for page in pages]


def test_there_are_five():
    assert NAMES == ["large-models", "scaling", "segmentation", "swapping", "traces"]


@pytest.mark.parametrize("name", NAMES)
def test_it_is_kept_without_outputs_and_begins_with_what_it_answers(name):
    notebook = read(name)
    nbformat.validate(notebook)
    assert (notebook.nbformat, notebook.nbformat_minor) == (4, 5)
    assert len({cell.id for cell in notebook.cells}) == len(notebook.cells)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert all(cell.outputs == [] and cell.execution_count is None for cell in code)
    assert code[0] is notebook.cells[parameters_at(notebook)]
    first = notebook.cells[0]
    assert first.cell_type == "markdown"
    for words in ("tfunet sweep run", "`sweep`", 'sweep = "../logs/'):
        assert words in first.source


@pytest.mark.parametrize("name", NAMES)
def test_the_page_has_its_parameters(name):
    notebook = read(name)
    source = notebook.cells[parameters_at(notebook)].source
    section = re.search(rf"^\| \[{name}\.ipynb\].*$", PAGE, re.MULTILINE)[0]
    for parameter in re.findall(r"^(\w+) = ", source, re.MULTILINE):
        assert f"`{parameter}`" in section


@pytest.mark.multiprocess
def test_the_kernel_is_this_python_whatever_the_path_has(tmp_path):
    notebook = new_notebook(cells=[new_code_cell("import sys\nprint(sys.executable)")])
    assert printed(execute(notebook, tmp_path, PATH="/nowhere")).strip() == sys.executable


@pytest.mark.multiprocess
def test_scaling_as_it_is_kept(tmp_path):
    notebook = executed("scaling", tmp_path)
    assert titles(notebook) == [
        "Speed-up and efficiency",
        "Deviation from the ideal speed-up",
        "Scores of every repeat",
    ]
    page = "\n".join(shown(notebook, "text/markdown"))
    assert "Strong scaling (fixed global_batch)" in page
    for way in ("single", "mirrored", "multiworker", "horovod"):
        assert f"| {way} | " in page
    assert "mirrored at 2 replicas is 1.03 times as fast as horovod" in page
    assert "The machine was not quiet" in page
    assert "set campaign to the folder" in printed(notebook)


@pytest.mark.multiprocess
def test_scaling_prints_the_published_efficiencies_and_what_they_are_worth(tmp_path):
    for kind, efficiencies in PUBLISHED.items():
        for count, value in zip((1, *GPUS), (1.0, *efficiencies), strict=True):
            write_log(tmp_path / f"log_{kind}{count}.csv", ONE_GPU[kind] / count / value)
    notebook = executed("scaling", tmp_path, campaign=str(tmp_path))
    text = printed(notebook)
    rows = [line.split() for line in text.splitlines()]
    by_name = {(row[0], row[1]): row[4] for row in rows if len(row) == 7 and row[1].isdigit()}
    for kind, efficiencies in PUBLISHED.items():
        for count, value in zip(GPUS, efficiencies, strict=True):
            native = "mirrored" if count == 2 else "multiworker"
            assert by_name["horovod" if kind else native, str(count)] == f"{value:.3f}"
    assert all(warning in text for warning in WARNINGS)
    assert titles(notebook)[-1] == "Beside the published campaign"
    page = shown(notebook, "text/html")[-1]
    for words in ("Deviation of the published campaign", "IoU of the published campaign", "GPUs"):
        assert words in page


@pytest.mark.multiprocess
def test_swapping_tells_the_planted_cost(tmp_path):
    write_swap_sweep(tmp_path / "sweep")
    notebook = executed("swapping", tmp_path, sweep=str(tmp_path / "sweep"), shown_tensors=1)
    assert titles(notebook) == ["Memory over the step", "Predicted and measured"]
    page = "\n".join(shown(notebook, "text/markdown"))
    assert page.count("0.80 times as fast as without") == 2
    assert "unet/large:0" in page
    assert "unet/small:0" not in page


@pytest.mark.multiprocess
def test_swapping_as_it_is_kept(tmp_path):
    notebook = executed("swapping", tmp_path)
    assert titles(notebook) == ["Memory over the step", "Predicted and measured"]
    page = "\n".join(shown(notebook, "text/markdown"))
    for way in ("single", "mirrored", "multiworker", "horovod"):
        assert f"- {way} x" in page
    assert "swap " in page


@pytest.mark.multiprocess
def test_large_models_as_it_is_kept(tmp_path):
    notebook = executed("large-models", tmp_path)
    assert titles(notebook) == [
        "What trains under the cap",
        "Dice of every case at two resolutions",
    ]
    page = "\n".join(shown(notebook, "text/markdown"))
    assert "In 200MiB the largest size that trains without support is 48 x 48 x 48." in page
    assert "With swap 0.5 it is 64 x 64 x 64, 2.37 times the voxels; a step takes" in page
    assert "out of memory" in page
    for region in ("msd_hippocampus, anterior", "tumours, whole"):
        assert f"{region}: Dice 0." in page


@pytest.mark.multiprocess
def test_large_models_goes_without_resolutions(tmp_path):
    write_growth_sweep(tmp_path / "sweep")
    own = {"sweep": str(tmp_path / "sweep"), "resolutions": None}
    notebook = executed("large-models", tmp_path, **own)
    assert titles(notebook) == ["What trains under the cap"]
    assert "1.25 times" in "\n".join(shown(notebook, "text/markdown"))
    assert "set resolutions to the folder" in printed(notebook)


@pytest.mark.multiprocess
def test_traces_as_it_is_kept(tmp_path):
    notebook = executed("traces", tmp_path)
    assert titles(notebook) == ["Steps of all processes"]
    (page,) = shown(notebook, "text/markdown")
    for name in (
        "start (s)",
        "evaluation (s)",
        "input of a step (ms)",
        "all-reduce of a step (ms)",
    ):
        assert name in page
    assert len(page.splitlines()) == 2 + 2  # A row for each of two processes.


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder with a run, `mine/only`, and its data, moved to `moved`."""
    place = tmp_path_factory.mktemp("trained")
    rng = np.random.default_rng(0)
    for case in "abcd":
        mask = np.zeros((40, 56), np.uint8)
        top, left = rng.integers(0, 20, 2)
        mask[top : top + 16, left : left + 20] = 1
        noise = rng.integers(0, 80, mask.shape)
        for name, pixels in (("images", (noise + 120 * mask).astype(np.uint8)), ("masks", mask)):
            (place / "data" / name).mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels).save(place / "data" / name / f"{case}.png")
    # A case that the run leaves out.
    for name in ("images", "masks"):
        (place / "data" / name / "e.png").write_bytes(b"no image")
    (place / "run.toml").write_text(
        'data = "folder"\npatch = [32, 32]\nsteps = 2\npatches_per_case = 4\n'
        'on_bad_sample = "skip"\n'
        "validation_share = 0.5\nmodel_options = { filters = 2, levels = 2 }\n"
        '[data_options]\nroot = "data"\nimages = "images/{case}.png"\n'
        'masks = "masks/{case}.png"\nclasses = { square = 1 }\n'
        "pixel_size = 0.1\ntarget_pixel_size = 0.125\n"
    )
    command = [sys.executable, "-m", "tfunet", "train", "run.toml", "--out", "mine/only"]
    ended = subprocess.run(
        command, cwd=place, env=environment(place), capture_output=True, text=True, timeout=600
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    (place / "data").rename(place / "moved")
    return place


@pytest.mark.multiprocess
def test_segmentation_predicts_the_worst_and_the_best_case(trained, tmp_path):
    own = {"sweep": str(trained / "mine"), "run": "only", "root": str(trained / "moved")}
    notebook = executed("segmentation", tmp_path, **own)
    first, *pictures = titles(notebook)
    assert first == "Dice of every case"
    assert len(pictures) == 2
    assert all(re.match(r"[abcd]: Dice square 0\.\d+", drawing) for drawing in pictures)
    assert "40 x 56" not in printed(notebook)  # predicted at the pixels of the training
    assert "32 x 45 in " in printed(notebook)
    # The worst case first, in the table too.
    (table,) = shown(notebook, "text/markdown")
    rows = [line.split(" | ") for line in table.splitlines() if line.startswith("| ")][2:]
    assert [row[0].strip("| ") for row in rows] == [drawing[0] for drawing in pictures]


@pytest.mark.multiprocess
@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"run": "single-*"}, r"Runs there: only\. Set `run`"),
        ({"root": "../nowhere"}, r"does not exist.*Set `root` to the folder"),
        ({"cases": ["e"]}, r"has no case 'e'\. Known: a, b, c, d"),
    ],
)
def test_segmentation_says_what_is_missing(trained, tmp_path, change, words):
    own = {"sweep": str(trained / "mine"), "run": "only", "root": str(trained / "moved")}
    with pytest.raises(CellExecutionError, match=words):
        executed("segmentation", tmp_path, **{**own, **change})


@pytest.mark.multiprocess
def test_segmentation_as_it_is_kept(tmp_path):
    if not REAL.is_dir():
        with pytest.raises(CellExecutionError, match="Set `root` to the folder"):
            executed("segmentation", tmp_path)
        pytest.skip(f"No real data here: there is no folder ../shared/data/{REAL.name}.")
    first, *pictures = titles(executed("segmentation", tmp_path))
    assert first == "Dice of every case"
    # As good as its records say, on the images as they are stored.
    assert [drawing.split(":")[0] for drawing in pictures] == ["rat8_V915", "rat6_data15"]
    for drawing in pictures:
        assert fmean(map(float, re.findall(r"\d\.\d{3}", drawing))) > 0.8


@pytest.mark.multiprocess
def test_the_commands_of_the_page_execute_and_strip(tmp_path):
    (block,) = blocks(PAGE, "sh")
    script = next(block for block in blocks(PAGE, "python") if block.startswith("# strip.py"))
    # A copy of the project as far as the notebook needs it: it is executed in place.
    (tmp_path / "notebooks").mkdir()
    copy = tmp_path / "notebooks" / "scaling.ipynb"
    copy.write_bytes((NOTEBOOKS / "scaling.ipynb").read_bytes())
    (tmp_path / "logs").symlink_to(ROOT / "logs")
    (tmp_path / "strip.py").write_text(script)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    texts = []
    for line in block.splitlines():
        ended = subprocess.run(
            shlex.split(line, comments=True),
            cwd=tmp_path,
            env={**environment(tmp_path), "PATH": path},
            capture_output=True,
            text=True,
            timeout=CELL_SECONDS,
        )
        assert ended.returncode == 0, ended.stdout + ended.stderr
        texts.append(copy.read_text())
    filled, stripped = texts
    assert "<svg" in filled
    # The kernel writes its version into the metadata; no cell may differ.
    assert nbformat.reads(stripped, 4).cells == read("scaling").cells
