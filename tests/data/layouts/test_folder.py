"""Folders: pairs by pattern, classes, pixel sizes, and every defect in one message."""

import json
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image
from small_images import save

from tfunet.data.check import check
from tfunet.data.layouts.folder import open_folder

RNG = np.random.default_rng(0)
PAIRS = {"images": "images/{case}.png", "masks": {"cell": "masks/{case}.png"}}


def grey(shape=(40, 48)):
    return RNG.integers(0, 256, shape).astype(np.uint8)


def disc(shape=(40, 48), value=255):
    mask = np.zeros(shape, np.uint8)
    mask[10:20, 12:30] = value
    return mask


@pytest.fixture
def folder(tmp_path):
    """Five images of 40x48 with a mask each."""
    for name in "abcde":
        save(tmp_path / "images" / f"{name}.png", grey())
        save(tmp_path / "masks" / f"{name}.png", disc())
    return tmp_path


def test_a_folder_of_pairs(folder):
    source = open_folder(root=str(folder), **PAIRS)
    assert source.case_ids == source.groups == tuple("abcde")
    assert (source.num_classes, source.channels, source.regions) == (2, 1, {"cell": (1,)})
    assert source.name == folder.name
    image, mask = source.read(2)
    assert image.shape == (40, 48, 1)
    assert abs(image.mean()) < 1e-5
    np.testing.assert_array_equal(mask, disc(value=1))
    assert mask.dtype == np.uint8
    assert check(source).defects == ()


@pytest.mark.parametrize(
    ("suffix", "image", "mask"),
    [
        (".png", grey(), disc()),
        (".png", grey().astype(np.uint16) * 200, disc().astype(np.uint16) * 3),
        (".jpg", grey(), None),
        (".tif", grey().astype(np.uint16) * 200, disc(value=1).astype(np.uint16)),
        (".tif", grey((40, 8, 48)).astype(np.uint16), disc((40, 20, 48))[:, 12:20]),
        (".nii.gz", RNG.normal(0, 1e5, (40, 48, 8)).astype(np.float32), disc((40, 48, 8))),
        (".nii", grey((40, 48, 8)), disc((40, 48, 8)).astype(np.float32)),
    ],
)
def test_every_format_opens_and_reads(tmp_path, suffix, image, mask):
    mask_suffix = ".png" if mask is None else suffix
    save(tmp_path / f"one{suffix}", image)
    save(tmp_path / f"one_mask{mask_suffix}", disc() if mask is None else mask)
    source = open_folder(
        root=str(tmp_path), images=f"{{case}}{suffix}", masks=f"{{case}}_mask{mask_suffix}"
    )
    pixels, labels = source.read(0)
    assert pixels.shape == (*image.shape, 1)
    assert set(np.unique(labels)) == {0, 1}
    assert check(source).defects == ()


def test_a_mask_beside_its_image_is_not_taken_for_an_image(tmp_path):
    for name in "ab":
        save(tmp_path / f"{name}.png", grey())
        save(tmp_path / f"{name}_mask.png", disc())
    source = open_folder(root=str(tmp_path), images="{case}.png", masks="{case}_mask.png")
    assert source.case_ids == ("a", "b")
    assert source.regions == {"foreground": (1,)}


def test_placeholders_name_cases_and_groups(tmp_path):
    for animal, sample in (("rat1", "s1"), ("rat1", "s2"), ("rat2", "s1")):
        save(tmp_path / f"sub-{animal}/micr/sub-{animal}_{sample}_SEM.png", grey())
        save(tmp_path / f"derivatives/sub-{animal}/{sample}_seg.png", disc())
    source = open_folder(
        root=str(tmp_path),
        images="sub-{group}/*/sub-{group}_{sample}_SEM.png",
        masks="**/sub-{group}/{sample}_s?g.png",
    )
    assert source.case_ids == ("rat1_s1", "rat1_s2", "rat2_s1")
    assert source.groups == ("rat1", "rat1", "rat2")


