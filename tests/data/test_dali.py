"""pipeline = "dali": the samples, crops and amounts of "tf", and its pixels but for rounding."""

import csv
import itertools
import json
import os
import re
import subprocess
import sys
from dataclasses import replace

import imagecodecs
import numpy as np
import pytest
import tensorflow as tf
import tifffile
from paths import ROOT
from PIL import Image

from tfunet.config.augmentation import KINDS, read_augmentation
from tfunet.config.run import RunConfig
from tfunet.data import dali_limits, read_failure
from tfunet.data.cache import build_cache
from tfunet.data.layouts.folder import open_folder
from tfunet.data.pipeline import TrainingPipeline
from tfunet.data.task import open_task

pytest.importorskip("nvidia.dali", reason="DALI is not installed: pip install 'tfunet[dali]'")

PATCH = (24, 20)
# Larger than the patch, as large, and smaller along each axis.
SHAPES = [(30, 40), (24, 20), (51, 33), (20, 45), (40, 11), (64, 64), (37, 29)]
OFFERED = [name for name in KINDS if name != "elastic"]
AFFINE = dali_limits.AFFINE
# In standard deviations of an image. DALI adds up the places along a row, and rounds each.
TOLERANCES = {**dict.fromkeys(AFFINE, 2e-4), **dict.fromkeys(dali_limits.GREY, 2e-5)}
HALF = {name: {"range": True, "probability": 0.5} for name in OFFERED}
OPTIONS = {"classes": {"cell": 1, "rim": 2}}


def scene(shape, index, channels, most):
    """Numbers that are unlike their neighbours, and a mask of three labels in blobs."""
    rng = np.random.default_rng(index)
    grid = np.indices(shape) / np.reshape(shape, (-1, 1, 1))
    mask = (grid * rng.uniform(1, 9, 2).reshape(-1, 1, 1)).sum(axis=0) % 3
    image = rng.integers(0, most, (*shape, channels), endpoint=True)
    return image, mask.astype(np.uint8)


def write_png(path, pixels):
    path.write_bytes(imagecodecs.png_encode(pixels))


def write_jpeg(path, pixels):
    Image.fromarray(pixels).save(path, quality=90)


# Suffix and channels of images and the type of their pixels; suffix and type of masks.
KINDS_OF_FILES = {
    "grey PNG": (".png", 1, np.uint8, ".png", np.uint8),
    "colour PNG": (".png", 3, np.uint8, ".png", np.uint16),
    "PNG of 16 bits": (".png", 1, np.uint16, ".png", np.uint8),
    "colour PNG of 16 bits": (".png", 3, np.uint16, ".tif", np.uint8),
    "TIFF of 16 bits": (".tif", 1, np.uint16, ".tif", np.uint16),
    "TIFF of floats": (".tif", 1, np.float32, ".png", np.uint8),
    "grey JPEG": (".jpg", 1, np.uint8, ".png", np.uint8),
    "colour JPEG": (".jpg", 3, np.uint8, ".tif", np.uint8),
}
WRITERS = {".png": write_png, ".jpg": write_jpeg, ".tif": tifffile.imwrite}


def write_files(root, kind, shapes=SHAPES):
    suffix, channels, dtype, mask_suffix, mask_dtype = KINDS_OF_FILES[kind]
    most = 255 if dtype == np.uint8 else 60000
    for part in ("images", "masks"):
        (root / part).mkdir(parents=True)
    for index, shape in enumerate(shapes):
        image, mask = scene(shape, index, channels, most)
        image = image[..., 0] if channels == 1 else image
        WRITERS[suffix](root / "images" / f"c{index}{suffix}", image.astype(dtype))
        WRITERS[mask_suffix](root / "masks" / f"c{index}{mask_suffix}", mask.astype(mask_dtype))
    return opened(root, kind)


def opened(root, kind, **options):
    suffix, _, _, mask_suffix, _ = KINDS_OF_FILES[kind]
    patterns = {"images": f"images/{{case}}{suffix}", "masks": f"masks/{{case}}{mask_suffix}"}
    return open_folder(**{"root": str(root), "patch": PATCH, **patterns, **OPTIONS, **options})


def files_of(source, folder, patch=PATCH, **options):
    return build_cache(source, folder / "cache", patch=patch, store="files", **options)


