"""The container recipes name files, packages and make targets that there are."""

import re
import subprocess

import pytest
from paths import ROOT

RECIPES = {name: (ROOT / "container" / name).read_text() for name in ("Dockerfile", "tfunet.def")}
MAKEFILE = (ROOT / "Makefile").read_text()


def section(name):
    return re.search(rf"^%{name}\n(.*?)(?=^%|\Z)", RECIPES["tfunet.def"], re.M | re.S)[1]


def of_docker(instruction):
    joined = RECIPES["Dockerfile"].replace("\\\n", " ")
    return re.findall(rf"^{instruction} (.*)$", joined, re.M)


def scripts():
    return {"Dockerfile": "\n".join(of_docker("RUN")), "tfunet.def": section("post")}


def test_every_file_that_is_copied_is_there_and_nothing_that_is_needed_is_missing():
    copied = {}
    for line in section("files").splitlines():
        if line.strip():
            source, target = line.split()
            assert (ROOT / source).exists(), source
            copied[source] = target
    assert copied == {source: f"/opt/tfunet/{source}" for source in copied}
    # What `make env` reads and installs, and what `tfunet` reads beside it.
    needed = {"Makefile", "setup.cfg", "pyproject.toml", "README.md", "LICENSE", "constraints"}
    assert needed | {"tfunet", "tf_native", "hvd", "studies"} == set(copied)
    assert of_docker("COPY") == [". ."]
    ignored = (ROOT / "container/Dockerfile.dockerignore").read_text().split()
    assert not set(ignored) & set(copied)


@pytest.mark.parametrize("recipe", RECIPES)
def test_what_is_built_is_what_the_makefile_builds(recipe):
    script = scripts()[recipe]
    targets = re.findall(r"(?:^|&&)\s*make ([a-z-]+)", script, re.M)
    assert targets == ["env"]
    assert re.search(r"^env:", MAKEFILE, re.M)
    version = re.search(r"^TF \?= (\S+)", MAKEFILE, re.M)[1]
    assert set(re.findall(r"\.venv/tf-([\d.]+)/bin", RECIPES[recipe])) == {version}
    assert (ROOT / f"constraints/tf-{version}.hashes").exists()
    packages = set(re.search(r"MPI_PACKAGES := (.*)", MAKEFILE)[1].split())
    listed = re.search(r"apt-get install (?:--\S+ |\\\n *)*(.*)", script)[1]
    installed = set(listed.partition("&&")[0].split())
    assert packages | {"make", "g++", "util-linux"} <= installed


@pytest.mark.parametrize("recipe", RECIPES)
def test_the_base_is_a_standard_image_of_a_python_that_fits(recipe):
    (base,) = re.findall(r"^(?:FROM|From:) (\S+)$", RECIPES[recipe], re.M)
    assert re.fullmatch(r"python:3\.1[12]-[a-z]+", base), base
    assert f"{base.split(':')[1].split('-')[0]}.*" in MAKEFILE


@pytest.mark.parametrize("recipe", RECIPES)
def test_its_scripts_are_shell(recipe):
    checked = subprocess.run(
        ["sh", "-n"], input=scripts()[recipe], capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stderr


def test_install_md_says_how_to_build_them():
    page = (ROOT / "docs/install.md").read_text()
    for name in RECIPES:
        assert f"container/{name}" in page
        commands = re.findall(r"^#   (docker build .*|apptainer build .*)$", RECIPES[name], re.M)
        assert commands
        assert all(command in page for command in commands)
