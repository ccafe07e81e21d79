import itertools
import json
import re
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path

import pytest

from tfunet.backend import BACKENDS
from tfunet.machine import doctor, probes
from tfunet.machine.doctor import Check
from tfunet.machine.probes import Answer

CORE_FACTS = {
    "tensorflow": "2.16.2",
    "keras": "3.15.1",
    "keras_backend": "tensorflow",
    "gpus": 0,
    "single": True,
}
HOROVOD_FACTS = {"version": "0.28.1", "gloo": True, "mpi": False, "nccl": False}
WORKING = {
    probes.TENSORFLOW_PROBE: Answer(facts=CORE_FACTS),
    probes.MIRRORED_PROBE: Answer(facts={"devices": ["CPU:0", "CPU:1"]}),
    probes.MULTIWORKER_PROBE: Answer(facts={"workers": 1}),
    probes.HOROVOD_PROBE: Answer(facts=HOROVOD_FACTS),
    probes.TENSORFLOW_IO_PROBE: Answer(facts={"version": "0.37.1", "bytes": 58}),
    probes.DALI_PROBE: Answer(facts={"version": "2.4.0"}),
}


def not_installed(module: str) -> Answer:
    return Answer(error=f"ModuleNotFoundError: No module named '{module}'")


def diagnose_with(
    monkeypatch: pytest.MonkeyPatch, answers: Mapping[str, Answer]
) -> dict[str, Check]:
    monkeypatch.setattr(probes, "ask", lambda script, variables: {**WORKING, **answers}[script])
    return {check.name: check for check in doctor.diagnose()}


@pytest.fixture
def no_programs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)


@pytest.mark.slow
def test_this_machine_can_train(tmp_path: Path) -> None:
    rows = {check.name: check for check in doctor.diagnose(tmp_path / "logs")}
    for name in (*doctor.CORE, "mirrored", "multiworker"):
        assert rows[name].status == "ok", rows[name]
    assert rows["horovod"].status in ("ok", "missing")
    assert not (tmp_path / "logs").exists()


def test_every_backend_has_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = diagnose_with(monkeypatch, {})
    assert {*BACKENDS, "energy"} <= set(rows)
    assert {rows[name].status for name in BACKENDS} == {"ok"}
    # TensorFlow's server obeys everybody who reaches it.
    is_open = {name for name in BACKENDS if "PORTS ARE OPEN" in rows[name].detail}
    assert is_open == {"multiworker"}
    assert "docs/security.md" in rows["multiworker"].detail


@pytest.mark.usefixtures("no_programs")
def test_without_a_compiler_it_says_what_to_install_and_what_to_type_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = diagnose_with(monkeypatch, {probes.HOROVOD_PROBE: not_installed("horovod")})
    assert rows["compiler"].status == "missing"
    assert "apt-get install g++ make" in rows["compiler"].remedy
    assert rows["horovod"].status == "missing"
    assert rows["horovod"].detail == "horovod is not installed"
    assert rows["horovod"].remedy.startswith("sudo apt-get install g++ make")
    assert rows["horovod"].remedy.endswith(f"then {doctor.build_command()}")
    assert rows["mpicxx"].status == "missing"
    assert "libopenmpi-dev" in rows["mpicxx"].remedy
    assert rows["SLURM"].status == "missing"


def test_with_a_compiler_horovod_needs_one_command() -> None:
    (row,) = doctor.horovod_checks(not_installed("horovod"), has_compiler=True, num_gpus=0)
    assert row.remedy == doctor.build_command()


def test_horovod_built_for_another_tensorflow_is_broken_not_missing() -> None:
    answer = Answer(error="tensorflow.errors.NotFoundError: mpi_lib.so: undefined symbol")
    (row,) = doctor.horovod_checks(answer, has_compiler=True, num_gpus=0)
    assert (row.status, row.remedy) == ("broken", doctor.build_command())
    assert "undefined symbol" in row.detail


@pytest.mark.parametrize(
    ("built", "num_gpus", "statuses"),
    [
        ({}, 0, {"horovod Gloo": "ok", "horovod MPI": "missing"}),
        ({"mpi": True}, 0, {"horovod Gloo": "ok", "horovod MPI": "ok"}),
        # On GPUs, all-reduce without NCCL goes through the CPU: slow, and easily overlooked.
        ({}, 2, {"horovod Gloo": "ok", "horovod MPI": "missing", "horovod NCCL": "missing"}),
        ({"nccl": True}, 2, {"horovod Gloo": "ok", "horovod MPI": "missing"}),
    ],
)
def test_horovods_controllers(
    built: dict[str, bool], num_gpus: int, statuses: dict[str, str]
) -> None:
    answer = Answer(facts={**HOROVOD_FACTS, **built})
    rows = doctor.horovod_checks(answer, has_compiler=True, num_gpus=num_gpus)
    assert {row.name: row.status for row in rows} == {"horovod": "ok", **statuses}
    assert all(row.remedy for row in rows if row.status != "ok")