def training(source, folder, skip_bad=False, **changed):
    """The batches of DALI; with encoded=None those of "tf"."""
    default = {
        "cases": files_of(source, folder, skip_bad=skip_bad),
        "train": (1, 2, 3, 4, 5, 6),
        "patches_per_case": 2,
        "foreground_share": 0.5,
        "replica_batch": 4,
        "last_step": 3,
        "augmentation": read_augmentation({"flips": False}),
        "augmented_by": "dali",
        "encoded": source.encoded(),
    }
    return TrainingPipeline(**{**default, **changed})


def fed(pipeline, *processes):
    """What these processes are fed, a step a row, the replicas side by side."""
    steps = {}
    streams = [pipeline(share).as_numpy_iterator() for share in processes or [range(1)]]
    for _ in range(pipeline.first_step, pipeline.last_step):
        batches = [
            next(stream)
            for stream, share in zip(streams, processes or [range(1)], strict=True)
            for _ in share
        ]
        for name in ("sample", "epoch", "image", "mask"):
            tail = 1 if name in ("sample", "epoch") else 2
            rows = [one[name].reshape(-1, *one[name].shape[tail:]) for one in batches]
            steps.setdefault(name, []).append(np.concatenate(rows))
    assert all(next(stream, None) is None for stream in streams)
    return {name: np.stack(rows) for name, rows in steps.items()}


def both(pipeline, *processes):
    """What "tf" makes, and what DALI makes, of the same samples."""
    ours, found = fed(replace(pipeline, augmented_by="tf", encoded=None)), fed(pipeline, *processes)
    for name in ("sample", "epoch"):
        np.testing.assert_array_equal(found[name], ours[name])
    return ours, found


@pytest.mark.parametrize("kind", KINDS_OF_FILES)
def test_files_of_each_kind_give_the_same_pixels(kind, tmp_path):
    ours, found = both(training(write_files(tmp_path, kind), tmp_path))
    # On the cores both decode JPEG as libjpeg-turbo does; nvJPEG may be a step of 8 bits off.
    by_nvjpeg = "JPEG" in kind and tf.config.list_physical_devices("GPU")
    tolerance = 0.03 if by_nvjpeg else 1e-5
    np.testing.assert_allclose(found["image"], ours["image"], rtol=0, atol=tolerance)
    np.testing.assert_array_equal(found["mask"], ours["mask"])
    assert {0, 1, 2} == set(np.unique(found["mask"]))


@pytest.fixture(scope="module")
def colours(tmp_path_factory):
    root = tmp_path_factory.mktemp("colours")
    return write_files(root, "colour PNG"), root


@pytest.fixture(scope="module")
def unchanged(colours):
    return fed(training(*colours, augmented_by="tf", encoded=None))["image"]


@pytest.mark.parametrize("name", OFFERED)
def test_each_augmentation_gives_the_same_pixels(name, colours, unchanged):
    plain = training(*colours)
    ours, found = both(replace(plain, augmentation=read_augmentation({"flips": False, name: True})))
    np.testing.assert_allclose(found["image"], ours["image"], rtol=0, atol=TOLERANCES[name])
    # Where a place lies between two pixels, rounding decides.
    assert (found["mask"] != ours["mask"]).mean() <= (1e-3 if name in AFFINE else 0)
    assert abs(ours["image"] - unchanged).max() > 0.01


@pytest.mark.parametrize(
    ("table", "tolerance"),
    [
        ({"flips": True}, 1e-5),
        ({"flips": [1]}, 1e-5),
        ({"flips": True, "rotation90": True}, 1e-5),
        # Half of the samples escape each of them.
        (HALF, 4e-4),
        ({**HALF, "rotation90": True}, 4e-4),
        # Beyond the mirror image lies another one.
        ({"rotation": 5, "scale": [0.35, 0.4], "translation": 0.05}, 4e-4),
    ],
)
def test_together_they_give_the_same_pixels(table, tolerance, colours):
    source, root = colours
    patch = (20, 20) if "rotation90" in table else PATCH
    cases = files_of(source, root, patch)
    ours, found = both(training(*colours, cases=cases, augmentation=read_augmentation(table)))
    np.testing.assert_allclose(found["image"], ours["image"], rtol=0, atol=tolerance)
    assert (found["mask"] != ours["mask"]).mean() <= (1e-3 if tolerance > 1e-5 else 0)


