"""The command line as a person meets it: what works without TensorFlow, and every bad input."""

import json
import os
import re
import signal
import subprocess
import sys
import time
import zipfile

import numpy as np
import psutil
import pytest
from paths import ROOT
from PIL import Image

from tfunet import exit_codes
from tfunet.arguments import parse
from tfunet.cli import main
from tfunet.config.run import RunConfig
from tfunet.record import RunFolder

SMALL = [
    *("--data_options.num_cases", "10", "--data_options.size", "32"),
    *("--model_options.filters", "4"),
]
TRAIN = [sys.executable, "-m", "tfunet", "train", *SMALL]


def tfunet(*arguments, folder, timeout=280, **environment):
    return subprocess.run(
        [sys.executable, "-m", "tfunet", *map(str, arguments)],
        cwd=ROOT,
        env={**os.environ, "TFUNET_CACHE": str(folder / "cache"), **environment},
        capture_output=True,
        text=True,
        timeout=timeout,
    )


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["models"],
        ["sweep", "plan", "studies/quickstart.toml"],
        ["sweep", "plan", "studies/quickstart.toml", "--precision", "5%"],
        ["sweep", "status", "SWEEP"],
        ["report", "SWEEP"],
        ["report", "SWEEP", "--json"],
        ["compare", "SWEEP", "SWEEP", "--tolerance", "3%"],
        ["train", "--help"],
        ["completion", "bash"],
    ],
)
def test_command_imports_no_tensorflow(arguments, tmp_path):
    sweep = tmp_path / "sweep"
    sweep.mkdir()
    given = [str(sweep) if word == "SWEEP" else word for word in arguments]
    code = (
        "import sys; from tfunet.cli import main\n"
        f"try: main({given!r})\nexcept SystemExit: pass\n"
        "loaded = {'tensorflow', 'keras', 'horovod'} & set(sys.modules)\n"
        "sys.exit(f'imported: {loaded}' if loaded else 0)"
    )
    ended = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--backend", "horovd"], "Did you mean 'horovod'"),
        (["--model", "unett"], "Did you mean 'unet'"),
        (["--data", "cels"], "Did you mean 'cells'"),
        (["--modle", "unet"], "Did you mean 'model'"),
        (["--backend", "mirrored", "--num_replicas", "999"], "999 needs a CPU core"),
        (["--num_replicas", "2", "--global_batch", "5"], "cannot be divided"),
        (["--num_replicas", "2"], "'single' trains one replica, got num_replicas=2"),
        (["--config", "nowhere.toml"], "no configuration file"),
        (["--precision", "float8"], "Known: float32"),
        (["--split", "[2, 1]"], "'single' has one device, and split=[2, 1] needs 2"),
        (["--backend", "mirrored", "--split", "[0, 1]"], "split must be positive numbers"),
        (["--backend", "mirrored", "--split", "[40, 30]"], "needs a CPU core for each of 1200"),
        (["--backend", "mirrored", "--split", "[2]"], "each of the 2 or 3 axes"),
        # Known from the data only: cells are 2D.
        (["--backend", "mirrored", "--split", "[2, 1, 1]"], "has 3 numbers, and a sample of shape"),
        (
            ["--backend", "horovod", "--split", "[2, 1]", "--elastic", "true"],
            "elastic and split exclude each other",
        ),
        (["--backend", "mirrored", "--split", "[2, 1]", "--xla", "true"], "xla and split exclude"),
        (
            ["--stages", "2"],
            "stages=2 needs a device for each stage, and the backend 'single' has",
        ),
        (
            ["--backend", "mirrored", "--stages", "2", "--num_replicas", "2"],
            "has one process. Leave out num_replicas, or choose another backend: multiworker",
        ),
        (["--backend", "horovod", "--stages", "400"], "needs a CPU core for each of 400 devices"),
        (["--backend", "horovod", "--stages", "2", "--balance", '["a", "b"]'], "must name as many"),
    ],
)
def test_bad_settings_end_before_anything_starts(arguments, message, tmp_path, monkeypatch, capfd):
    monkeypatch.setenv("TFUNET_CACHE", str(tmp_path / "cache"))
    assert main(["train", *arguments, "--out", str(tmp_path / "run")]) == exit_codes.BAD_INPUT
    said = capfd.readouterr().err
    assert message in said
    assert "Traceback" not in said
    assert not (tmp_path / "run").exists()


