"""Descriptions of data whose paths are URLs: the same data set as from a disk."""

import numpy as np
import object_store
import pytest
import SimpleITK
from dicom_files import slices
from object_store import BUCKET

from tfunet.data.image_files import read_header
from tfunet.data.source import open_source
from tfunet.files import remote, transports

CLASSES = {"classes": {"cell": 255}}
PATTERNS = {"images": "images/{case}.png", "masks": "masks/{case}.png", **CLASSES}


@pytest.fixture(scope="module")
def running():
    with object_store.serving() as store:
        object_store.fill(store, 6)
        yield store


@pytest.fixture
def store(running, tmp_path, monkeypatch):
    for name, value in running.variables().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("TFUNET_CACHE", str(tmp_path / "cache"))
    transports._transport.cache_clear()
    remote._listed.clear()
    running.files.clear()
    return running


def served(store):
    """Return the files of the bucket, which a web server shall have, too."""
    folder = remote.shadow(f"s3://{BUCKET}/cells")
    remote.fetch_folder(folder)
    files = list(folder.rglob("*.png"))
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def test_record_of_a_data_set_does_not_depend_on_where_it_is_kept(store, tmp_path, monkeypatch):
    root = f"s3://{BUCKET}/cells"
    first = open_source("folder", {"root": root, **PATTERNS})
    image, mask = first.read(2)
    paths = first.paths()
    monkeypatch.setenv("TFUNET_CACHE", str(tmp_path / "other"))
    remote._listed.clear()
    second = open_source("folder", {"root": root, **PATTERNS})
    assert first.root != second.root
    assert first.fingerprint == second.fingerprint
    assert first.made_by == second.made_by == f"folder {root}"
    assert paths == second.paths()
    assert paths[0] == f"{root}/images/c00000.png"
    assert first.name == second.name == "cells"
    assert (second.read(2)[0] == image).all()
    assert (second.read(2)[1] == mask).all()


def test_pixels_are_those_of_a_copy(store, tmp_path):
    for name, content in served(store).items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)
    there = open_source("folder", {"root": f"s3://{BUCKET}/cells", **PATTERNS})
    here = open_source("folder", {"root": str(tmp_path), **PATTERNS})
    assert there.case_ids == here.case_ids
    for index in range(len(here.case_ids)):
        for ours, theirs in zip(here.read(index), there.read(index), strict=True):
            assert (ours == theirs).all()


def test_description_beside_the_data_names_them_as_it_does_on_a_disk(store):
    lines = ['images = "images/{case}.png"', 'masks = "masks/{case}.png"', "classes = {cell = 255}"]
    store.put("cells/data.toml", "\n".join(lines).encode())
    source = open_source(f"s3://{BUCKET}/cells/data.toml", {})
    store.remove("cells/data.toml")
    assert len(source.case_ids) == 6
    assert source.made_by == f"folder s3://{BUCKET}/cells"


def test_local_description_may_name_a_bucket(store, tmp_path):
    path = tmp_path / "data.toml"
    lines = [f'root = "s3://{BUCKET}/cells"', 'images = "images/{case}.png"']
    path.write_text("\n".join([*lines, 'masks = "masks/{case}.png"', "classes = {cell = 255}"]))
    assert len(open_source(str(path), {}).case_ids) == 6


def test_table_on_a_web_server_without_an_index_names_its_files(store):
    files = served(store)
    rows = ["image,mask", *(f"images/c{n:05d}.png,masks/c{n:05d}.png" for n in range(6))]
    store.files |= {f"set/{name}": content for name, content in files.items()}
    store.files["set/cases.csv"] = "\n".join([*rows, "images/none.png,masks/none.png"]).encode()
    address = f"{store.address}/web/set"
    source = open_source("csv", {"file": f"{address}/cases.csv", **CLASSES}, skip_bad=True)
    assert len(source.case_ids) == 6
    assert [defect.file for defect in source.defects] == ["images/none.png", "masks/none.png"]
    assert source.paths()[0] == f"{address}/images/c00000.png"


def test_index_pages_of_a_web_server_are_a_folder(store):
    store.files |= {f"index/{name}": content for name, content in served(store).items()}
    source = open_source("folder", {"root": f"{store.address}/web/index", **PATTERNS})
    assert len(source.case_ids) == 6


def test_volume_in_slices_and_one_in_two_files_are_fetched_whole(store, tmp_path):
    image = SimpleITK.GetImageFromArray(np.arange(60, dtype=np.uint16).reshape(3, 4, 5))
    SimpleITK.WriteImage(image, str(tmp_path / "a.mhd"))
    slices(tmp_path / "series", np.zeros((3, 4, 5), np.uint16))
    for path in [*tmp_path.glob("a.*"), *(tmp_path / "series").iterdir()]:
        store.put(f"volumes/{path.relative_to(tmp_path)}", path.read_bytes())
    folder = remote.shadow(f"s3://{BUCKET}/volumes")
    assert read_header(folder / "a.mhd").shape == (3, 4, 5)
    assert read_header(folder / "series").shape == (3, 4, 5)