def test_no_sample_reaches_farther_than_the_bound(colours):
    from tfunet.data.dali import DaliSamples

    source, root = colours
    rng = np.random.default_rng(0)
    for number in range(6):
        table = {
            "rotation": float(rng.uniform(0, 50)),
            "scale": [float(rng.uniform(0.7, 1)), 1.3],
            "shear": float(rng.uniform(0, 20)),
            "translation": float(rng.uniform(0, 0.2)),
        }
        kept = rng.choice(AFFINE, 2, replace=False)
        augmentation = read_augmentation({name: table[name] for name in kept})
        cases = files_of(source, root)
        made = DaliSamples(source.encoded(), cases, (0, 1), augmentation, batch=1, seed=number)
        for sample in range(4):
            zero = tf.constant(0, tf.int64)
            row = made.draw({}, epoch=zero, sample=zero + sample)
            reach = row["reach"].numpy().sum(axis=0) if "reach" in row else 0
            # What is interpolated takes up to two pixels more.
            assert (reach <= np.add(dali_limits.farthest(augmentation, PATCH), 2)).all()


def test_replicas_processes_and_a_resumed_run_get_the_samples_of_one(colours):
    table = {"rotation": {"probability": 0.5}, "gamma": True, "noise": True}
    whole = training(*colours, augmentation=read_augmentation(table), last_step=5)
    _, alone = both(whole)
    two = replace(whole, replica_batch=2, num_replicas=2, accumulation=2)
    apart, rest = fed(two, range(1), range(1, 2)), fed(replace(two, first_step=4), range(2))
    for name in ("sample", "image", "mask"):
        np.testing.assert_array_equal(apart[name], alone[name])
        np.testing.assert_array_equal(rest[name], alone[name][4:])
    first, *others = alone["image"]
    assert all((first != one).any() for one in others)
    for one in fed(replace(whole, synthetic=True))["image"]:
        np.testing.assert_array_equal(one, first)


@pytest.mark.parametrize(
    "intensity", ["none", [10, 200], {"mean": [90.5], "deviation": [31]}, "grey, one value"]
)
def test_every_way_to_normalise_gives_the_same_pixels(intensity, tmp_path):
    root = tmp_path / "files"
    if intensity == "grey, one value":
        write_files(root, "colour PNG")
        # A constant channel becomes 0.
        write_png(root / "images" / "c5.png", np.full((64, 64, 3), 91, np.uint8))
        source = opened(root, "colour PNG", grey=True)
    else:
        if isinstance(intensity, dict):
            intensity = {**intensity, "low": [20], "high": [230]}
        write_files(root, "grey PNG")
        source = opened(root, "grey PNG", intensity=intensity)
    ours, found = both(training(source, tmp_path))
    np.testing.assert_allclose(found["image"], ours["image"], rtol=1e-6, atol=1e-5)


@pytest.mark.parametrize("size", [0.6, 1.25, [2.5, 1.7], 3.2])
def test_resampling_gives_the_same_pixels(size, tmp_path):
    shapes = [tuple(3 * length for length in shape) for shape in SHAPES]
    root = tmp_path / "files"
    write_files(root, "grey PNG", shapes)
    source = opened(root, "grey PNG", pixel_size=1.0, target_pixel_size=size)
    ours, found = both(training(source, tmp_path))
    np.testing.assert_allclose(found["image"], ours["image"], rtol=0, atol=3e-4)
    np.testing.assert_array_equal(found["mask"], ours["mask"])


def mask_of(values):
    """Masks with these values in stripes."""
    return np.repeat(np.array(values), 8)[np.newaxis].repeat(40, 0)


