"""A mask file for each object: merged into one mask, with or without a class between them."""

import numpy as np
import pytest
from init_folders import grey, save
from PIL import Image

from tfunet.data import lazy_image
from tfunet.data.check import check
from tfunet.data.defects import DefectsError
from tfunet.data.layouts import file_reader
from tfunet.data.layouts.folder import open_folder


def box(top, left, height=4, width=4, shape=(24, 32)):
    mask = np.zeros(shape, np.uint8)
    mask[top : top + height, left : left + width] = 255
    return mask


# Case to its objects: the second and third of "b" touch.
OBJECTS = {
    "a": [box(2, 2)],
    "b": [box(1, 20), box(10, 4), box(10, 8)],
    "a_c": [box(15, 20), box(4, 4)],
}


@pytest.fixture
def folder(tmp_path):
    for case, objects in OBJECTS.items():
        save(tmp_path / case / "images" / f"{case}.png", grey(24, 32))
        for number, mask in enumerate(objects):
            save(tmp_path / case / "masks" / f"{7 * number:x}f.png", mask)
    return tmp_path


def opened(root, **options):
    nested = {"images": "{case}/images/{case}.png", "masks": {"nucleus": "{case}/masks/*.png"}}
    return open_folder(root=str(root), **{**nested, "objects": "files", **options})


def read(source, case):
    return source.read(source.case_ids.index(case))[1]


def test_objects_are_merged(folder):
    source = opened(folder)
    assert (source.case_ids, source.regions) == (("a", "a_c", "b"), {"nucleus": (1,)})
    for case, objects in OBJECTS.items():
        assert np.array_equal(read(source, case), np.max(objects, 0) // 255)
    report = check(source)
    assert (report.defects, report.warnings) == ((), ())


def test_files_of_one_folder_belong_to_the_case_with_the_longest_name(tmp_path):
    for case, objects in OBJECTS.items():
        save(tmp_path / "images" / f"{case}.png", grey(24, 32))
        for number, mask in enumerate(objects):
            save(tmp_path / "masks" / f"{case}_{number}.png", mask)
    source = opened(tmp_path, images="images/{case}.png", masks="masks/{case}_*.png")
    assert source.defects == ()
    for case, objects in OBJECTS.items():
        assert np.array_equal(read(source, case), np.max(objects, 0) // 255)


def test_where_objects_meet_is_a_class(folder):
    source = opened(folder, border="border")
    assert source.regions == {"nucleus": (1,), "border": (2,)}
    expected = np.max(OBJECTS["b"], 0) // 255
    expected[9:15, 7:9] = 2
    assert np.array_equal(read(source, "b"), expected)
    assert 2 not in read(source, "a_c")


def test_numbered_objects_have_borders_too(folder):
    for case, objects in OBJECTS.items():
        numbered = np.max([(mask > 0) * (3 * at + 5) for at, mask in enumerate(objects)], 0)
        save(folder / "numbered" / f"{case}.png", numbered.astype(np.uint8))
    given = {"masks": {"nucleus": "numbered/{case}.png"}, "objects": "numbers"}
    numbered, apart = opened(folder, border="edge", **given), opened(folder, border="edge")
    for case in OBJECTS:
        assert np.array_equal(read(numbered, case), read(apart, case))


def test_equal_numbers_in_masks_of_two_classes_are_two_objects(tmp_path):
    save(tmp_path / "i.png", grey(24, 32))
    for name, left in {"a": 4, "b": 8}.items():
        save(tmp_path / f"i_{name}.png", box(10, left) // 255)
    masks = {name: f"{{case}}_{name}.png" for name in "ab"}
    given = {"masks": masks, "objects": "numbers", "border": "edge"}
    source = opened(tmp_path, images="{case}.png", **given)
    assert np.unique(np.nonzero(read(source, "i") == 3)[1]).tolist() == [7, 8]


def test_borders_of_volumes_and_of_gaps_of_a_pixel(tmp_path):
    first, second, third = (np.zeros((6, 8, 9), np.uint8) for _ in range(3))
    first[1:3, 2:5, 2:5] = second[4:6, 2:5, 2:5] = third[1:3, 2:5, 7:] = 1
    save(tmp_path / "v.nii.gz", grey(6, 8, 9))
    for name, mask in {"1": first, "2": second, "3": third}.items():
        save(tmp_path / f"v/{name}.nii.gz", mask)
    source = opened(tmp_path, images="{case}.nii.gz", masks="{case}/*.nii.gz", border="gap")
    expected = first + second + third
    expected[3, 1:6, 1:6] = 2  # A plane between the first and the second, two to the third.
    assert np.array_equal(read(source, "v"), expected)


def test_what_is_wrong_with_objects_is_said(folder):
    for name in "defg":
        save(folder / name / "images" / f"{name}.png", grey(24, 32))
    save(folder / "d/masks/1.png", box(1, 1))
    save(folder / "d/masks/2.png", box(1, 1, shape=(24, 31)))
    (folder / "e/masks").mkdir()
    save(folder / "f/masks/1.png", box(1, 1) // 255 * np.uint8(3) + box(9, 9))
    save(folder / "g/masks/1.png", box(1, 1))
    save(folder / "g/masks/2.png", box(2, 2))
    save(folder / "g/masks/3.png", box(3, 1))
    save(folder / "h/masks/1.png", box(1, 1))
    report = check(opened(folder))
    said = {defect.file: defect.what for defect in report.defects}
    assert said.keys() == {
        "d/masks/2.png",
        "e/images/e.png",
        "f/masks/1.png",
        "h/masks/1.png",
    }
    assert "has shape (24, 31)" in said["d/masks/2.png"]
    assert said["e/images/e.png"] == (
        "missing mask: no file e/masks/*.png. If the image shows no object, store one mask of zeros"
    )
    assert "holds the values 0, 3, 255" in said["f/masks/1.png"]
    assert said["h/masks/1.png"] == "mask without its image"
    (warning,) = report.warnings
    assert (warning.file, warning.case_id) == ("g/masks/2.png", "g")
    # 3 x 3 with the first; 2 x 3 and 3 x 3 less 2 x 2 that both have, with the others.
    shared = sum(map(bool, (box(1, 1) & box(2, 2)).flat)) + sum(
        map(bool, ((box(1, 1) | box(2, 2)) & box(3, 1)).flat)
    )
    assert f"overlaps other objects of its image, in {shared} pixels" in warning.what


def test_every_file_of_an_object_is_in_the_fingerprint(folder):
    first = opened(folder).fingerprint
    assert opened(folder).fingerprint == first
    assert opened(folder, border="border").fingerprint != first
    path = folder / "b/masks/7f.png"
    kept = path.read_bytes()
    Image.fromarray(box(11, 4)).save(path)
    assert opened(folder).fingerprint != first
    path.write_bytes(kept)
    assert opened(folder).fingerprint == first
    save(folder / "b/masks/new.png", box(18, 4))
    more = opened(folder).fingerprint
    path.unlink()
    assert len({first, more, opened(folder).fingerprint}) == 3


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"masks": "{case}/masks/*.png", "classes": {"a": 1}}, "Leave classes out"),
        ({"border": "nucleus"}, "is a class of masks=, too"),
        ({"border": "x", "objects": None}, "must tell objects apart"),
        ({"objects": "numbers", "threshold": 5}, "Leave threshold out"),
        (
            {"objects": "numbers", "masks": {"a": "a", "b": "b"}, "threshold": {"a": 5}},
            "Leave threshold out",
        ),
        ({"border": " "}, "hidden characters"),
    ],
)
def test_options_that_do_not_fit_are_refused(folder, options, words):
    with pytest.raises(ValueError, match=words):
        opened(folder, **options)