def test_a_placeholder_stands_for_as_little_as_it_can(tmp_path):
    save(tmp_path / "rat1_slice_7.png", grey())
    save(tmp_path / "rat1_slice_7_mask.png", disc())
    source = open_folder(
        root=str(tmp_path), images="{group}_{case}.png", masks="{group}_{case}_mask.png"
    )
    assert (source.groups, source.case_ids) == (("rat1",), ("rat1_slice_7",))


def test_hidden_files_and_other_names_are_left_alone(folder):
    # The archives of the Medical Segmentation Decathlon hold such shadows of every file.
    (folder / "images" / "._a.png").write_bytes(b"shadow")
    (folder / "images" / "README.txt").write_text("no image")
    assert len(open_folder(root=str(folder), **PAIRS).case_ids) == 5


def test_a_file_for_each_class_and_the_later_class_wins(folder):
    for name in "abcde":
        save(folder / "rims" / f"{name}.png", np.roll(disc(), 5, axis=0))
    masks = {"body": "masks/{case}.png", "rim": "rims/{case}.png"}
    source = open_folder(root=str(folder), images="images/{case}.png", masks=masks)
    _, labels = source.read(0)
    assert source.regions == {"body": (1,), "rim": (2,)}
    np.testing.assert_array_equal(labels == 2, np.roll(disc(), 5, axis=0) > 0)
    assert (labels == 1).sum() == 5 * 18


def test_classes_are_values_in_one_file_and_regions_may_nest(folder):
    values = disc()
    values[10:13], values[13:15], values[0, 0] = 4, 2, 9
    for name in "abcde":
        save(folder / "masks" / f"{name}.png", np.where(values == 255, 1, values).astype(np.uint8))
    source = open_folder(
        root=str(folder),
        images="images/{case}.png",
        masks="masks/{case}.png",
        classes={"edema": 2, "tumour": [1, 4], "background": [0, 9]},
        regions={"whole": ["edema", "tumour"], "core": ["tumour"]},
    )
    assert source.num_classes == 3
    assert source.regions == {"whole": (1, 2), "core": (2,)}
    _, labels = source.read(0)
    np.testing.assert_array_equal(labels == 1, values == 2)
    np.testing.assert_array_equal(labels == 2, (values == 4) | (values == 255))


def test_a_threshold_takes_all_above_it(folder):
    values = disc()
    values[11], values[12] = 127, 130
    for name in "abcde":
        save(folder / "masks" / f"{name}.png", values)
    with pytest.raises(ValueError, match=r"values 0, 127, 130, 255.*threshold= .* classes="):
        open_folder(root=str(folder), **PAIRS).read(0)
    _, labels = open_folder(root=str(folder), **PAIRS, threshold=127).read(0)
    np.testing.assert_array_equal(labels == 1, values > 127)


def test_several_images_become_channels(folder):
    for name in "abcde":
        save(folder / "flair" / f"{name}.png", grey())
    source = open_folder(
        root=str(folder),
        images=["images/{case}.png", "flair/{case}.png"],
        masks="masks/{case}.png",
        intensity="none",
    )
    assert source.channels == 2
    image, _ = source.read(4)
    for channel, part in enumerate(("images", "flair")):
        with Image.open(folder / part / "e.png") as expected:
            np.testing.assert_array_equal(image[..., channel], np.asarray(expected))


def test_a_table_chooses_cases_and_names_groups(folder):
    rows = "id,split,animal\na,train,x\nb,val,y\nc,train,x\nd,test,z\ne,val,y\n"
    (folder / "index.csv").write_text(rows)
    table = {
        "file": "index.csv",
        "key": "id",
        "group": "animal",
        "keep": {"split": ["train", "val"]},
    }
    source = open_folder(root=str(folder), **PAIRS, table=table)
    assert source.case_ids == tuple("abce")
    assert source.groups == tuple("xyxy")
    (folder / "index.tsv").write_text(rows.replace(",", "\t"))
    assert open_folder(
        root=str(folder), **PAIRS, table={**table, "file": "index.tsv"}
    ).groups == tuple("xyxy")


def sized(folder, **sizes):
    for name in "abcde":
        (folder / "images" / f"{name}_SEM.json").write_text(
            json.dumps({"PixelSize": sizes.get(name, [0.1, 0.1]), "PixelSizeUnits": "um"})
        )