@pytest.mark.parametrize(
    ("stored", "options"),
    [
        ({"a": mask_of([0, 7, 255])}, {"classes": {"a": 7, "background": [0, 255]}}),
        ({"a": mask_of([0, 7, 255])}, {"classes": {"a": 7}, "ignore_label": 255}),
        ({"a": mask_of([0, 7, 255])}, {"masks": {"a": "a/{case}.png"}, "threshold": 100}),
        ({"a": mask_of([0, 7, 0])}, {"masks": {"a": "a/{case}.png"}}),
        (
            {"a": mask_of([0, 7, 0, 9])},
            {"masks": {"a": "a/{case}.png"}, "ignore_label": 7},
        ),
        ({"a": mask_of([0, 7, 300])}, {"masks": {"a": "a/{case}.png"}, "objects": "numbers"}),
        ({"a": mask_of([0, 1]) > 0}, {"classes": {"a": 1}}),
        ({"a": mask_of([0, 1]) > 0}, {"classes": {"a": 255}}),
        ({"a": mask_of([0, 1]) > 0}, {"masks": {"a": "a/{case}.png"}, "threshold": 127}),
        (
            {"a": mask_of([0, 9, 9, 255]), "b": mask_of([0, 0, 9, 9])},
            {"masks": {"a": "a/{case}.png", "b": "b/{case}.png"}, "ignore_label": 255},
        ),
    ],
)
def test_masks_become_the_same_labels(stored, options, tmp_path):
    root = tmp_path / "files"
    (root / "images").mkdir(parents=True)
    for case in range(7):
        shape = next(iter(stored.values())).shape
        write_png(root / "images" / f"{case}.png", scene(shape, case, 1, 255)[0].astype(np.uint8))
        for name, mask in stored.items():
            (root / name).mkdir(exist_ok=True)
            path, turned = root / name / f"{case}.png", np.roll(mask, 5 * case, 1)
            if mask.dtype == bool:
                Image.fromarray(turned).save(path)
            else:
                write_png(path, turned.astype(np.uint8 if mask.max() < 256 else np.uint16))
    patterns = {"images": "images/{case}.png", "masks": "a/{case}.png"}
    source = open_folder(root=str(root), patch=PATCH, **{**patterns, **options})
    ours, found = both(training(source, tmp_path, foreground_share=0.0))
    np.testing.assert_array_equal(found["mask"], ours["mask"])
    assert len(np.unique(ours["mask"])) > 1


def test_tags_of_orientation_and_alpha_are_as_in_tf(tmp_path):
    """A decoder alone: what it makes of files that say how they lie, or have alpha."""
    from nvidia.dali import fn, pipeline_def, types

    from tfunet.data.image_files import read_image

    paths = []
    for tag, suffix in itertools.product(range(1, 9), (".png", ".jpg", ".tif")):
        pixels = scene((30, 41), tag, 4, 255)[0].astype(np.uint8)
        path, exif = tmp_path / f"{tag}{suffix}", Image.Exif()
        exif[274] = tag
        if suffix == ".tif":
            extra = [(274, 3, 1, tag, True)]
            tifffile.imwrite(path, pixels[..., :3], photometric="rgb", extratags=extra)
        else:
            Image.fromarray(pixels[..., : 3 if suffix == ".jpg" else 4]).save(path, exif=exif)
        paths.append(path)

    @pipeline_def(batch_size=len(paths), num_threads=2, device_id=None, prefetch_queue_depth=1)
    def decoded():
        return fn.decoders.image(
            fn.external_source(name="file"), output_type=types.RGB, jpeg_fancy_upsampling=True
        )

    (found,) = decoded().run(file=[np.frombuffer(path.read_bytes(), np.uint8) for path in paths])
    for number, path in enumerate(paths):
        np.testing.assert_array_equal(np.array(found[number]), read_image(path, alpha="drop"))


def write_palette(path):
    Image.fromarray(np.zeros((30, 40), np.uint8), "P").save(path)


def write_cmyk(path):
    Image.new("CMYK", (40, 30)).save(path)


def write_stack(path):
    tifffile.imwrite(path, np.zeros((5, 30, 40), np.uint8))


@pytest.mark.parametrize(
    ("kind", "write", "options", "said"),
    [
        ("colour PNG", write_palette, {}, "c0.png has a palette, or pixels of 2 or 4 bits"),
        ("colour JPEG", write_cmyk, {}, "c0.jpg is a JPEG in CMYK"),
        ("grey PNG", None, {"intensity": "zscore_nonzero"}, "intensity = 'zscore_nonzero'"),
        ("grey PNG", None, {"alpha": "keep"}, "its description says that alpha = 'keep'"),
        ("grey PNG", None, {"fill": 0}, "fill = 0"),
    ],
)
def test_files_that_dali_decodes_otherwise_are_refused(kind, write, options, said, tmp_path):
    write_files(tmp_path, kind)
    if write is not None:
        write(tmp_path / "images" / f"c0{KINDS_OF_FILES[kind][0]}")
    with pytest.raises(ValueError, match=re.escape(said)) as error:
        dali_limits.encoded_cases(opened(tmp_path, kind, **options))
    assert str(error.value).startswith("pipeline = 'dali' decodes planes in PNG, JPEG and TIFF")
    assert str(error.value).endswith("Leave it out: pipeline = 'tf' does it.")
    assert "\n" not in str(error.value)