def mpirun(number):
    """The variables of a process that mpirun started with others."""
    values = {"RANK": 1, "SIZE": number, "LOCAL_SIZE": number}
    return {f"OMPI_COMM_WORLD_{name}": str(value) for name, value in values.items()}


def slurm(number):
    values = {"PROCID": 0, "STEP_NUM_TASKS": number, "JOB_ID": 7, "STEP_ID": 0, "LOCALID": 0}
    values |= {"STEP_NODELIST": "n1", "STEP_TASKS_PER_NODE": number}
    return {f"SLURM_{name}": str(value) for name, value in values.items()} | {
        "SLURMD_NODENAME": "n1"
    }


HOROVOD, TWO = ["--backend", "horovod"], ["--num_replicas", "2"]


@pytest.mark.parametrize(
    ("variables", "given", "message"),
    [
        (mpirun(2), ["--backend", "mirrored", *TWO], "takes 1 process, and its launcher"),
        (mpirun(2), [*HOROVOD, "--num_replicas", "3"], "takes 3 processes, and its launcher"),
        (mpirun(2), [*HOROVOD, *TWO, "--out", ""], "name the folder that all processes use"),
        (mpirun(2), [*HOROVOD, *TWO, "--elastic", "true"], "elastic needs processes that tfunet"),
        (
            slurm(4),
            [*HOROVOD, "--stages", "3"],
            "takes 3 processes, and its launcher started 4. Start 3, or choose parts or stages "
            "that share 4 processes",
        ),
        (
            slurm(3),
            [*HOROVOD, "--stages", "2", *TWO],
            "takes 4 processes, 2 for each replica, and its launcher started 3. Start 4, or",
        ),
        (
            slurm(4),
            [*HOROVOD, "--stages", "2"],
            "Start 2, or give num_replicas=2 with the backend horovod",
        ),
        # Each of several processes would train the whole run.
        ({"TF_CONFIG": '{"cluster": {"worker": ["a:1", "b:1"]}}'}, [], "its launcher started 2"),
        (
            {"HOROVOD_RANK": "0", "HOROVOD_SIZE": "2"},
            [],
            "horovodrun does not say on which hosts",
        ),
        ({"PMIX_RANK": "1"}, [], "PMIX_RANK=1 says that PMIx started this process with others"),
    ],
)
def test_a_run_that_does_not_fit_what_a_launcher_started_is_refused(
    variables, given, message, monkeypatch, capsys, tmp_path
):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    out = [] if "--out" in given else ["--out", str(tmp_path / "run")]
    words = [word for word in given if word not in ("--out", "")]
    assert main(["train", "--steps", "1", *words, *out]) == exit_codes.BAD_INPUT
    assert message in capsys.readouterr().err
    assert not any(tmp_path.iterdir())


