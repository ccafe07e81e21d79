"""A sweep that somebody else made: its text runs nothing, and no file of it holds a command up."""

import json
import os
import shutil
import signal
import sys

import pytest
import yaml
from hostile_files import TRAPS, set_trap
from paths import SUPPORT
from synthetic_sweep import make_study, write_failed, write_sweep

from tfunet.bench.launch.local_sweep import run_sweep
from tfunet.bench.launch.resume_and_cancel import resume_sweep
from tfunet.bench.launch.slurm_submit import dry_run
from tfunet.bench.launch.sweep_folder import write_plan
from tfunet.bench.launch.sweep_progress import read_progress
from tfunet.bench.launch.workflow_file import export_sweep
from tfunet.bench.records.sweep_record import read_sweep
from tfunet.bench.study.study_file import read_study, study_from_dict
from tfunet.bench.study.trial_plan import plan_trials
from tfunet.cli import main
from tfunet.config import trust
from tfunet.files.typed import FieldError, Name, typed
from tfunet.record import RunFolder

SECONDS = 60
STUDY = "[base]\ncores_per_replica = 1\n[grid]\nlearning_rate = [0.1, 0.2]\n"
HUNT = "[search]\ntrials = 1\n[search.space]\nlearning_rate = [0.1]\n"


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """A folder to work in, a key of one's own, and an end of what waits for ever."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv(trust.VARIABLE, raising=False)
    monkeypatch.chdir(tmp_path)

    def waits(number, frame):
        pytest.fail("It waits for a file.")

    before = signal.signal(signal.SIGALRM, waits)
    signal.alarm(SECONDS)
    yield tmp_path
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def received(home, text, *, working_folder=None):
    """Return a sweep's folder as another user of this program made it."""
    (home / "study.toml").write_text(text)
    root = home / "sweep"
    root.mkdir()
    write_plan(plan_trials(read_study("study.toml")), root)
    if working_folder is not None:
        plan = json.loads((root / "plan.json").read_text())
        plan["working_folder"] = str(working_folder)
        (root / "plan.json").write_text(json.dumps(plan))
    shutil.rmtree(home / "config")
    return root


@pytest.mark.parametrize("where", ["here", "slurm"])
@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("setup", "touch PWNED"),
        ("sbatch", "--output=/home/me/.bashrc"),
        ("srun", "--task-prolog=./evil.sh"),
    ],
)
def test_commands_of_a_received_study_need_trust(home, key, value, where, monkeypatch):
    root = received(home, f'{STUDY}[slurm]\n{key} = ["{value}"]\n')
    if where == "slurm":
        (root / "slurm").mkdir()
        (root / "slurm" / "001-x.sh").touch()
    with pytest.raises(ValueError, match=rf"names the command '{value}'.*--trust"):
        resume_sweep(root)
    assert main(["sweep", "retry", str(root)]) == 2
    assert os.listdir(root) != []
    # What this user made here is resumed, and so is what is trusted.
    write_plan(plan_trials(read_study("study.toml")), root)
    done = []
    for name in ("run_sweep", "submit_sweep"):
        monkeypatch.setattr(
            f"tfunet.bench.launch.resume_and_cancel.{name}", lambda *_, **__: done.append(1)
        )
    monkeypatch.setattr(
        "tfunet.bench.launch.resume_and_cancel.is_under_slurm", lambda _: where == "slurm"
    )
    resume_sweep(root)
    shutil.rmtree(home / "config")
    monkeypatch.setenv(trust.VARIABLE, "1")
    resume_sweep(root)
    assert done == [1, 1]


def test_commands_of_another_users_study_need_trust(home, monkeypatch):
    (home / "study.toml").write_text(f'{STUDY}[slurm]\nsetup = ["touch PWNED"]\n')
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    if os.getuid() == 0:
        os.chown(home / "study.toml", 54321, 54321)
    with pytest.raises(ValueError, match=r"another user.*would run the command 'touch PWNED'"):
        read_study("study.toml")


def test_commands_of_another_users_cluster_need_trust(home, monkeypatch, capsys):
    (home / "cluster.toml").write_text('setup = ["touch PWNED"]\n')
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    if os.getuid() == 0:
        os.chown(home / "cluster.toml", 54321, 54321)
    assert main(["train", "--slurm", "cluster.toml", "--dry-run", "--out", "run"]) == 2
    said = capsys.readouterr()
    assert "would run the command 'touch PWNED'" in said.err
    assert "PWNED" not in said.out