def test_tiffs_that_dali_decodes_otherwise_are_refused(tmp_path):
    plane = np.arange(30 * 40).reshape(30, 40)
    kinds = {
        "whole numbers with a sign": {"data": plane.astype(np.int16)},
        "has colours or a black of its own": {
            "data": plane.astype(np.uint8),
            "photometric": "miniswhite",
        },
        "has alpha": {
            "data": np.zeros((30, 40, 4), np.uint8),
            "photometric": "rgb",
            "extrasamples": ["unassalpha"],
        },
        "stores colours one after the other": {
            "data": np.zeros((3, 30, 40), np.uint8),
            "planarconfig": "separate",
            "photometric": "rgb",
        },
        "marks pixels without data": {
            "data": plane.astype(np.uint8),
            "extratags": [(42113, "s", 0, "7", True)],
        },
    }
    from tfunet.data.formats.tiff import beside_pixels

    for said, options in kinds.items():
        tifffile.imwrite(tmp_path / "a.tif", **options)
        assert said in beside_pixels(tmp_path / "a.tif")
    write_stack(tmp_path / "a.tif")
    assert beside_pixels(tmp_path / "a.tif") == "has several pages"


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"pipeline": "dalli"}, "Did you mean 'dali'? Known: tf, device, dali."),
        ({"augmentation": {"elastic": True}}, "moves pixels by affine maps only"),
        (
            {"split": [2, 1], "backend": "mirrored", "num_replicas": 1},
            "pipeline = 'dali' cannot be combined with split = [2, 1]: DALI makes whole samples.",
        ),
        ({"store": "decoded"}, "makes a copy that it would not read. Leave out one of them."),
        ({"stages": 2, "backend": "mirrored"}, "cannot be combined with stages = 2"),
        ({"tiling": [2, 2], "loss": "crossentropy"}, "cannot be combined with tiling = [2, 2]"),
    ],
)
def test_keys_that_dali_cannot_follow_are_refused(changed, said):
    if "pipeline" not in changed:
        RunConfig(**changed, augmentation=changed.get("augmentation", {})) if (
            "augmentation" not in changed
        ) else RunConfig(**changed)
    with pytest.raises(ValueError, match=re.escape(said)):
        RunConfig(**{"pipeline": "dali", **changed})


@pytest.mark.parametrize(
    "table", [{"scale": [0.1, 1]}, {"scale": [0.5, 1], "rotation": 180, "translation": 1}]
)
def test_what_would_take_too_much_memory_is_refused(table, tmp_path):
    write_files(tmp_path, "grey PNG")
    options = {"images": "images/{case}.png", "masks": "masks/{case}.png", **OPTIONS}
    config = RunConfig(
        data="folder",
        data_options={"root": str(tmp_path), **options},
        patch=(32, 32),
        augmentation=table,
        pipeline="dali",
    )
    with pytest.raises(ValueError, match="beyond the patch of 32 along axis 0; DALI needs"):
        open_task(config).augmentation()


def test_data_without_files_and_a_missing_dali_are_told(monkeypatch):
    task = open_task(RunConfig(data="cells", pipeline="dali"))
    with pytest.raises(ValueError, match=r"'cells': the data set has none\. Leave it out: pipe"):
        task.encoded()
    monkeypatch.setitem(sys.modules, "nvidia.dali", None)
    with pytest.raises(ValueError, match=r"Install it with: pip install 'tfunet\[dali\]'"):
        task.encoded()


def damaged(root, name, content=None):
    path = root / name
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2] if content is None else content)


