"""What a run shows at the terminal, and what its logs keep."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from supervised import (
    BUSY,
    MOST_SECONDS,
    PRELUDE,
    SUPERVISOR,
    run,
)

from tfunet.bench.launch import supervisor as supervisor_module
from tfunet.record import RunFolder


def test_terminal_shows_the_chief_and_logs_have_everyone(mark, capfd):
    assert run("print('out', index); print('err', index, file=sys.stderr)").exit_code == 0
    shown = capfd.readouterr()
    assert shown.out == "[0] out 0\n"
    assert shown.err == "[0] err 0\n"
    for index in range(2):
        lines = Path(f"run/log-{index}.txt").read_text().splitlines()
        assert sorted(lines) == [f"err {index}", f"out {index}"]


def test_verbose_shows_everyone(mark, capfd):
    run("print('out', index)", verbose=True)
    assert sorted(capfd.readouterr().out.splitlines()) == ["[0] out 0", "[1] out 1"]


def test_single_process_has_no_prefix_and_its_progress_bar_moves(mark, capfd):
    run("print('\\r 50%', end=''); print('\\r100%')", num_replicas=1)
    assert capfd.readouterr().out == "\r 50%\r100%\n"
    assert Path("run/log-0.txt").read_text() == "100%\n"


def test_failing_process_shows_the_end_of_what_it_wrote(mark, capfd):
    program = """
if index == 1:
    for line in range(50):
        print("line", line)
    sys.exit(2)
time.sleep(600)
"""
    run(program)
    lines = capfd.readouterr().err.splitlines()
    assert lines[:20] == [f"[1] line {line}" for line in range(30, 50)]
    assert lines[20:] == [
        "tfunet: process 1 of 2 ended with exit code 2, see log-1.txt",
        "tfunet: All its output is in run/log-1.txt",
    ]
    failure = RunFolder(Path("run")).read_failure()
    assert failure["reason"].endswith("see log-1.txt: line 49")


@pytest.mark.parametrize(
    ("end", "lines"),
    [
        ("print('error: no', file=sys.stderr); sys.exit(2)", ["error: no"]),
        ("sys.exit(2)", 2 * ["tfunet: "]),  # Nothing else says what happened.
        ("print('error: no', file=sys.stderr); sys.exit(4)", ["error: no", *2 * ["tfunet: "]]),
    ],
)
def test_an_error_of_use_of_a_single_process_is_said_once(mark, capfd, end, lines):
    run(end, num_replicas=1)
    said = capfd.readouterr().err.splitlines()
    assert [line.startswith(start) for line, start in zip(said, lines, strict=True)] == [
        True for _ in lines
    ]


@pytest.mark.parametrize("first", [0, 1])
def test_what_all_processes_found_wrong_is_said_once(mark, monkeypatch, capfd, first):
    monkeypatch.setattr(supervisor_module, "SETTLE_SECONDS", MOST_SECONDS)
    program = f"""
while index != {first} and not os.path.exists("pid"):
    time.sleep(0.01)
while index != {first} and os.path.exists("/proc/" + open("pid").read()):
    time.sleep(0.01)
print("error: split = [9, 1] has too many parts", file=sys.stderr, flush=True)
if index == {first}:
    with open("new", "w") as file:
        file.write(str(os.getpid()))
    os.rename("new", "pid")
sys.exit(2)
"""
    assert run(program).exit_code == 2
    said = [line for line in capfd.readouterr().err.splitlines() if "too many parts" in line]
    assert [line[4:] for line in said] == ["error: split = [9, 1] has too many parts"]
    assert "too many parts" in RunFolder(Path("run")).read_failure()["reason"]


def test_last_words_of_a_single_process_are_not_lost(mark):
    # It ends while its pipe holds more than one read, and nobody else is left to wait for.
    program = """
import fcntl
fcntl.fcntl(1, fcntl.F_SETPIPE_SZ, 2**20)
sys.stdout.write("x\\n" * 250000 + "the end\\n")
sys.stdout.flush()
sys.exit(1)
"""
    outcome = run(program, num_replicas=1)
    assert outcome.reason == "process 0 of 1 ended with exit code 1, see log-0.txt: the end"
    assert Path("run/log-0.txt").stat().st_size == 2 * 250000 + len("the end\n")


def test_chief_knows_of_the_terminal_behind_the_supervisor(mark, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    program = """
names = ("TFUNET_TERMINAL", "COLUMNS")
with open(f"ready-{index}", "w") as file:
    file.write(" ".join(str(os.environ.get(name)) for name in names))
"""
    for with_terminal in (True, False):
        main, other = os.openpty()
        errors = other if with_terminal else subprocess.DEVNULL
        subprocess.run([sys.executable, "-c", SUPERVISOR, PRELUDE + program, "2"], stderr=errors)
        os.close(main)
        os.close(other)
        # A progress bar and its prefix fit into one line.
        assert Path("ready-0").read_text() == ("1 96" if with_terminal else "None 100")
        assert Path("ready-1").read_text() == "None 100"


def test_reader_that_went_away_does_not_end_the_run(mark):
    process = subprocess.Popen(
        [sys.executable, "-c", SUPERVISOR, PRELUDE + "for i in range(9): print(i)", "2"],
        stdout=subprocess.PIPE,
    )
    process.stdout.close()
    assert process.wait(MOST_SECONDS) == 0
    assert Path("run/log-0.txt").read_text() == "".join(f"{i}\n" for i in range(9))


def test_full_disk_under_the_logs_ends_the_run_and_is_named(mark):
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (20000, 20000))\n"
    process = subprocess.Popen(
        [sys.executable, "-c", limit + SUPERVISOR, PRELUDE + "print('x' * 30000)" + BUSY, "2"],
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    )
    _, errors = process.communicate(timeout=MOST_SECONDS)
    assert process.returncode == 5
    assert "Cannot write run/log-" in errors
    assert "See ulimit -f" in errors
    assert RunFolder(Path("run")).read_failure()["exit_code"] == 5