def test_images_and_masks_are_resampled_to_one_pixel_size(folder):
    sized(folder, b=[0.2, 0.2], c=0.05, d=[0.2, 0.1])
    source = open_folder(
        root=str(folder),
        **PAIRS,
        pixel_size={"file": "images/{case}_*.json", "key": "PixelSize"},
        target_pixel_size=0.1,
    )
    shapes = [source.read(index)[1].shape for index in range(5)]
    # BIDS lists x before y: the columns of d are 0.2 wide.
    assert shapes == [(40, 48), (80, 96), (20, 24), (40, 96), (40, 48)]
    for index in range(5):
        image, mask = source.read(index)
        assert image.shape[:2] == mask.shape
        assert set(np.unique(mask)) == {0, 1}
        assert abs((mask == 1).mean() - 180 / (40 * 48)) < 0.01


def test_pixel_sizes_come_from_a_setting_a_table_or_the_nifti_header(folder):
    (folder / "sizes.csv").write_text("id,um\na,0.2\nb,0.2\nc,0.1\nd,0.1\ne,0.1\n")
    by_table = open_folder(
        root=str(folder),
        **PAIRS,
        table={"file": "sizes.csv", "key": "id"},
        pixel_size={"column": "um"},
        target_pixel_size=0.1,
    )
    assert [by_table.read(index)[1].shape for index in (0, 2)] == [(80, 96), (40, 48)]
    fixed = open_folder(root=str(folder), **PAIRS, pixel_size=[2, 1], target_pixel_size=[1.0, 2.0])
    assert fixed.read(0)[0].shape == (80, 24, 1)
    save(folder / "v.nii.gz", grey((12, 14, 10)))
    save(folder / "v_seg.nii.gz", disc((12, 14, 10)))
    volumes = open_folder(
        root=str(folder), images="{case}.nii.gz", masks="{case}_seg.nii.gz", target_pixel_size=1
    )
    assert volumes.read(0)[0].shape == (6, 14, 20, 1)


def test_without_a_target_nothing_is_resampled(folder):
    with pytest.raises(ValueError, match="needs target_pixel_size="):
        open_folder(root=str(folder), **PAIRS, pixel_size=0.1)


@pytest.mark.parametrize(
    ("shape", "patch"),
    [((40, 48), (48, 48)), ((500, 90), (256, 96)), ((35, 50, 36), (48, 64, 48))],
)
def test_the_default_patch_is_the_median_shape_rounded_up_within_bounds(tmp_path, shape, patch):
    suffix = ".png" if len(shape) == 2 else ".nii"
    save(tmp_path / f"a{suffix}", grey(shape))
    save(tmp_path / f"a_seg{suffix}", disc(shape))
    options = {"images": f"{{case}}{suffix}", "masks": f"{{case}}_seg{suffix}"}
    assert open_folder(root=str(tmp_path), **options).patch == patch
    own = open_folder(root=str(tmp_path), **options, patch=[16] * len(shape))
    assert own.patch == (16,) * len(shape)


def test_the_root_may_be_relative_or_hold_variables(folder, monkeypatch):
    monkeypatch.setenv("MY_DATA", str(folder.parent))
    monkeypatch.setenv("HOME", str(folder.parent))
    monkeypatch.chdir(folder / "images")
    roots = ["..", f"$MY_DATA/{folder.name}", f"~/{folder.name}"]
    sources = [open_folder(root=root, **PAIRS) for root in roots]
    assert len({source.fingerprint for source in sources}) == 1
    assert {source.name for source in sources} == {folder.name}


def test_the_fingerprint_follows_the_pixels_and_nothing_else(folder, tmp_path_factory):
    def fingerprint(root=folder, **options):
        return open_folder(root=str(root), **{**PAIRS, **options}).fingerprint

    first = fingerprint()
    copy = tmp_path_factory.mktemp("copy") / "elsewhere"
    shutil.copytree(folder, copy)
    os.utime(copy / "images" / "b.png", (0, 0))
    assert fingerprint(copy) == first
    assert fingerprint(patch=[16, 16], name="other", regions={"all": ["cell"]}) == first

    for changed in (
        {"intensity": "none"},
        {"intensity": [0, 255]},
        {"threshold": 127},
        {"grey": True},
        {"pixel_size": 1, "target_pixel_size": 2},
        {"masks": "masks/{case}.png", "classes": {"cell": 255}},
    ):
        assert fingerprint(**changed) != first, changed
    path = copy / "images" / "a.png"
    with Image.open(path) as image:
        pixels = np.array(image)
    pixels[0, 0] ^= 1
    save(path, pixels)
    assert fingerprint(copy) != first


