"""setup.cfg, the constraints files and the versions named in code agree."""

import configparser
import hashlib
import importlib.metadata
import importlib.util
import re
from pathlib import Path
from types import ModuleType
from typing import Any

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
        requirement
        for text in (setup["options"]["install_requires"], *extras)
        for requirement in requirements(text)
        if requirement.name != "tfunet"
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
        for wanted in map(Requirement, needed):
            extras = requirement.extras or {""}
            if wanted.marker is None or any(wanted.marker.evaluate({"extra": e}) for e in extras):
                waiting.append(wanted)
    installed = {
        canonicalize_name(distribution.name) for distribution in importlib.metadata.distributions()
    }
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


def test_the_extra_all_has_all_but_dev() -> None:
    extras = read_setup()["options.extras_require"]
    (own,) = requirements(extras["all"])
    assert own.name == "tfunet"
    assert own.extras == {*extras} - {"all", "dev"}


def test_the_doctor_looks_for_packages_that_the_extras_name() -> None:
    extras = read_setup()["options.extras_require"]
    for extra, packages in EXTRAS.items():
        named = {requirement.name for requirement in requirements(extras[extra])}
        assert set(packages) | {"tensorflow-io"} == named | {"tensorflow-io"}


def hashed_pins(path: Path) -> dict[str, tuple[str, int]]:
    """Return version and number of hashes of each package of a file of hashes."""
    text = path.read_text().replace("\\\n", " ")
    found = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            pin, *hashes = line.split(" --hash=")
            assert all(re.fullmatch(r"sha256:[0-9a-f]{64}", digest.strip()) for digest in hashes), (
                line
            )
            name, version = pin.partition(";")[0].strip().split("==")
            found[canonicalize_name(name)] = version, len(hashes)
    return found


@by_file
def test_every_pin_has_its_hashes(path: Path) -> None:
    hashed = hashed_pins(path.with_name(f"{path.stem}.hashes"))
    # Horovod's is in hvd/build.py, which builds it.
    pinned = {name: version for name, version in pins(path).items() if name != "horovod"}
    assert {name: version for name, (version, _) in hashed.items()} == pinned, (
        "After a change of constraints/*.txt: python constraints/lock.py"
    )
    assert min(count for _, count in hashed.values()) > 0
    # A wheel for each Python and kind of machine.
    assert hashed["tensorflow"][1] == len(PYTHONS) * 2


def test_the_engines_are_pinned_and_hashed_apart() -> None:
    path = ROOT / "constraints/engines.txt"
    pinned, hashed = pins(path), hashed_pins(path.with_suffix(".hashes"))
    assert {"maestrowf", "merlin", "celery", "redis"} < set(pinned)
    assert {name: version for name, (version, _) in hashed.items()} == pinned
    wanted = {canonicalize_name(requirement.name) for requirement in all_requirements()}
    assert not wanted & {"maestrowf", "merlin", "celery"}


def wheel(tags: str, version: str = "1.0") -> dict[str, Any]:
    name = f"some_thing-{version}-{tags}.whl"
    return {"filename": name, "hashes": {"sha256": hashlib.sha256(name.encode()).hexdigest()}}


def lock() -> ModuleType:
    spec = importlib.util.spec_from_file_location("lock", ROOT / "constraints/lock.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


X86, ARM = "manylinux_2_17_x86_64.manylinux2014_x86_64", "manylinux_2_28_aarch64"


@pytest.mark.parametrize(
    ("tags", "where"),
    [
        (["py3-none-any"], ""),
        (["py2.py3-none-any"], ""),
        ([f"py3-none-{X86}", f"py3-none-{ARM}"], ""),
        # The stable interface of an older Python.
        ([f"cp38-abi3-{X86}", f"cp39-abi3-{ARM}"], ""),
        ([f"cp3{minor}-cp3{minor}-{machine}" for minor in (11, 12) for machine in (X86, ARM)], ""),
        ([f"py3-none-{X86}"], "3.11 x86_64, 3.12 x86_64"),
        ([f"cp311-cp311-{X86}", f"py3-none-{ARM}"], "3.11 aarch64, 3.11 x86_64, 3.12 aarch64"),
    ],
)
def test_a_package_is_locked_to_the_wheels_that_machines_take(tags: list[str], where: str) -> None:
    others = ["cp310-cp310-" + X86, "cp313-abi3-" + X86, "cp311-cp311-win_amd64"]
    others += ["cp311-cp311-musllinux_1_2_x86_64", "cp311-cp311-macosx_12_0_arm64"]
    others += ["cp313-cp313t-" + X86]
    files = [*map(wheel, [*tags, *others]), wheel("py3-none-any", "2.0")]
    files.append({**wheel(""), "filename": "some_thing-1.0.tar.gz"})
    # As an old release of pydantic has it: no version of Python.
    files.append({**wheel(""), "filename": "some_thing-0.1-py36+-none-any.whl"})
    first, *hashes = lock().locked("some-thing", "1.0", files).split(" \\\n    ")
    assert sorted(hashes) == sorted(
        f"--hash=sha256:{wheel(tag)['hashes']['sha256']}" for tag in tags
    )
    marker = Requirement(first).marker
    places = [(python, machine) for python in PYTHONS for machine in ("aarch64", "x86_64")]
    taken = [
        f"{python} {machine}"
        for python, machine in places
        if marker is None
        or marker.evaluate({"python_version": python, "platform_machine": machine})
    ]
    assert (marker is None) == (where == "")
    assert ", ".join(taken) == where or marker is None


def test_a_package_without_a_wheel_is_not_locked() -> None:
    files = [{**wheel(""), "filename": "some_thing-1.0.tar.gz"}]
    with pytest.raises(ValueError, match=r"no wheel of some-thing 1\.0"):
        lock().locked("some-thing", "1.0", files)
    only = 'platform_machine == "x86_64"'
    assert lock().locked("a", "1.0", [wheel("py3-none-any")], only).startswith(f"a==1.0 ; {only}")


def test_what_setup_wants_on_some_machines_is_locked_for_them() -> None:
    path = ROOT / "constraints/tf-2.16.2.hashes"
    assert 'tensorflow-io==0.37.1 ; platform_machine == "x86_64" \\' in path.read_text()
