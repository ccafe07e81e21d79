"""What hvd.build decides; the build itself is what `make env` does."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from paths import ROOT

from hvd import build

CMAKE_LISTS = """# TF SOURCES
list(APPEND TF_SOURCES "${PROJECT_SOURCE_DIR}/horovod/tensorflow/mpi_ops.cc")
list(APPEND TF_SOURCES "${PROJECT_SOURCE_DIR}/horovod/tensorflow/xla_mpi_ops.cc")
add_library(tensorflow SHARED ${SOURCES} ${TF_SOURCES})
"""


@pytest.mark.parametrize(
    ("tensorflow_version", "left_out"),
    [
        ("2.16.2", ()),
        ("2.17.0", (build.XLA_OPS,)),
        ("2.21.0", (build.XLA_OPS,)),
        ("2.9.1", ()),  # 9 comes before 16.
        ("2.21.0rc1", (build.XLA_OPS,)),
    ],
)
def test_xla_operations_are_left_out_where_they_do_not_compile(
    tensorflow_version: str, left_out: tuple[str, ...]
) -> None:
    assert build.plan_build(tensorflow_version, mpi=False).left_out == left_out


@pytest.mark.parametrize(("mpi", "controllers"), [(False, "Gloo"), (True, "Gloo and MPI")])
def test_gloo_is_always_built(mpi: bool, controllers: str) -> None:
    plan = build.plan_build("2.16.2", mpi=mpi)
    assert plan.controllers == controllers
    assert plan.environment == {
        "HOROVOD_WITH_GLOO": "1",
        "HOROVOD_WITH_TENSORFLOW": "1",
        "HOROVOD_WITHOUT_PYTORCH": "1",
        "HOROVOD_WITHOUT_MXNET": "1",
        ("HOROVOD_WITH_MPI" if mpi else "HOROVOD_WITHOUT_MPI"): "1",
    }


@pytest.mark.parametrize(
    ("mpicxx", "environment", "tried"),
    [
        (None, {}, ["Gloo"]),
        # Where the MPI part fails, Gloo alone still can be built.
        ("mpicxx", {}, ["Gloo and MPI", "Gloo"]),
        ("mpicxx", {"HOROVOD_WITHOUT_MPI": "1"}, ["Gloo"]),
        # Asked for by name: no silent second best.
        (None, {"HOROVOD_WITH_MPI": "1"}, ["Gloo and MPI"]),
    ],
)
def test_mpi_is_tried_where_its_compiler_is(
    mpicxx: str | None, environment: dict[str, str], tried: list[str]
) -> None:
    plans = build.plans_to_try("2.16.2", mpicxx=mpicxx, environment=environment)
    assert [plan.controllers for plan in plans] == tried


def test_the_users_build_settings_win_and_run_settings_are_no_part_of_the_build() -> None:
    settings = {"HOROVOD_GPU_OPERATIONS": "NCCL", "HOROVOD_NCCL_HOME": "nccl"}
    run_settings = {"HOROVOD_FUSION_THRESHOLD": "0", "HOROVOD_CYCLE_TIME": "1", "HOME": "h"}
    (plan,) = build.plans_to_try("2.16.2", mpicxx=None, environment={**settings, **run_settings})
    plain = build.plan_build("2.16.2", mpi=False)
    assert plan.environment == {**plain.environment, **settings}


def folder(**changes: object) -> str:
    facts = {
        "plan": build.plan_build("2.16.2", mpi=True),
        "tensorflow_version": "2.16.2",
        "python": "cp311-x86_64",
        "compiler": "g++ 12",
        "mpicxx": "mpicxx.openmpi",
    }
    return build.wheel_folder(**{**facts, **changes})


def test_a_wheel_is_found_again_by_what_it_was_made_from() -> None:
    assert folder() == folder()
    others = [
        folder(tensorflow_version="2.21.0"),
        folder(python="cp312-x86_64"),
        folder(compiler="g++ 13"),
        folder(mpicxx="mpicxx.mpich"),
        folder(plan=build.plan_build("2.16.2", mpi=False)),
        folder(plan=build.plan_build("2.21.0", mpi=True)),
        folder(plan=build.plan_build("2.16.2", mpi=True, settings={"HOROVOD_GPU": "CUDA"})),
    ]
    assert len({folder(), *others}) == len(others) + 1


def test_an_mpi_installed_later_is_nothing_to_a_wheel_without_it() -> None:
    gloo_only = build.plan_build("2.16.2", mpi=False)
    assert folder(plan=gloo_only, mpicxx=None) == folder(plan=gloo_only, mpicxx="mpicxx")


def test_only_the_line_of_the_source_left_out_goes() -> None:
    lines = CMAKE_LISTS.splitlines(keepends=True)
    assert build.without_sources(CMAKE_LISTS, [build.XLA_OPS]) == "".join(lines[:2] + lines[3:])
    assert build.without_sources(CMAKE_LISTS, []) == CMAKE_LISTS


@pytest.mark.parametrize("text", ["", CMAKE_LISTS * 2])
def test_another_horovod_is_not_patched_blindly(text: str) -> None:
    with pytest.raises(build.BuildError, match="expected 1"):
        build.without_sources(text, [build.XLA_OPS])


def programs(folder: Path, *names: str) -> dict[str, str]:
    for name in names:
        (folder / name).write_text("#!/bin/sh\nexit 1\n")
        (folder / name).chmod(0o755)
    return {"PATH": str(folder)}


@pytest.mark.parametrize(
    ("installed", "cxx", "missing"),
    [
        (("g++", "make"), "", []),
        (("clang++", "make"), "", []),
        (("make",), "", ["a C++ compiler"]),
        (("g++",), "", ["make"]),
        ((), "", ["a C++ compiler", "make"]),
        (("my-c++", "make"), "my-c++ -O2", []),
        # $CXX is what CMake would take, even where another compiler could do it.
        (("g++", "make"), "my-c++", ["a C++ compiler"]),
    ],
)
def test_what_a_build_needs(
    tmp_path: Path, installed: tuple[str, ...], cxx: str, missing: list[str]
) -> None:
    environment = {**programs(tmp_path, *installed), "CXX": cxx}
    assert build.missing_tools(environment) == missing


def run_build(tmp_path: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    options = ["--wheels", tmp_path / "wheels", "--log", tmp_path / "log"]
    return subprocess.run(
        [sys.executable, "-m", "hvd.build", *options],
        cwd=ROOT,
        env={**os.environ, "CXX": "", **variables},
        capture_output=True,
        text=True,
    )


def test_without_a_compiler_one_line_says_so(tmp_path: Path) -> None:
    done = run_build(tmp_path, **programs(tmp_path))
    assert done.returncode == build.NOT_BUILT, done.stderr
    assert done.stdout == (
        "Horovod is not built: it needs a C++ compiler and make. Everything else works. "
        "What to type: tfunet doctor\n"
    )


def test_a_failed_build_is_one_line_and_leaves_no_wheel(tmp_path: Path) -> None:
    # pip finds no source to download: the first step fails.
    offline = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path), "PIP_CONFIG_FILE": os.devnull}
    done = run_build(tmp_path, **programs(tmp_path, "g++", "make"), **offline)
    assert done.returncode == build.NOT_BUILT, done.stderr
    (line,) = done.stdout.splitlines()
    assert line.startswith("Horovod 0.28.1 with Gloo is not built: pip download ended with 1; see")
    assert list((tmp_path / "wheels").rglob("*.whl")) == []
    assert "No matching distribution" in (tmp_path / "log").read_text()


def test_it_needs_nothing_but_the_standard_library() -> None:
    script = "import sys, hvd.build; print(*sys.modules)"
    command = [sys.executable, "-S", "-c", script]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert set(done.stdout.split()).isdisjoint({"numpy", "tensorflow", "packaging", "pip"})