def failure(pipeline):
    """What a run says when its batches fail."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(read_failure, "_failures", [])
        with pytest.raises(tf.errors.OpError) as error:
            fed(pipeline)
        with pytest.raises(ValueError, match="on_bad_sample") as told:
            read_failure.raise_read_failure(error.value)
        return str(told.value)


def test_a_file_that_becomes_bad_is_named_in_a_line(tmp_path):
    root = tmp_path / "files"
    pipeline = training(write_files(root, "grey PNG"), tmp_path)
    damaged(root, "images/c3.png")
    said = failure(pipeline)
    assert said.startswith(f"{root}/images/c3.png: cannot be read")
    assert "on_bad_sample" in said
    assert "\n" not in said


@pytest.mark.parametrize("name", ["images/c3.tif", "masks/c3.png"])
def test_pixels_and_labels_of_no_use_are_found(name, tmp_path):
    root = tmp_path / "files"
    pipeline = training(write_files(root, "TIFF of floats"), tmp_path)
    if name.startswith("images"):
        tifffile.imwrite(root / name, np.full(SHAPES[3], np.nan, np.float32))
        said = "holds NaN or infinity"
    else:
        write_png(root / name, np.full(SHAPES[3], 9, np.uint8))
        said = "labels out of range: the mask holds the values 9"
    assert failure(pipeline).startswith(f"{root / name}: {said}")


def test_another_case_takes_the_place_of_a_bad_one_on_all_processes(tmp_path):
    root = tmp_path / "files"
    whole = training(write_files(root, "grey PNG"), tmp_path, skip_bad=True)
    before = fed(whole)
    damaged(root, "images/c3.png")
    damaged(root, "masks/c4.png", b"")
    after = fed(whole)
    assert set(whole.cases.defects) == {3, 4}  # The run names them at its end.
    cases = np.array(whole.train)[before["sample"] // 2]
    same = (before["image"] == after["image"]).all((2, 3, 4))
    assert (same | np.isin(cases, (3, 4))).all()
    assert not same[np.isin(cases, (3, 4))].any()
    two = replace(whole, replica_batch=2, num_replicas=2)
    np.testing.assert_array_equal(fed(two, range(1), range(1, 2))["image"], after["image"])
    for case in whole.train:
        (root / "images" / f"c{case}.png").write_bytes(b"")
    assert "the file is empty" in failure(whole)


RUN = {
    "data": "data.toml",
    "patch": [24, 16],
    "augmentation": {"rotation": 20, "gamma": True},
    "model_options": {"filters": 4, "levels": 1},
    "global_batch": 4,
    "steps": 4,
    "cores_per_replica": 1,
}


def trained(place, out, **settings):
    """Train by the command, and return (exit code, what it printed, losses)."""
    lines = [f"{key} = {toml(value)}" for key, value in {**RUN, **settings}.items()]
    (place / f"{out}.toml").write_text("\n".join(lines))
    ended = subprocess.run(
        [sys.executable, "-m", "tfunet", "train", f"{out}.toml", "--out", out],
        cwd=place,
        env={**os.environ, "PYTHONPATH": str(ROOT), "TFUNET_CACHE": str(place / "cache")},
        capture_output=True,
        text=True,
        timeout=300,
    )
    steps = place / out / "steps.csv"
    rows = list(csv.DictReader(steps.open())) if steps.exists() else []
    return ended.returncode, ended.stdout + ended.stderr, [float(row["loss"]) for row in rows]


def toml(value):
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {toml(one)}" for key, one in value.items()) + " }"
    return json.dumps(value)


@pytest.mark.slow
@pytest.mark.multiprocess
def test_runs_learn_the_same_and_a_bad_file_ends_one_with_its_name(tmp_path):
    write_files(tmp_path, "grey PNG", SHAPES * 2)
    (tmp_path / "data.toml").write_text(
        'images = "images/{case}.png"\nmasks = "masks/{case}.png"\n'
        "classes = { cell = 1, rim = 2 }\n"
    )
    two = {"pipeline": "dali", "backend": "multiworker", "num_replicas": 2}
    code, said, losses = trained(tmp_path, "two", **two)
    assert code == 0, said
    assert not list((tmp_path / "cache").rglob("images.bin"))  # No copy of the cases.
    code, said, expected = trained(tmp_path, "tf")
    assert code == 0, said
    np.testing.assert_allclose(losses, expected, rtol=1e-4)
    assert losses != expected  # Not the same code.
    for case in range(14):
        path = tmp_path / f"images/c{case}.png"
        whole = path.read_bytes()
        # Headers and ends say nothing of it.
        path.write_bytes(whole[:200] + bytes(100) + whole[300:])
    code, said, _ = trained(tmp_path, "bad", pipeline="dali")
    assert code == 2, said
    errors = [line for line in said.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1
    assert re.search(r"images/c\d+\.png: cannot be read", errors[0])
