"""setup.cfg, the constraints files and the versions named in code agree."""

import configparser
import importlib.metadata
import re
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from paths import ROOT

from hvd.build import HOROVOD_VERSION
from tfunet.machine.doctor import EXTRAS, NEWEST_TENSORFLOW, OLDEST_TENSORFLOW, PYTHONS

CONSTRAINTS = sorted((ROOT / "constraints").glob("tf-*.txt"))
by_file = pytest.mark.parametrize("path", CONSTRAINTS, ids=lambda path: path.stem)


def read_setup() -> configparser.RawConfigParser:
    parser = configparser.RawConfigParser()
    parser.read(ROOT / "setup.cfg")
    return parser


def requirements(text: str) -> list[Requirement]:
    return [Requirement(line) for line in text.strip().splitlines()]


def all_requirements() -> list[Requirement]:
    setup = read_setup()
    extras = setup["options.extras_require"].values()
    return [
        one
        for text in (setup["options"]["install_requires"], *extras)
        for one in requirements(text)
    ]


def pins(path: Path) -> dict[str, str]:
    lines = [line for line in path.read_text().splitlines() if not line.startswith("#")]
    return {
        canonicalize_name(name): version for name, version in (line.split("==") for line in lines)
    }


def test_there_is_a_file_for_the_oldest_and_the_newest_tensorflow() -> None:
    assert [path.stem for path in CONSTRAINTS] == ["tf-2.16.2", "tf-2.21"]


@by_file
def test_constraints_are_names_and_versions_only(path: Path) -> None:
    lines = path.read_text().splitlines()
    names = [line.split("==")[0].lower() for line in lines if not line.startswith("#")]
    for line in lines:
        assert re.fullmatch(r"#.*|[A-Za-z0-9._-]+==[0-9][A-Za-z0-9.]*", line), line
    assert len(set(names)) == len(names)


@by_file
def test_every_requirement_is_pinned_to_a_version_that_it_allows(path: Path) -> None:
    pinned = pins(path)
    for requirement in all_requirements():
        version = pinned.get(canonicalize_name(requirement.name))
        assert version is not None, f"{requirement.name} is not pinned in {path.name}"
        assert requirement.specifier.contains(version), f"{requirement} against {version}"


@by_file
def test_a_constraints_file_is_named_for_its_tensorflow(path: Path) -> None:
    version = pins(path)["tensorflow"]
    assert f"{version}.".startswith(path.stem.removeprefix("tf-") + ".")
    # Each tf_keras works with one TensorFlow only.
    assert pins(path)["tf-keras"].split(".")[:2] == version.split(".")[:2]


@by_file
def test_horovod_is_the_version_that_is_built(path: Path) -> None:
    assert pins(path)["horovod"] == HOROVOD_VERSION


def test_nothing_that_gets_installed_is_left_unpinned() -> None:
    """Follows what the packages in this environment require, from setup.cfg on."""
    waiting = all_requirements()
    seen: set[str] = set()
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        if name in seen:
            continue
        seen.add(name)
        try:
            needed = importlib.metadata.requires(name) or []
        except importlib.metadata.PackageNotFoundError:
            continue
        for one in map(Requirement, needed):
            extras = requirement.extras or {""}
            if one.marker is None or any(one.marker.evaluate({"extra": e}) for e in extras):
                waiting.append(one)
    installed = {canonicalize_name(one.name) for one in importlib.metadata.distributions()}
    for path in CONSTRAINTS:
        assert seen & installed <= set(pins(path)), path.name


def test_the_supported_versions_are_the_same_everywhere() -> None:
    options = read_setup()["options"]
    pythons = SpecifierSet(options["python_requires"])
    known = [f"3.{minor}" for minor in range(8, 16)]
    assert tuple(version for version in known if pythons.contains(version)) == PYTHONS
    tensorflow = requirements(options["install_requires"])[0]
    oldest = ".".join(map(str, OLDEST_TENSORFLOW))
    major, minor = NEWEST_TENSORFLOW
    assert tensorflow.specifier == SpecifierSet(f">={oldest},<{major}.{minor + 1}")


def test_the_doctor_looks_for_packages_that_the_extras_name() -> None:
    extras = read_setup()["options.extras_require"]
    for extra, packages in EXTRAS.items():
        named = {one.name for one in requirements(extras[extra])}
        assert set(packages) | {"tensorflow-io"} == named | {"tensorflow-io"}
