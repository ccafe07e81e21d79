"""`tfunet run` runs a script as Python does, in one process or several, and ends them together."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest
from joining_script import JOINS
from paths import ROOT
from supervised import BUSY, MARK, MOST_SECONDS, all_ready, marked, until

from tfunet.bench.launch.launch_script import SAVES_ITSELF
from tfunet.cli import main
from tfunet.commands.run import script_apart
from tfunet.fit.keras_choice import check_keras

RUN = [sys.executable, "-m", "tfunet", "run"]
TWO = ["--backend", "horovod", "--num_replicas", "2"]
# What it is told as a script, without a line of tfunet.
TELLS = """
import json, os, pickle, subprocess, sys
import beside  # A file in the folder of the script.

class Own:
    pass

def told():
    return [__name__, sys.argv, os.path.basename(sys.path[0]), beside.NUMBER, __file__]

if __name__ == "__main__":
    assert isinstance(pickle.loads(pickle.dumps(Own())), Own)
    assert "tensorflow" not in sys.modules and "keras" not in sys.modules
    child = "import os, sys; sys.exit('TFUNET_SCRIPT' in os.environ)"
    assert subprocess.run([sys.executable, "-c", child]).returncode == 0
    print(json.dumps(told()))
"""
SPAWNS = """
import multiprocessing, sys
from tfunet.fit.joined import join
alone = join().is_alone  # As tfunet.distribute(), above the guard.

def own(number):
    return number + 1, alone

if __name__ == "__main__":
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        print(pool.map(own, [1]), alone)
"""
JOINED = "from tfunet.fit.joined import join\njoined = join()\n"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The current folder, in which whatever the test starts must have ended with it."""
    mark = uuid.uuid4().hex
    monkeypatch.setenv(MARK, mark)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    left = marked(mark)
    for process in left:
        process.kill()
    assert left == []


def script(text, name="script.py"):
    path = Path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return name


def run(*words, **variables):
    return subprocess.run(
        [*RUN, *words],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=MOST_SECONDS,
        check=False,
    )


@pytest.mark.parametrize(
    ("words", "own", "script_words"),
    [
        ("run a.py", "run", "a.py"),
        ("run --backend horovod a.py --backend b", "run --backend horovod", "a.py --backend b"),
        ("run --backend=horovod a.py", "run --backend=horovod", "a.py"),
        ("run --verbose a.py --help", "run --verbose", "a.py --help"),
        ("run --hang_seconds -1 a.py", "run --hang_seconds -1", "a.py"),
        ("run --out a.py b.py", "run --out a.py", "b.py"),
        ("run -h a.py", "run -h", "a.py"),
        ("run --backend", "run --backend", ""),
        # Other commands read all words.
        ("train a.toml --backend b", "train a.toml --backend b", ""),
        ("", "", ""),
    ],
)
def test_what_stands_before_the_script_is_ours(words, own, script_words):
    assert script_apart(words.split()) == (own.split(), script_words.split())


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ([], "Name the script, after the keys: tfunet run [--KEY VALUE ...] SCRIPT.py"),
        (["none.py"], "There is no script 'none.py'. Did you mean 'one.py'?"),
        (["."], "'.' is a folder. Name the Python file in it."),
        (["broken.py"], "'broken.py' is not a Python program: invalid syntax at line 2."),
        (["null.py"], "'null.py' is not a Python program: source code"),
        (["--epochs", "3", "one.py"], "epochs is a key of `tfunet train`"),
        (["--backnd", "horovod", "one.py"], "Did you mean 'backend'?"),
        (["--backend", "horovd", "one.py"], "Unknown backend 'horovd'. Did you mean 'horovod'?"),
        (["--num_replicas", "2", "one.py"], "The backend 'single' trains one replica, got num_rep"),
        (["--num_replicas", "two", "one.py"], "num_replicas must be a whole number"),
        (["--share_cores", "one.py"], "share_cores must be true or false, got the text 'one.py'"),
        (["--hang_seconds", "-1", "one.py"], "hang_seconds must not be negative"),
        (["--backend", "mirrored", "--processes", "2", "one.py"], "runs in one process, got proc"),
    ],
)
def test_wrong_command_is_one_error_before_any_process(words, error, folder, capsys):
    script("pass", "one.py")
    script("x = 1\nthis is no program", "broken.py")
    script("x = 1\0", "null.py")
    assert main(["run", *words]) == 2
    told = capsys.readouterr().err
    assert told.startswith("error: ")
    assert error in told
    assert told.count("\n") == 1
    assert not Path("logs").exists()


