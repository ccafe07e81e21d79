"""The Makefile's set-up with a stand-in for Python, pip and the Horovod build: no network."""

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest
from paths import ROOT

FAKE_PYTHON = Path(__file__).with_name("fake_python.sh")
ENV = ".venv/tf-0.0"
ALL_STEPS = ["venv", "packages", "horovod"]


class Project:
    """A folder with the real Makefile and a constraints file for a TensorFlow 0.0."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.num_runs = 0
        (folder / "hvd").mkdir(parents=True)
        (folder / "constraints").mkdir()
        (folder / "bin").mkdir()
        (folder / "hvd/build.py").write_text("first")
        (folder / "constraints/tf-0.0.txt").write_text("numpy==1.0\n")
        (folder / "constraints/tf-0.0.hashes").write_text("numpy==1.0 --hash=sha256:0\n")
        (folder / "setup.cfg").write_text("[metadata]\n")
        shutil.copy(ROOT / "Makefile", folder)
        for name in ("python3.11", "mv"):
            shutil.copy(FAKE_PYTHON, folder / "bin" / name)

    def start(self, *arguments: str, **variables: str) -> subprocess.Popen[str]:
        self.num_runs += 1
        # Less what an outer make, whose test this is, tells the makes that it starts.
        inherited = {
            name: value
            for name, value in os.environ.items()
            if name not in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL", "MAKEOVERRIDES", "TF", "PYTHON")
        }
        path = f"{self.folder / 'bin'}:{os.environ['PATH']}"
        return subprocess.Popen(
            ["make", "TF=0.0", *(arguments or ["env"])],
            cwd=self.folder,
            env={**inherited, "PATH": path, "RUN": str(self.num_runs), **variables},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def make(self, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        (self.folder / "calls").unlink(missing_ok=True)
        process = self.start(*arguments, **variables)
        output, errors = process.communicate(timeout=120)
        return subprocess.CompletedProcess(process.args, process.returncode, output, errors)

    def wait_until_stopped(self) -> None:
        deadline = time.monotonic() + 100
        while not (self.folder / "stopped").exists():
            assert time.monotonic() < deadline, "the step was never reached"
            time.sleep(0.01)
        (self.folder / "stopped").unlink()

    def kill_at(self, moment: str) -> None:
        killed = self.start(STOP_AT=moment)
        self.wait_until_stopped()
        os.killpg(killed.pid, signal.SIGKILL)
        killed.communicate()

    def steps_run(self) -> list[str]:
        """The steps begun since the last `make`, in order."""
        calls = self.folder / "calls"
        lines = calls.read_text().splitlines() if calls.exists() else []
        return [line.split()[0] for line in lines if line.endswith(("begin", "begins"))]

    def is_whole(self) -> bool:
        return all((self.folder / ENV / f"{step}.stamp").exists() for step in ALL_STEPS[1:])


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path / "project")


def test_an_environment_is_set_up_once(project: Project) -> None:
    done = project.make()
    assert done.returncode == 0, done.stderr
    assert project.steps_run() == ALL_STEPS
    assert [line[:5] for line in done.stdout.splitlines()] == ["[1/3]", "[2/3]", "[3/3]", "Horov"]
    assert project.is_whole()
    done = project.make()
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert project.steps_run() == []
    # On a disk that cannot be written it is used as it is.
    lock = project.folder / f"{ENV}.lock"
    lock.unlink()
    lock.mkdir()  # Cannot be opened for writing, not even by root.
    assert project.make().returncode == 0
    lock.rmdir()
    # One whose Python is gone is made anew.
    (project.folder / ENV / "bin/python").unlink()
    project.make()
    assert project.steps_run() == ALL_STEPS
    # And so is one that is killed while its packages are updated.
    (project.folder / "setup.cfg").write_text("[metadata]\nname = changed\n")
    project.kill_at("packages begin")
    assert project.make().returncode == 0
    assert project.steps_run() == ALL_STEPS


@pytest.mark.parametrize(
    ("moment", "steps_after"),
    [
        ("venv begins", ALL_STEPS),
        ("venv ends", ALL_STEPS),
        ("packages begin", ALL_STEPS),
        ("packages end", ALL_STEPS),
        ("rename packages.stamp", ALL_STEPS),
        # The packages are whole by then; only Horovod is done again.
        ("horovod begins", ["horovod"]),
        ("rename horovod.stamp", ["horovod"]),
    ],
)
def test_a_killed_set_up_recovers(project: Project, moment: str, steps_after: list[str]) -> None:
    project.kill_at(moment)
    assert not project.is_whole()

    done = project.make()
    assert done.returncode == 0, done.stderr
    assert project.steps_run() == steps_after
    assert project.is_whole()
    made_in_run = "2" if "venv" in steps_after else "1"
    left = [path.name for path in (project.folder / ENV).glob("made-in-run-*")]
    assert left == [f"made-in-run-{made_in_run}"]  # Nothing of a half-made one stays.


@pytest.mark.parametrize(
    ("file", "steps"),
    [
        ("constraints/tf-0.0.hashes", ["packages", "horovod"]),
        ("setup.cfg", ["packages", "horovod"]),
        ("hvd/build.py", ["horovod"]),
    ],
)
def test_a_changed_file_repeats_what_depends_on_it(
    project: Project, file: str, steps: list[str]
) -> None:
    project.make()
    (project.folder / file).touch()
    project.make()
    assert project.steps_run() == []  # It is the content that counts.
    (project.folder / file).write_text("changed")
    project.make()
    assert project.steps_run() == steps


def test_two_makes_at_once_set_up_once(project: Project) -> None:
    first = project.start(STOP_AT="packages begin")
    project.wait_until_stopped()
    second = project.start()
    assert second.stdout is not None
    assert "waiting" in second.stdout.readline()
    (project.folder / "go").touch()
    assert first.wait(timeout=120) == second.wait(timeout=120) == 0
    assert project.steps_run() == ALL_STEPS
    for process in (first, second):
        process.communicate()


def test_failed_packages_show_the_end_of_the_log_and_are_tried_again(project: Project) -> None:
    failed = project.make(FAKE_PIP_STATUS="1")
    assert failed.returncode != 0
    assert "pip says 1" in failed.stderr
    assert f"{ENV}/packages.log" in failed.stderr
    assert project.make().returncode == 0
    assert project.steps_run() == ALL_STEPS


def test_horovod_that_cannot_be_built_does_not_fail_the_set_up(project: Project) -> None:
    done = project.make(FAKE_HOROVOD_STATUS="3")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "Horovod says 3"
    project.make()
    assert project.steps_run() == []
    project.make("horovod")
    assert project.steps_run() == ["horovod"]
    # A compiler that is installed later builds it.
    project.make(FAKE_HOROVOD_STATUS="3")
    shutil.copy(FAKE_PYTHON, project.folder / "bin" / "mpicxx")
    project.make()
    assert project.steps_run() == ["horovod"]


def test_horovod_can_be_left_out_and_built_later(project: Project) -> None:
    done = project.make("env", "HOROVOD=no")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "[3/3] Horovod is left out; make horovod builds it."
    assert project.steps_run() == ["venv", "packages"]
    again = project.make("env", "HOROVOD=no")
    assert (again.returncode, again.stdout, project.steps_run()) == (0, "", [])
    project.make("horovod", "HOROVOD=no")
    assert project.steps_run() == ["horovod"]
    wrong = project.make("env", "HOROVOD=none")
    assert (wrong.returncode, wrong.stderr.splitlines()[0]) == (
        2,
        "make: HOROVOD=none; allowed: yes, no.",
    )


def test_an_interrupted_horovod_build_is_not_taken_for_a_failed_one(project: Project) -> None:
    assert project.make(FAKE_HOROVOD_STATUS="130").returncode != 0
    assert project.make().returncode == 0
    assert project.steps_run() == ["horovod"]


NEEDED = "make: tfunet needs Python 3.11 or 3.12; "
OLD = f"{NEEDED}python3.11 is 3.10.13. Install one, then type: make PYTHON=/path/to/python3.11"


@pytest.mark.parametrize(
    ("arguments", "version", "said"),
    [
        ("PYTHON=python3.11", "3.11.0", ""),
        ("PYTHON=python3.11", "3.12.9", ""),
        ("PYTHON=python3.11", "3.10.13", OLD),
        ("PYTHON=python3.11", "3.13.0", NEEDED),
        ("PYTHON=python3.11", "3.1.1", NEEDED),
        ("PYTHON=python3.999", "", f"{NEEDED}python3.999 does not run."),
        ("TF=9.9", "", "make: TF=9.9 has no constraints file. Supported: 0.0."),
    ],
)
def test_what_is_not_supported_is_one_clear_line(
    project: Project, arguments: str, version: str, said: str
) -> None:
    done = project.make("env", arguments, **({"FAKE_VERSION": version} if version else {}))
    assert (done.returncode == 0) == (not said), done.stderr
    assert done.stderr.startswith(said)
    assert len(done.stderr.splitlines()) == (2 if said else 0)
    assert not said or done.stdout == ""


def test_make_alone_lists_the_targets() -> None:
    done = subprocess.run(["make", "-C", ROOT], capture_output=True, text=True, check=True)
    for target in ("demo", "test", "contract", "lint", "env", "horovod", "clean"):
        assert f"make {target} " in done.stdout


def test_open_mpi_and_a_browser_are_installed_where_that_is_allowed(project: Project) -> None:
    calls = project.folder / "calls"
    apt_get = project.folder / "bin/apt-get"
    # No other programs than these, so that no mpirun or browser of this machine is found.
    for program in ("bash", "mkdir", "tail", "sed", "true"):
        (project.folder / "bin" / program).symlink_to(str(shutil.which(program)))

    def make(user: int, install: str, status: int = 0, **variables: str) -> str:
        calls.unlink(missing_ok=True)
        for path, text in ((apt_get, install), (project.folder / "bin/id", f"echo {user}")):
            path.write_text(f"#!{shutil.which('bash')}\n{text}\n")
            path.chmod(0o755)
        done = subprocess.run(
            [str(shutil.which("make")), "--no-print-directory", "packages"],
            cwd=project.folder,
            env={"PATH": str(project.folder / "bin"), **variables},
            capture_output=True,
            text=True,
        )
        assert done.returncode == status, done.stderr
        return done.stdout

    wanted = ("sudo apt-get install libopenmpi-dev openmpi-bin", "sudo apt-get install chromium")
    assert all(command in make(1000, f"echo $@ >>{calls}") for command in wanted)
    assert not calls.exists()
    # The lists of packages are old.
    shown = make(0, f"echo $1 >>{calls}; [ $(sed -n '$=' {calls}) -gt 1 ]")
    assert not any(command in shown for command in wanted)
    assert calls.read_text().split() == ["install", "update", "install", "install"]
    # One that cannot be had keeps nobody from the other.
    shown = make(0, f"echo $@ >>{calls}; case $* in *chromium*) exit 1;; esac")
    assert [command in shown for command in wanted] == [False, True]
    assert "openmpi-bin" in calls.read_text()
    # A CI tries again, and fails for what it cannot have.
    (project.folder / "bin/sleep").symlink_to(str(shutil.which("true")))
    shown = make(0, f"echo $1 >>{calls}; [ $(sed -n '$=' {calls}) -gt 4 ]", CI="1")
    assert not any(command in shown for command in wanted)
    assert calls.read_text().split() == [*("install", "update") * 2, *("install",) * 2]
    shown = make(0, "case $* in *chromium*) exit 1;; esac", status=2, CI="1")
    assert [command in shown for command in wanted] == [False, True]
    shown = make(1000, "", status=2, CI="1")
    assert all(command in shown for command in wanted)
    # Only what is missing.
    for program in ("mpicxx", "mpirun"):
        (project.folder / "bin" / program).symlink_to(str(shutil.which("sed")))
    shown = make(1000, "false")
    assert [command in shown for command in wanted] == [False, True]
