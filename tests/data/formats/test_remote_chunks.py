"""Large arrays on an object store: what is read of them is fetched, and no more."""

import numpy as np
import object_store
import pytest
import zarr
from object_store import BUCKET
from small_images import save

from tfunet.data.image_files import open_region, read_header, read_image
from tfunet.files import remote, remote_room, transports


@pytest.fixture(scope="module")
def running():
    with object_store.serving() as store:
        yield store


@pytest.fixture
def store(running, tmp_path, monkeypatch):
    for name, value in running.variables().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("TFUNET_CACHE", str(tmp_path / "cache"))
    transports._transport.cache_clear()
    remote._listed.clear()
    running.asked()
    return running


def put_folder(store, folder, key):
    for path in folder.rglob("*"):
        if path.is_file():
            store.put(f"{key}/{path.relative_to(folder)}", path.read_bytes())


@pytest.mark.parametrize("compressor", ["blosc", "zstd"])
def test_box_of_a_zarr_array_asks_for_its_chunks_only(store, tmp_path, compressor):
    codec = zarr.codecs.BloscCodec() if compressor == "blosc" else zarr.codecs.ZstdCodec()
    pixels = np.random.default_rng(0).integers(0, 255, (64, 64, 64), dtype=np.uint8)
    array = zarr.create_array(
        tmp_path / "a.zarr", shape=pixels.shape, chunks=(16, 64, 64), dtype="u1", compressors=codec
    )
    array[...] = pixels
    put_folder(store, tmp_path / "a.zarr", f"{compressor}.zarr")
    path = remote.shadow(f"s3://{BUCKET}/{compressor}.zarr")
    assert read_header(path).shape == pixels.shape
    store.asked()
    _, region = open_region(path)
    found = region((slice(17, 31), slice(0, 9), slice(3, 64)))
    np.testing.assert_array_equal(found[..., 0], pixels[17:31, :9, 3:])
    assert store.asked()["GET"] <= 2  # The chunk, and once the array's own description.


def test_chunk_that_was_cut_off_is_not_unpacked(store, tmp_path):
    array = zarr.create_array(
        tmp_path / "a.zarr",
        shape=(64, 64, 64),
        chunks=(16, 64, 64),
        dtype="u1",
        compressors=zarr.codecs.BloscCodec(),
    )
    array[...] = np.random.default_rng(0).integers(0, 255, (64, 64, 64), dtype=np.uint8)
    put_folder(store, tmp_path / "a.zarr", "cut.zarr")
    store.put("cut.zarr/c/1/0/0", (tmp_path / "a.zarr/c/1/0/0").read_bytes()[:1000])
    _, region = open_region(remote.shadow(f"s3://{BUCKET}/cut.zarr"))
    region((slice(0, 16), slice(0, 9), slice(0, 9)))
    with pytest.raises(ValueError, match="is truncated"):
        region((slice(16, 32), slice(0, 9), slice(0, 9)))


@pytest.mark.parametrize("name", ["a.nii", "a.nii.gz", "a.npy"])
def test_header_of_a_large_file_is_its_first_bytes(store, tmp_path, name):
    pixels = np.random.default_rng(0).integers(0, 2**15, (100, 100, 120), dtype=np.int16)
    save(tmp_path / name, pixels)
    store.put(f"heads/{name}", (tmp_path / name).read_bytes())
    path = remote.shadow(f"s3://{BUCKET}/heads/{name}")
    store.sent = 0
    assert read_header(path).shape == read_header(tmp_path / name).shape
    assert store.sent < 300_000
    assert read_header(path).spacing == read_header(tmp_path / name).spacing
    assert store.asked()["GET"] == 1
    read, here = (read_image(place)[0] for place in (path, tmp_path / name))
    np.testing.assert_array_equal(read, here)
    assert store.asked() == {"GET": 1}


def test_header_that_is_longer_than_the_first_bytes_is_read_whole(store, tmp_path, monkeypatch):
    monkeypatch.setattr(remote, "HEAD_BYTES", 100)
    pixels = np.zeros((100, 100, 120), np.int16)
    save(tmp_path / "a.nii", pixels)
    store.put("long/a.nii", (tmp_path / "a.nii").read_bytes())
    path = remote.shadow(f"s3://{BUCKET}/long/a.nii")
    assert read_header(path).shape == pixels.shape
    assert not remote.is_on_server(path)


def test_evicted_file_is_fetched_again_for_the_next_box(store, tmp_path):
    pixels = np.random.default_rng(0).integers(0, 2**15, (40, 50, 60), dtype=np.int16)
    save(tmp_path / "a.nii", pixels)
    store.put("boxes/a.nii", (tmp_path / "a.nii").read_bytes())
    path = remote.shadow(f"s3://{BUCKET}/boxes/a.nii")
    _, region = open_region(path)
    box = (slice(3, 9), slice(0, 50), slice(5, 6))
    first = region(box)
    remote_room.evict(remote.folder(), path)
    np.testing.assert_array_equal(region(box), first)
    assert first.any()