@pytest.mark.parametrize(
    ("environment", "named", "words"),
    [
        ({"KERAS_BACKEND": "jax"}, None, "KERAS_BACKEND chooses the Keras backend 'jax'"),
        ({}, '{"backend": "torch"}', "keras.json chooses the Keras backend 'torch'"),
        ({"TF_USE_LEGACY_KERAS": "1"}, None, "TF_USE_LEGACY_KERAS makes Keras 2 of tf.keras"),
        # The variable counts more than the file; Keras does not read a broken file either.
        ({"KERAS_BACKEND": "tensorflow"}, '{"backend": "torch"}', None),
        ({"TF_USE_LEGACY_KERAS": "0"}, "{", None),
        ({}, '{"floatx": "float32"}', None),
        ({}, None, None),
    ],
)
def test_keras_on_another_backend_is_refused(environment, named, words, tmp_path):
    if named is not None:
        (tmp_path / ".keras").mkdir()
        (tmp_path / ".keras/keras.json").write_text(named)
    if words is None:
        check_keras(environment, tmp_path)
        return
    with pytest.raises(ValueError, match=words):
        check_keras(environment, tmp_path)


def test_help_says_what_each_key_means(capsys):
    assert main(["run", "--help"]) == 0
    told = capsys.readouterr().out
    assert "  --cores_per_replica     Number of CPU cores" in told
    assert "--epochs" not in told


@pytest.mark.multiprocess
def test_a_script_is_told_what_python_would_tell_it(folder):
    script("NUMBER = 7", "deep/beside.py")
    words = [script(TELLS, "deep/tells.py"), "--backend", "x", "-h", "--", ""]
    by_python = subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, check=True
    ).stdout
    done = run(*words)
    assert (done.stdout, done.stderr, done.returncode) == (by_python, "", 0)
    assert json.loads(by_python)[1] == words


@pytest.mark.multiprocess
def test_spawned_helpers_of_a_script_join_nobody(folder):
    done = run("--backend", "mirrored", script(SPAWNS))
    assert "[(2, True)] False" in done.stdout.splitlines(), done


@pytest.mark.multiprocess
@pytest.mark.parametrize(
    ("end", "code", "said"),
    [
        ("sys.exit(7)", 7, "tfunet: process 0 of 1 ended with exit code 7, see log-0.txt"),
        ("sys.exit('no')", 1, "no"),
        ("sys.exit()", 0, ""),
        ("sys.exit(0)", 0, ""),
        ("raise KeyError('x')", 1, "KeyError: 'x'"),
        ("os.kill(os.getpid(), 9)", 3, "tfunet: process 0 of 1 was killed by SIGKILL"),
    ],
)
def test_the_end_of_a_script_is_that_of_the_command(folder, end, code, said):
    done = run(script(f"import atexit, os, sys\natexit.register(print, 'at exit')\n{end}\n"))
    assert done.returncode == code
    assert said in done.stderr
    assert bool(said) == bool(done.stderr)
    assert ("at exit" in done.stdout) == (code != 3)


@pytest.mark.multiprocess
def test_a_traceback_begins_in_the_script_and_is_shown_once(folder):
    name = script("def f():\n    raise RuntimeError('boom')\ntry:\n    f()\nfinally:\n    pass\n")
    done = run(*TWO, "--verbose", name)
    assert done.returncode == 1
    lines = done.stderr.splitlines()
    (own, *_) = [line[:4] for line in lines if line.endswith("boom")]
    assert [line for line in lines if line.startswith(own)][:6] == [
        f"{own}Traceback (most recent call last):",
        f'{own}  File "{folder}/script.py", line 4, in <module>',
        f"{own}    f()",
        f'{own}  File "{folder}/script.py", line 2, in f',
        f"{own}    raise RuntimeError('boom')",
        f"{own}RuntimeError: boom",
    ]
    assert "tfunet/" not in done.stderr
    assert "runpy" not in done.stderr


@pytest.mark.multiprocess
@pytest.mark.parametrize("backend", ["horovod", "mirrored"])
def test_a_script_for_several_devices_that_never_joins_is_told_so(folder, backend):
    done = run("--backend", backend, "--num_replicas", "2", script("print('trained')"))
    assert done.returncode == 2
    words = "script.py never called tfunet.distribute(), so nothing was trained on 2 devices"
    assert done.stderr.count(f"error: {words} together.") == 1


@pytest.mark.multiprocess
def test_an_error_of_ours_is_one_line_that_says_where(folder):
    text = "from tfunet.fit.joined import join\n\njoin('multiworker')\n"
    done = run("--backend", "mirrored", script(text))
    assert done.returncode == 2
    assert done.stderr == (
        "error: tfunet run --backend mirrored started this script, which asks for the backend "
        "'multiworker'. Leave one of them out. (script.py, line 3)\n"
    )


@pytest.mark.multiprocess
def test_processes_have_their_own_cores_and_logs(folder):
    line = "print(sorted(os.sched_getaffinity(0)), flush=True)"
    done = run(*TWO, "--out", "out", "--verbose", script(f"import os\n{JOINED}{line}\n"))
    assert done.returncode == 0, done.stderr
    cores = {line[:3]: line[4:] for line in done.stdout.splitlines()}
    assert cores["[0]"] != cores["[1]"]
    assert Path("out/log-1.txt").read_text() == cores["[1]"] + "\n"
    assert sorted(os.listdir("out")) == ["log-0.txt", "log-1.txt"]