@pytest.mark.parametrize("link", ["report", "report/figures"])
def test_a_report_is_not_written_through_a_link(home, link, capsys):
    write_sweep(home / "sweep", make_study(repeats=1))
    victim = home / "victim"
    victim.mkdir()
    (victim / "report.html").write_text("thesis")
    (home / "sweep" / link).parent.mkdir(exist_ok=True)
    (home / "sweep" / link).symlink_to(victim)
    assert main(["report", "sweep"]) == 5
    assert f"{link}: it is a symbolic link" in capsys.readouterr().err
    assert [path.name for path in victim.iterdir()] == ["report.html"]
    assert (victim / "report.html").read_text() == "thesis"


@pytest.mark.parametrize("folder", ["sweep", "evil"])
def test_a_received_sweep_leads_into_no_other_folder(home, folder):
    # Python finds modules in the folder that it starts in: numpy.py there would run.
    (home / "evil").mkdir()
    root = received(home, STUDY, working_folder=home / folder)
    with pytest.raises(ValueError, match=rf"names the command 'cd .*{folder}'"):
        resume_sweep(root)


def test_a_setting_of_slurm_is_one_option(home):
    study = study_from_dict(
        {"slurm": {"partition": "gpu --output=/home/me/.bashrc", "constraint": "a|b"}}
    )
    text = dry_run(study, home / "sweep")
    assert "#SBATCH --partition='gpu --output=/home/me/.bashrc'\n" in text
    assert "#SBATCH --constraint='a|b'\n" in text


BAD_NAMES = (
    *(
        "$(touch PWNED)",
        "x; touch PWNED #",
        "`touch PWNED`",
        "a b",
        "a\nb",
        "a\n",
        "",
        "a'b",
        'a"b',
    ),
    *("--attempts", "../x", "..", ".x", "/x", "a/b", "a\\b", "=1+1", "@x", "a|b", "a&b", "%j", "~"),
    *("\x1b[2J", "\u202eevil", "x" * 201),
)


@pytest.mark.parametrize("name", BAD_NAMES)
def test_a_name_that_means_something_elsewhere_is_none(name):
    with pytest.raises(FieldError):
        typed(name, Name)


def test_names_of_a_received_plan_reach_no_command(home):
    root = received(home, STUDY)
    plan = json.loads((root / "plan.json").read_text())
    good = [trial["id"] for trial in plan["trials"]]
    for entry, name in zip(plan["trials"], BAD_NAMES, strict=False):
        entry["id"] = name
    (root / "plan.json").write_text(json.dumps(plan))
    with pytest.raises(ValueError, match=r"plan\.json cannot be read .*id: expected str"):
        read_sweep(root)
    path = export_sweep(read_study("study.toml"), root)
    values = yaml.safe_load(path.read_text())["global.parameters"]["TRIAL"]["values"]
    assert values == good
    (root / "plan.json").write_text(json.dumps(plan))
    with pytest.raises(ValueError, match=r"plan\.json cannot be read"):
        dry_run(read_study("study.toml"), root)


def pipe(path):
    os.mkfifo(path)


def endless(path):
    path.symlink_to("/dev/zero")


def large(path):
    with path.open("wb") as file:
        file.truncate(2**33)


ODD = {"pipe": pipe, "endless": endless, "large": large}


@pytest.mark.parametrize("kind", ODD)
def test_no_file_of_a_sweep_holds_a_command_up(home, kind, capsys):
    study = make_study(grid={"backend": ["single", "horovod"], "num_replicas": [1]}, skip=[])
    root = home / "sweep"
    trials = write_sweep(root, study)
    failed, runs = trials[:2]
    shutil.rmtree(root / failed.id)
    write_failed(root, failed, "killed")
    (root / runs.id / "result.json").unlink()
    for trial in trials:
        (root / trial.id / "log.txt").write_text("a line\n")
    (root / "running.json").write_text(json.dumps({"trial": runs.id, "process": os.getpid()}))
    files = sorted(path for path in root.rglob("*") if path.is_file())
    names = {path.name for path in files} - {".lock", "plan.json"}
    assert {"log.txt", "epochs.csv", "cases.csv", "result.json", "failure.json"} <= names
    for number, name in enumerate(sorted(names)):
        kept = {path: path.read_bytes() for path in files if path.name == name}
        for path in kept:
            path.unlink()
            ODD[kind](path)
        with RunFolder(root).locked():
            code = main(["sweep", "status", str(root), *["--json"][number % 2 :]])
        assert code == 0, (name, capsys.readouterr().err)
        assert main(["report", str(root), "--json"]) in (0, 2), name
        with RunFolder(root).locked():
            read_progress(root)
        for path, content in kept.items():
            path.unlink()
            path.write_bytes(content)