@pytest.mark.parametrize(
    ("facts", "tensorflow", "keras"),
    [
        ({}, "ok", "ok"),
        ({"tensorflow": "2.21.0"}, "ok", "ok"),
        ({"tensorflow": "2.16.1"}, "broken", "ok"),
        ({"tensorflow": "2.9.0"}, "broken", "ok"),
        ({"tensorflow": "2.22.0"}, "broken", "ok"),
        ({"keras_backend": "jax"}, "ok", "broken"),
    ],
)
def test_only_the_supported_tensorflow_and_keras_will_do(
    facts: dict[str, str], tensorflow: str, keras: str
) -> None:
    rows = doctor.tensorflow_checks(Answer(facts={**CORE_FACTS, **facts}))
    assert [row.status for row in rows] == [tensorflow, keras]
    assert all(row.remedy for row in rows if row.status != "ok")


@pytest.mark.parametrize(
    ("version", "status"), [("3.11.0", "ok"), ("3.12.4", "ok"), ("3.13.0", "broken")]
)
def test_python_is_checked(version: str, status: str) -> None:
    assert doctor.python_check(version).status == status


@pytest.mark.parametrize(
    ("num_seen", "listed", "visible", "status"),
    [
        (0, [], None, "ok"),
        (1, ["V100"], None, "ok"),
        (0, ["V100"], None, "broken"),
        (0, ["V100"], "", "missing"),
    ],
)
def test_gpus_that_tensorflow_does_not_see_are_reported(
    monkeypatch: pytest.MonkeyPatch,
    num_seen: int,
    listed: list[str],
    visible: str | None,
    status: str,
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert doctor.gpu_check(num_seen=num_seen, listed=listed).status == status


@pytest.mark.parametrize(
    ("error", "detail"),
    [
        ("ModuleNotFoundError: No module named 'tensorflow_io'", "not installed"),
        # The import succeeds on TensorFlow 2.17 and later; the operation does not.
        ("NotImplementedError: unable to open file: libtensorflow_io.so", "do not load"),
    ],
)
def test_tensorflow_io_is_optional_and_says_what_reads_instead(error: str, detail: str) -> None:
    row = doctor.tensorflow_io_check(Answer(error=error))
    assert row.status == "missing"
    assert detail in row.detail
    assert "tifffile" in row.detail


def test_dali_is_optional_and_is_asked_to_decode() -> None:
    row = doctor.dali_check(not_installed("nvidia"))
    assert (row.status, row.remedy) == ("missing", "pip install 'tfunet[dali]'")
    assert row.detail == "nvidia is not installed; only pipeline = 'dali' needs it"
    pytest.importorskip("nvidia.dali", reason="DALI is not installed")
    row = doctor.dali_check(probes.ask(probes.DALI_PROBE, probes.HIDE_GPUS))
    assert row.status == "ok", row
    assert re.match(r"2\.\d+\.\d+, it decodes", row.detail)


def test_a_row_says_what_reads_the_files_of_which_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fsspec", None)  # Importing it fails.
    for name in ("HADOOP_HOME", "ARROW_LIBHDFS_DIR"):
        monkeypatch.delenv(name, raising=False)
    row = doctor.servers_check(["s3", "gs", "hdfs"])
    by = "s3://, gs:// by tensorflow-io; az://, hdfs:// by nothing that is installed; "
    assert (row.status, row.detail) == ("missing", f"{by}https://, http:// by Python")
    assert row.remedy == "pip install 'tfunet[remote]'"
    assert doctor.servers_check(["s3", "gs", "az"]).status == "ok"


def test_an_extra_names_the_package_that_is_missing() -> None:
    row = doctor.extra_check("io", ["numpy", "no-such-package"])
    assert (row.status, row.detail) == ("missing", "without no-such-package")
    assert row.remedy == "pip install 'tfunet[io]'"


def test_logs_that_cannot_be_written_are_reported(tmp_path: Path) -> None:
    assert doctor.logs_check(tmp_path / "deep" / "logs").status == "ok"
    (tmp_path / "file").touch()
    row = doctor.logs_check(tmp_path / "file")  # Also root cannot write into a file.
    assert row.status == "broken"
    assert row.remedy
    assert list(tmp_path.iterdir()) == [tmp_path / "file"]


def test_slurm_names_the_job_that_this_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    sbatch = tmp_path / "sbatch"
    sbatch.touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert doctor.slurm_check({}).detail == str(sbatch)
    assert doctor.slurm_check({"SLURM_JOB_ID": "7"}).detail == f"{sbatch}, in job 7"


@pytest.mark.parametrize(
    ("script", "answer"),
    [
        ("print('noise'); print('{\"a\": 1}')", Answer(facts={"a": 1})),
        ("import no_such_module", not_installed("no_such_module")),
        ("raise ValueError('why')", Answer(error="ValueError: why")),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", Answer(error="ended with -11")),
        # Exits well, and says nothing.
        ("pass", Answer(error="ended with 0")),
    ],
)
def test_a_probe_answers_or_says_why_not(script: str, answer: Answer) -> None:
    assert probes.ask(script, {}) == answer


def test_a_probe_that_hangs_is_given_up() -> None:
    answer = probes.ask("import time; time.sleep(60)", {}, seconds=0.2)
    assert answer == Answer(error="no answer within 0.2 s")


def test_a_probe_is_no_part_of_the_run_that_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOROVOD_RANK", "1")
    monkeypatch.setenv("TF_CONFIG", "{}")
    script = "import json, os; print(json.dumps({'seen': sorted(os.environ)}))"
    seen = probes.ask(script, {}).facts["seen"]
    assert "HOROVOD_RANK" not in seen
    assert "TF_CONFIG" not in seen


def test_build_command_fits_who_made_the_environment(tmp_path: Path) -> None:
    prefix = tmp_path / ".venv" / "tf-2.21"
    assert doctor.build_command(prefix) == "python -m hvd.build"
    (tmp_path / "Makefile").touch()
    assert doctor.build_command(prefix) == "make horovod TF=2.21"
    assert doctor.build_command(tmp_path / "other") == "python -m hvd.build"


def test_the_table_shows_what_to_type_under_the_row_that_lacks_it() -> None:
    python = Check(name="Python", status="ok", detail="3.11.7")
    assert doctor.row_lines(python) == ["Python             ok       3.11.7"]
    horovod = Check(name="horovod", status="missing", detail="not installed", remedy="make horovod")
    assert doctor.row_lines(horovod) == [
        "horovod            missing  not installed",
        "                            type: make horovod",
    ]


def test_what_is_known_at_once_does_not_wait_for_tensorflow(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    answered = threading.Event()

    def slow(script: str, variables: Mapping[str, str]) -> Answer:
        answered.wait()
        return WORKING[script]

    monkeypatch.setattr(probes, "ask", slow)
    checks = doctor.diagnose(tmp_path)
    try:
        known = [check.name for check in itertools.takewhile(lambda c: c.name != "SLURM", checks)]
    finally:
        answered.set()
    assert {"Python", "cores", "memory", "logs", "compiler", "extra io"} <= set(known)
    assert "single" in {check.name for check in checks}


@pytest.mark.parametrize(
    ("answers", "code", "verdict"),
    [
        ({}, 0, "One device can train here."),
        ({probes.HOROVOD_PROBE: not_installed("horovod")}, 0, "One device can train here."),
        (
            {probes.TENSORFLOW_PROBE: not_installed("tensorflow")},
            4,
            "Nothing can be trained yet: TensorFlow, Keras, single.",
        ),
    ],
)
def test_exit_code_says_whether_one_device_can_train(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    answers: dict[str, Answer],
    code: int,
    verdict: str,
) -> None:
    diagnose_with(monkeypatch, answers)
    assert doctor.run() == code
    assert verdict in capsys.readouterr().out


def test_json_holds_the_same_rows(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = diagnose_with(monkeypatch, {})
    assert doctor.run(as_json=True) == 0
    shown = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in shown] == list(rows)
    assert set(shown[0]) == {"name", "status", "detail", "remedy"}


def test_the_doctor_itself_imports_no_tensorflow() -> None:
    script = (
        "import sys, tfunet.machine.doctor;"
        "print('tensorflow' in sys.modules, 'keras' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["False", "False"]


def test_a_horovod_with_mpi_is_asked_without_starting_mpi(monkeypatch: pytest.MonkeyPatch) -> None:
    # With the controller alone, MPI's own operations abort the process outside mpirun.
    given: dict[str, Mapping[str, str]] = {}

    def remember(script: str, variables: Mapping[str, str]) -> Answer:
        given[script] = variables
        return WORKING[script]

    monkeypatch.setattr(probes, "ask", remember)
    list(doctor.diagnose())
    variables = given[probes.HOROVOD_PROBE]
    assert variables["HOROVOD_CONTROLLER"] == variables["HOROVOD_CPU_OPERATIONS"] == "gloo"