@pytest.mark.multiprocess
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_all_at_once(folder, number, code):
    text = "import json, os, subprocess, time\n"
    text += "index = json.loads(os.environ['TFUNET_LAUNCH'])['process_index']\n" + BUSY
    process = subprocess.Popen([*RUN, *TWO, script(text)], stderr=subprocess.PIPE, text=True)
    until(all_ready)
    begin = time.monotonic()
    process.send_signal(number)
    told = process.communicate(timeout=MOST_SECONDS)[1].splitlines()
    assert time.monotonic() - begin < 10  # Nothing is saved, so nothing is waited for.
    assert process.returncode == code
    assert told == [
        f"tfunet: interrupted by {number.name}",
        f"tfunet: {SAVES_ITSELF}",
    ]


@pytest.mark.multiprocess
def test_a_killed_process_is_named_with_its_last_lines(folder):
    text = "import json, os, time\nprint('the last words', flush=True)\n"
    text += "if json.loads(os.environ['TFUNET_LAUNCH'])['process_index'] == 1:\n"
    text += "    os.kill(os.getpid(), 9)\ntime.sleep(600)\n"
    done = run(*TWO, script(text))
    assert done.returncode == 3
    assert done.stderr.splitlines()[:2] == [
        "[1] the last words",
        "tfunet: process 1 of 2 was killed by SIGKILL, see log-1.txt",
    ]


@pytest.mark.multiprocess
def test_who_lets_others_wait_hangs_and_own_code_does_not(folder):
    text = """
import json, os, sys, time
from tfunet.fit.joined import join
joined = join()
time.sleep(4)
if joined.launch.process_index == 0:
    joined.begin("step 1", 1)
time.sleep(600)
"""
    begin = time.monotonic()
    done = run(*TWO, "--hang_seconds", "2", script(text))
    assert 6 < time.monotonic() - begin < MOST_SECONDS
    assert done.returncode == 3
    words = "process 1 of 2 hangs: its own code for 2 s, and process 0 of 2 waits in step 1"
    assert f"tfunet: {words}; the Python stacks" in done.stderr
    assert (
        f'File "{folder}/script.py", line 8 in <module>' in Path(f"{logs()}/log-1.txt").read_text()
    )


def logs():
    (one,) = Path("logs/scripts").iterdir()
    return one


@pytest.mark.multiprocess
@pytest.mark.parametrize("backend", ["horovod", "multiworker"])
def test_processes_of_the_command_join(folder, backend):
    done = run("--backend", backend, "--num_replicas", "2", "--verbose", script(JOINS))
    assert done.returncode == 0, done.stderr
    said = sorted(done.stdout.splitlines())
    assert said == [f"[{index}] {backend} {index} of 2: 3.0" for index in range(2)]


@pytest.mark.multiprocess
def test_a_library_missing_its_peers_ends_with_its_name(folder):
    text = JOINS.replace("leave()", "if topology.process_index == 1:\n    os.kill(os.getpid(), 9)")
    text += "joined.backend.sum(np.zeros(1))\n"
    pair = [start_by_hand(index, script(text)) for index in range(2)]
    errors = [process.communicate(timeout=MOST_SECONDS)[1] for process in pair]
    assert [process.returncode for process in pair] == [1, -9]
    words = "error: process 1 of 2 on 127.0.0.1 has ended, and a step needs all processes."
    assert words in errors[0].splitlines()[-1], errors[0]


def start_by_hand(index, *words):
    place = {"TFUNET_HOSTS": "127.0.0.1,127.0.0.1", "TFUNET_PROCESS": str(index)}
    return subprocess.Popen(
        [*RUN, "--backend", "horovod", *words],
        env={**os.environ, **place},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.multiprocess
@pytest.mark.skipif(not shutil.which("mpirun"), reason="no mpirun: apt-get install openmpi-bin")
def test_processes_of_mpirun_join_without_a_supervisor(folder):
    how = ["--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-np", "2"]
    command = ["mpirun", *how, *RUN, "--backend", "horovod", script(JOINS)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=MOST_SECONDS)
    assert sorted(done.stdout.splitlines()) == [f"horovod {index} of 2: 3.0" for index in range(2)]
    assert list(Path("logs/scripts").iterdir()) == []


@pytest.mark.multiprocess
@pytest.mark.parametrize(
    ("words", "error"),
    [
        ([], "A launcher started 2 processes, and nothing says what connects them."),
        (["--backend", "mirrored"], "The run takes 1 process, and its launcher started 2."),
        (["--backend", "horovod", "--num_replicas", "4"], "takes 4 processes, and its launcher"),
        (["--backend", "horovod", "--out", "x"], "--out is the folder for the output of processes"),
    ],
)
def test_what_a_launcher_started_must_fit(words, error, folder, monkeypatch, capsys):
    # As torchrun starts them.
    variables = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "here"}
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert main(["run", *words, script("pass")]) == 2
    assert error in capsys.readouterr().err