def test_a_plan_that_is_a_pipe_is_named(home, capsys):
    (home / "sweep").mkdir()
    pipe(home / "sweep" / "plan.json")
    for words in (["sweep", "status"], ["sweep", "watch"], ["report"], ["sweep", "resume"]):
        assert main([*words, "sweep"]) == 2
        assert "sweep" in capsys.readouterr().err


@pytest.mark.parametrize("kind", [*TRAPS, "link to a device"])
@pytest.mark.parametrize("name", ["search.journal", "search.lock"])
def test_a_search_writes_through_no_file_of_a_stranger(home, kind, name):
    root = home / "hunt"
    root.mkdir()
    is_unharmed = bool
    if kind == "link to a device":
        (root / name).symlink_to("/dev/zero")
    else:
        os.chdir(root)  # A socket's path is short.
        is_unharmed = set_trap(kind, root / name, home / "victim")
        os.chdir(home)
    if kind == "hard link":
        return  # Only lines are added to one, and nothing is lost.
    words = ["sweep", "run", "hunt.toml", "--out", "hunt", "--go-on"]
    (home / "hunt.toml").write_text(HUNT)
    assert main(words) == 5  # A file that could not be written.
    if kind != "link to a device":
        assert is_unharmed()


LINES = {
    "no JSON": "thesis\n{}\n",
    "no table": "[1]\n",
    "no such operation": '{"op_code": 99, "worker_id": "x"}\n',
    "no operation": '{"a": 1}\n',
    "no text": "\udcff\n",
    "deep": "[" * 100_000 + "\n",
}


@pytest.mark.parametrize("lines", LINES.values(), ids=LINES)
def test_a_damaged_journal_is_named(home, lines, capsys):
    (home / "hunt").mkdir()
    (home / "hunt" / "search.journal").write_bytes(lines.encode(errors="surrogateescape"))
    (home / "hunt.toml").write_text(HUNT)
    assert main(["sweep", "run", "hunt.toml", "--out", "hunt", "--go-on"]) == 2
    assert "hunt/search.journal cannot be used" in capsys.readouterr().err


def test_a_journal_names_no_folder_elsewhere(home, capsys):
    """A trial that has lost its process is moved aside: that may be no folder of the user's."""
    import optuna
    from optuna.storages.journal import JournalFileBackend

    root = home / "hunt"
    root.mkdir()
    (home / "precious").mkdir()
    (home / "precious" / "thesis.txt").touch()
    storage = optuna.storages.JournalStorage(JournalFileBackend(str(root / "search.journal")))
    study = optuna.create_study(storage=storage, study_name="hunt", direction="maximize")
    study.ask().set_user_attr("trial", "../precious")
    (home / "hunt.toml").write_text(HUNT)
    assert main(["sweep", "run", "hunt.toml", "--out", "hunt", "--go-on"]) == 2
    assert "search.journal cannot be used: trial of trial 0" in capsys.readouterr().err
    assert (home / "precious" / "thesis.txt").exists()


def test_a_link_that_leads_nowhere_locks_no_search(home):
    """Optuna's own lock is a link; that of a process that was killed would hold all others."""
    (home / "hunt").mkdir()
    (home / "hunt" / "search.journal.lock").symlink_to("hunt/search.journal")
    (home / "hunt.toml").write_text(HUNT)

    def command(folder):
        return [sys.executable, "-I", "-S", str(SUPPORT / "fake_search_trial.py"), "", str(folder)]

    assert run_sweep(read_study("hunt.toml"), "hunt", command=command, say=print) == 0