TOURNAMENT = ["--tournament.trainers", "2", "--tournament.round_steps", "1"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--slurm"], "With --slurm, name the folder of the run"),
        (["--dry-run", "--out", "new"], "--dry-run prints the job script: give --slurm, too"),
        (["--slurm", "run.toml", "--out", "new"], "run.toml has keys of a run. The file after"),
        (["--slurm", "--out", "old"], "old has the record of a run. Name another folder"),
        (
            ["--slurm", "--out", "new", *TOURNAMENT],
            "A tournament is several runs: submit a study",
        ),
    ],
)
def test_a_job_of_one_run_that_cannot_be_is_refused(words, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.toml").write_text("steps = 2\n")
    (tmp_path / "old").mkdir()
    (tmp_path / "old/config.json").write_text("{}")
    assert main(["train", *words]) == exit_codes.BAD_INPUT
    assert message in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


def test_the_help_of_train_is_words(capsys):
    assert main(["train", "--help"]) == exit_codes.OK
    assert "import" not in capsys.readouterr().out.replace("important", "")


@pytest.mark.parametrize("options", [[], ["--slurm"]])
def test_a_sweep_under_a_launcher_is_refused(options, monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("TF_CONFIG", '{"cluster": {"worker": ["a:1", "b:1"]}}')
    (tmp_path / "study.toml").write_text("[base]\nsteps = 1\n")
    given = ["sweep", "run", str(tmp_path / "study.toml"), "--out", str(tmp_path / "sweep")]
    assert main([*given, *options]) == exit_codes.BAD_INPUT
    assert "process 0 of 2 that a launcher started" in capsys.readouterr().err
    assert not (tmp_path / "sweep").exists()


@pytest.mark.parametrize(
    ("backend", "message"),
    [("multiworker", "one replica per process on CPUs"), ("horovod", "Leave out processes")],
)
def test_backend_refuses_replicas_that_it_cannot_place(backend, message, tmp_path):
    given = ("--backend", backend, "--num_replicas", "2", "--processes", "1")
    ended = tfunet("train", *given, "--out", tmp_path / "run", folder=tmp_path)
    assert ended.returncode == 2
    assert message in ended.stderr
    assert "Traceback" not in ended.stderr
    # Said once, whatever the number of processes.
    assert ended.stderr.count("opens a port on all network interfaces") == (
        backend == "multiworker"
    )


def pairs(folder):
    """Ten images of 32 x 32 with masks."""
    random = np.random.default_rng(0)
    for kind in ("images", "masks"):
        (folder / kind).mkdir(parents=True)
    for number in range(10):
        mask = np.zeros((32, 32), np.uint8)
        mask[8:20, 8:20] = 1
        image = (100 * mask + random.integers(0, 50, mask.shape)).astype(np.uint8)
        Image.fromarray(image).save(folder / f"images/{number}.png")
        Image.fromarray(mask).save(folder / f"masks/{number}.png")


def truncate(folder):
    path = folder / "images/3.png"
    path.write_bytes(path.read_bytes()[:200])


def shrink(folder):
    Image.fromarray(np.zeros((32, 30), np.uint8)).save(folder / "masks/3.png")


def relabel(folder):
    Image.fromarray(np.full((32, 32), 7, np.uint8)).save(folder / "masks/3.png")


@pytest.mark.parametrize(
    "harm",
    [
        lambda folder: (folder / "masks/3.png").unlink(),
        lambda folder: (folder / "images/3.png").unlink(),
        shrink,
        relabel,
        truncate,
    ],
    ids=["missing mask", "missing image", "size of mask", "label out of range", "truncated"],
)
def test_defective_file_is_named_before_training(harm, tmp_path, monkeypatch, capfd):
    pairs(tmp_path)
    harm(tmp_path)
    (tmp_path / "run.toml").write_text(
        f'data = "folder"\npatch = [32, 32]\nsteps = 2\n[data_options]\nroot = "{tmp_path}"\n'
        'images = "images/{case}.png"\nmasks = "masks/{case}.png"\nclasses = { cell = 1 }\n'
    )
    monkeypatch.setenv("TFUNET_CACHE", str(tmp_path / "cache"))
    words = ["train", str(tmp_path / "run.toml"), "--out", str(tmp_path / "run")]
    assert main(words) == exit_codes.BAD_INPUT
    assert "3.png" in capfd.readouterr().err
    assert not (tmp_path / "run/steps.csv").exists()
    assert not (tmp_path / "run/result.json").exists()


def test_folder_that_cannot_be_written_is_named(tmp_path, monkeypatch, capfd):
    monkeypatch.setenv("TFUNET_CACHE", str(tmp_path / "cache"))
    (tmp_path / "file").write_text("in the way")
    given = ["train", *SMALL, "--out", str(tmp_path / "file/run")]
    assert main(given) == exit_codes.NOT_WRITTEN
    assert "Cannot write" in capfd.readouterr().err


def test_full_disk_ends_the_run_and_leaves_no_half_written_file(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", disk]).returncode
    limit = "" if mounted == 0 else "ulimit -f 40; "  # KiB of a file, where mounting is forbidden
    command = f'{limit}exec "$@"'
    try:
        ended = subprocess.run(
            ["bash", "-c", command, "bash", *TRAIN, "--steps", "4", "--out", str(disk / "run")],
            cwd=ROOT,
            env={**os.environ, "TFUNET_CACHE": str(tmp_path / "cache")},
            capture_output=True,
            text=True,
            timeout=280,
        )
        assert ended.returncode == 5, ended.stderr
        assert "checkpoint.npz" in ended.stderr
        left = {path.name for path in (disk / "run").iterdir()}
        assert not left & {"checkpoint.npz", "model.keras", "result.json"}
        assert not [name for name in left if name.startswith(".partial")]
    finally:
        if mounted == 0:
            subprocess.run(["umount", disk], check=True)


@pytest.mark.multiprocess
@pytest.mark.parametrize(
    ("number", "code", "backend"),
    [(signal.SIGINT, 130, "multiworker"), (signal.SIGTERM, 143, "horovod")],
)
def test_ended_run_is_saved_and_leaves_no_process_no_port_and_no_half_written_file(
    number, code, backend, tmp_path
):
    run = tmp_path / "run"
    process = subprocess.Popen(
        [
            *(*TRAIN, "--backend", backend, "--num_replicas", "2"),
            *("--steps", "100000", "--out", str(run)),
        ],
        cwd=ROOT,
        env={**os.environ, "TFUNET_CACHE": str(tmp_path / "cache")},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        children = wait_for_steps(run, process)
        launch = json.loads(children[0].environ()["TFUNET_LAUNCH"])
        process.send_signal(number)
        _, errors = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode == code, errors
    saved = re.search(r"^tfunet: Saved after step (\d+)\. To go on from there: ", errors, re.M)
    assert saved, errors
    with np.load(run / "checkpoint.npz") as checkpoint:
        assert json.loads(checkpoint["facts"].tobytes())["step"] == int(saved[1])
    assert not [child for child in children if child.is_running() and child.status() != "zombie"]
    ports = {int(address.rsplit(":", 1)[1]) for address in launch["addresses"]}
    listening = {
        connection.laddr.port
        for connection in psutil.net_connections()
        if connection.status == psutil.CONN_LISTEN
    }
    assert not ports & listening
    assert not list(run.glob(".partial*"))
    assert json.loads((run / "failure.json").read_text())["exit_code"] == code
    assert not (run / "result.json").exists()


def wait_for_steps(run, process):
    """Wait until training has begun; return the processes that the run started."""
    deadline = time.monotonic() + 200
    while time.monotonic() < deadline:
        time.sleep(0.1)
        assert process.poll() is None, process.stderr.read()
        table = run / "steps.csv"
        if table.exists() and len(table.read_text().splitlines()) > 1:
            return [
                child
                for child in psutil.Process(process.pid).children(recursive=True)
                if "tfunet.worker" in " ".join(child.cmdline())
            ]
    raise AssertionError("Training did not begin.")


def test_keys_of_a_run_may_stand_anywhere(tmp_path, capsys):
    file, cache = tmp_path / "run.toml", tmp_path / "cache"
    file.write_text('data = "cells"\nseed = 1\n[data_options]\nnum_cases = 6\nsize = 32\n')
    assert main(["data", "cache", "--clear", "--cache_dir", str(cache)]) == 0
    assert capsys.readouterr().out == f"Removed 0 data sets from {cache}; 0 are in use.\n"
    size = ["--data_options.size", "48"]
    for words in (
        ["data", "check", *size, str(file), "--json"],
        ["data", "check", "--json", "--seed=3", str(file), *size],
    ):
        assert main(words) == 0
        assert json.loads(capsys.readouterr().out)["cases"][0]["shape"] == [48, 48]
    # A key without its value takes no option for it.
    assert main(["data", "check", str(file), "--seed", "--json"]) == 2
    assert main(["data", "check", "--sed", "3", str(file)]) == 2
    assert "Did you mean 'seed'" in capsys.readouterr().err
    # What is typed overrides the file, wherever it stands.
    assert main(["train", "--seed", "x", str(file)]) == 2
    assert "seed must be a whole number, got the text 'x'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["evaluate", "nothere", "."], "There is no folder 'nothere'"),
        (["predict", "nothere", "a.png"], "There is no folder 'nothere'"),
        (["evaluate", ".", "."], ". holds no run"),
        (["evaluate", "begun", "."], "The run in begun is not finished"),
        (["evaluate", "run", "."], "Say where to write to: --out FOLDER."),
    ],
)
def test_the_run_is_looked_for_before_the_other_arguments(
    arguments, words, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    for folder in (RunFolder(tmp_path / "begun"), RunFolder(tmp_path / "run")):
        folder.create()
        folder.write_config(RunConfig())
    folder.write_data(
        {"name": "a", "channels": 1, "num_classes": 2, "patch": [32, 32], "preparation": None}
    )
    folder.write_result({})
    with zipfile.ZipFile(tmp_path / "run/model.keras", "w") as archive:
        archive.writestr("model.weights.h5", b"")
    assert main(arguments) == exit_codes.BAD_INPUT
    assert words in capsys.readouterr().err


def test_a_backend_that_is_not_installed_is_one_line_before_anything_starts(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.setitem(sys.modules, "horovod", None)  # Python finds it nowhere.
    command = ["train", "--data", "cells", "--backend", "horovod", "--num_replicas", "2"]
    assert main([*command, "--out", str(tmp_path / "run")]) == exit_codes.BAD_INPUT
    said = capsys.readouterr().err
    assert "'horovod' needs horovod, which is not installed. To build it: " in said
    assert len(said.splitlines()) == 1
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("amount", [["--epochs", "2"], ["--steps", "20"]])
def test_the_same_command_on_a_finished_run_is_done_already(amount, tmp_path, capsys):
    given = ["--data", "cells", *amount]
    folder = RunFolder(tmp_path / "run")
    folder.create()
    folder.begin(parse(given))
    folder.write_result({})
    out = ["--out", str(folder.path)]
    assert main(["train", *given, *out]) == exit_codes.OK
    assert capsys.readouterr().out.startswith("Done already")
    assert main(["train", *given, *out, "--seed", "9"]) == exit_codes.BAD_INPUT
    assert "other settings: seed=9" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["trian"], "Did you mean 'train'?"),
        (["data", "chek"], "Did you mean 'check'?"),
        (["train", "run.tml"], "no configuration file 'run.tml'. Did you mean 'run.toml'?"),
        (["data", "check", "rum.toml"], "Did you mean 'run.toml'?"),
        (["init", "nowhere"], "'nowhere' does not exist. Give the folder"),
        (["init", "."], "run.toml is there already"),
        (["auto", "nowhere"], "'nowhere' does not exist. Give the folder"),
    ],
)
def test_a_typo_is_named(arguments, words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.toml").write_text("epochs = 2\n")
    try:
        code = main(arguments)
    except SystemExit as error:
        code = error.code
    assert code == exit_codes.BAD_INPUT
    assert words in capsys.readouterr().err


def test_models_list_is_models(capsys):
    assert main(["models"]) == 0
    listed = capsys.readouterr().out
    assert main(["models", "list"]) == 0
    assert capsys.readouterr().out == listed


def test_a_picture_of_samples_overwrites_none(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.toml").write_text("data_options = { num_cases = 8, size = 32 }\n")
    (tmp_path / "samples.png").write_text("mine")
    for name in ("samples-2.png", "samples-3.png"):
        assert main(["data", "show", "run.toml", "--num_samples", "1"]) == 0
        assert capsys.readouterr().out.endswith(f"Picture: {name}\n")
    assert (tmp_path / "samples.png").read_text() == "mine"
