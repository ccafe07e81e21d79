"""A wheel of the project installs, holds every file of the packages, and its command starts."""

import os
import shutil
import subprocess
import sys
import zipfile

import pytest
from paths import ROOT

PACKAGES = ("tfunet", "tf_native", "hvd")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Build it from the tracked files alone, in a folder of its own."""
    folder = tmp_path_factory.mktemp("wheel")
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    files = subprocess.run(listed, cwd=ROOT, capture_output=True, check=True).stdout.decode()
    for name in filter(None, files.split("\0")):
        is_needed = name.startswith(tuple(f"{package}/" for package in PACKAGES)) or "/" not in name
        if is_needed and (ROOT / name).is_file():
            (folder / "tree" / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / "tree" / name)
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-index"]
    subprocess.run(
        [*pip, "--no-build-isolation", "--wheel-dir", str(folder), str(folder / "tree")],
        check=True,
        capture_output=True,
        timeout=500,
    )
    (path,) = folder.glob("*.whl")
    return path


def test_it_holds_every_file_of_the_packages(wheel):
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if ".dist-info/" not in name}
    tree = wheel.parent / "tree"
    wanted = {
        str(path.relative_to(tree))
        for package in PACKAGES
        for path in (tree / package).rglob("*")
        if path.is_file()
    }
    assert held == wanted


def test_its_command_starts_where_it_is_installed(wheel, tmp_path):
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*pip, "--target", str(tmp_path / "there"), str(wheel)], check=True, timeout=500)
    ended = subprocess.run(
        [sys.executable, tmp_path / "there/bin/tfunet", "models"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path / "there")},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ended.returncode == 0, ended.stderr
    assert "nnunet3d" in ended.stdout