def test_without_the_option_several_files_are_a_defect_that_names_it(folder):
    with pytest.raises(DefectsError) as error:
        opened(folder, objects=None, exclude=["a/images/*.png"])
    assert "2 files match a_c/masks/*.png" in str(error.value)
    assert 'objects = "files"' in str(error.value)


def test_a_large_image_is_read_in_parts_unless_it_has_borders(folder, monkeypatch):
    whole = opened(folder)
    monkeypatch.setattr(file_reader, "LARGE_BYTES", 0)
    monkeypatch.setattr(lazy_image, "PART_BYTES", 24 * 32)
    for case in ("b", "a_c"):
        tif = folder / "tif" / case
        for number, mask in enumerate(OBJECTS[case]):
            save(tif / "masks" / f"{number}.tif", mask)
        save(tif / "images" / f"{case}.tif", grey(24, 32))
    given = {"images": "tif/{case}/images/{case}.tif", "masks": "tif/{case}/masks/*.tif"}
    large = opened(folder, **given)
    for at, case in enumerate(large.case_ids):
        masks = [mask for _, mask in large.stored(at).parts]
        assert len(masks) > 1
        assert np.array_equal(np.concatenate(masks), read(whole, case))
    assert len(list(opened(folder, **given, border="border").stored(0).parts)) == 1


def test_the_class_of_a_file_is_in_the_fingerprint(tmp_path):
    for case, kind in (("p", "cell"), ("q", "myelin")):
        save(tmp_path / case / "image.png", grey(24, 32))
        save(tmp_path / case / f"{kind}_1.png", box(2, 2))
    kinds = {kind: f"{{case}}/{kind}_*.png" for kind in ("cell", "myelin")}
    given = {"images": "{case}/image.png"}
    turned = dict(zip(kinds, reversed(kinds.values()), strict=True))
    right, wrong = (opened(tmp_path, masks=masks, **given) for masks in (kinds, turned))
    assert (read(right, "p") != read(wrong, "p")).any()
    assert right.fingerprint != wrong.fingerprint