def test_large_sets_are_told_by_sizes_and_times(folder, monkeypatch):
    monkeypatch.setattr("tfunet.data.layouts.file_source.HASHED_BYTES", 0)
    first = open_folder(root=str(folder), **PAIRS).fingerprint
    assert open_folder(root=str(folder), **PAIRS).fingerprint == first
    stat = (folder / "images" / "a.png").stat()
    os.utime(folder / "images" / "a.png", ns=(stat.st_atime_ns, stat.st_mtime_ns + 1))
    assert open_folder(root=str(folder), **PAIRS).fingerprint != first


def test_opening_decodes_no_image(folder, monkeypatch):
    def refuse(*_):
        raise AssertionError("decoded")

    monkeypatch.setattr("imagecodecs.png_decode", refuse)
    source = open_folder(root=str(folder), **PAIRS)
    with pytest.raises(ValueError, match="decoded"):
        source.read(0)


def test_opening_imports_no_tensorflow(folder):
    code = (
        "import sys; from tfunet.data.layouts.folder import open_folder;"
        "import tfunet.data.generated.phantoms,"
        "tfunet.data.split, tfunet.data.check;"
        f"open_folder(root={str(folder)!r}, images='images/{{case}}.png',"
        "masks='masks/{case}.png').read(0);"
        "sys.exit('tensorflow' in sys.modules or 'keras' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


@pytest.mark.parametrize(
    ("hidden", "shown", "images"),
    [
        (".thumbnails", "images", "**/{case}.png"),
        (".trash/x", "x/x", "**/x/{case}.png"),
        (".old", "images", "{part}/{case}.png"),
        (".old", "images", "*/{case}.png"),
    ],
)
def test_what_is_in_a_hidden_folder_is_no_case(tmp_path, hidden, shown, images):
    for name in ("aa", "bb"):
        for folder in (hidden, shown):
            save(tmp_path / folder / f"{name}.png", grey())
        save(tmp_path / "masks" / f"{name}_mask.png", disc())
    masks = {"cell": "masks/{case}_mask.png"}
    source = open_folder(root=str(tmp_path), images=images, masks=masks)
    assert source.files == (f"{shown}/aa.png", f"{shown}/bb.png")
    # A pattern that names it is the user's own word.
    source = open_folder(root=str(tmp_path), images=f"{hidden}/{{case}}.png", masks=masks)
    assert source.files == (f"{hidden}/aa.png", f"{hidden}/bb.png")


def test_a_mask_of_the_background_is_no_class(folder):
    masks = {"background": "masks/{case}.png", "cell": "masks/{case}.png"}
    with pytest.raises(ValueError, match="names a file for 'background', which needs none"):
        open_folder(root=str(folder), images="images/{case}.png", masks=masks)


def test_an_excluded_image_is_left_out_with_its_other_files(folder):
    for name in "abc":
        save(folder / "infrared" / f"{name}.png", grey())
    patterns = {**PAIRS, "images": ["images/{case}.png", "infrared/{case}.png"]}
    source = open_folder(root=str(folder), **patterns, exclude=["images/[de].png", "images/d.png"])
    assert [defect.file for defect in source.defects] == ["images/e.png"]
    source = open_folder(root=str(folder), **patterns, exclude=["images/d.png", "images/e.png"])
    assert source.defects == ()
    assert source.found == "3 images and 3 masks"
    save(folder / "masks" / "z.png", disc())
    source = open_folder(root=str(folder), **patterns, exclude=["images/d.png", "images/e.png"])
    assert [str(defect) for defect in source.defects] == ["masks/z.png: mask without its image"]
    with pytest.raises(ValueError, match=r"exclude leaves out all 5 images"):
        open_folder(root=str(folder), **patterns, exclude=["images/*.png"])
