"""Outlines and run lengths become the masks that they were drawn around."""

import base64
import io
import json
import tomllib

import numpy as np
import pytest
import roifile
from PIL import Image
from pycocotools import mask as run_lengths

from tfunet.cli import main
from tfunet.data.defects import BadFileError, DefectsError
from tfunet.data.discovery.describe import describe_folder
from tfunet.data.formats.annotations import read
from tfunet.data.formats.coco import _of_polygons, _of_run_lengths
from tfunet.data.formats.drawings import DrawnObject, even_odd
from tfunet.data.opening import guarded
from tfunet.data.source import open_source

SHAPE = (24, 32)
# Left, top, right, bottom of two objects that touch, and of one of another class.
BOXES = (("cell", (2, 3, 10, 9)), ("cell", (10, 3, 20, 9)), ("nucleus", (4, 12, 9, 20)))
NUMBER = {"cell": 1, "nucleus": 2}
LISTED = {"annotations": "annotations/instances.json"}
EACH = {"images": "{case}.png", "annotations": "{case}.json"}


def corners(box):
    left, top, right, bottom = box
    return [[left, top], [right, top], [right, bottom], [left, bottom]]


def inside(box):
    mask = np.zeros(SHAPE, np.uint8)
    left, top, right, bottom = box
    mask[top:bottom, left:right] = 1
    return mask


TRUTH = sum(NUMBER[name] * inside(box) for name, box in BOXES)


def picture(path, seed=0):
    path.parent.mkdir(parents=True, exist_ok=True)
    noise = np.random.default_rng(seed).integers(0, 60, SHAPE)
    Image.fromarray((noise + 90 * TRUTH).astype(np.uint8)).save(path)


def coco(folder, segmentation, names=("1.png", "2.png")):
    images = [
        {"id": 7 + at, "file_name": name, "height": SHAPE[0], "width": SHAPE[1]}
        for at, name in enumerate(names)
    ]
    annotations = [
        {"image_id": image["id"], "category_id": 4 + NUMBER[name], "iscrowd": 0, "id": 10 + at}
        | {"segmentation": segmentation(box)}
        for image in images
        for at, (name, box) in enumerate(BOXES)
    ]
    categories = [{"id": 4 + number, "name": name} for name, number in NUMBER.items()]
    for seed, name in enumerate(names):
        picture(folder / "images" / name, seed)
    content = {"images": images, "annotations": annotations, "categories": categories}
    path = folder / "annotations/instances.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(content))
    return content, path


def as_polygon(box):
    return [np.ravel(corners(box)).tolist()]


def as_compressed(box):
    found = run_lengths.encode(np.asfortranarray(inside(box)))
    return {"size": found["size"], "counts": found["counts"].decode()}


def as_counts(box):
    flat = inside(box).ravel(order="F")
    ends = np.flatnonzero(np.diff(np.concatenate([[0], flat, [1 - flat[-1]]]))).tolist()
    return {"size": list(SHAPE), "counts": np.diff([0, *ends]).tolist()}


def labelme(folder, shape):
    for number in (1, 2):
        picture(folder / f"{number}.png", number)
        shapes = [{"label": name, "group_id": None, **shape(box)} for name, box in BOXES]
        facts = {"imagePath": f"{number}.png", "imageHeight": SHAPE[0], "imageWidth": SHAPE[1]}
        (folder / f"{number}.json").write_text(json.dumps({"shapes": shapes, **facts}))


def drawn_mask(box):
    left, top, right, bottom = box
    file = io.BytesIO()
    Image.fromarray(np.full((bottom - top, right - left), 255, np.uint8)).save(file, "PNG")
    points = [[left, top], [right - 1, bottom - 1]]
    encoded = base64.b64encode(file.getvalue()).decode()
    return {"points": points, "shape_type": "mask", "mask": encoded}


def geojson(folder, wrapped):
    for number in (1, 2):
        picture(folder / "in" / f"{number}.png", number)
        features = [
            {
                "type": "Feature",
                "geometry": {"type": "Polygon", "coordinates": [[*corners(box), corners(box)[0]]]},
                "properties": {"classification": {"name": name}},
            }
            for name, box in BOXES
        ]
        path = folder / "out" / f"{number}.geojson"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(wrapped(features)))


def imagej(folder, pattern):
    for number in (1, 2):
        picture(folder / f"{number}.png", number)
        path = folder / pattern.format(number)
        path.parent.mkdir(exist_ok=True)
        for at, (name, box) in enumerate(BOXES, 1):
            region = roifile.ImagejRoi.frompoints(np.array(corners(box)), name=f"{name}-{at}")
            region.tofile(path)


@pytest.mark.parametrize(
    "write",
    [
        lambda folder: coco(folder, as_polygon),
        lambda folder: coco(folder, as_compressed),
        lambda folder: coco(folder, as_counts),
        lambda folder: labelme(folder, lambda box: {"points": corners(box)}),
        lambda folder: labelme(
            folder, lambda box: {"points": [box[:2], box[2:]], "shape_type": "rectangle"}
        ),
        lambda folder: labelme(folder, drawn_mask),
        lambda folder: geojson(
            folder, lambda all_of: {"type": "FeatureCollection", "features": all_of}
        ),
        lambda folder: geojson(folder, lambda all_of: all_of),
        lambda folder: imagej(folder, "{}.zip"),
        lambda folder: imagej(folder, "{}_RoiSet.zip"),
        lambda folder: imagej(folder, "rois/{}.zip"),
    ],
)
def test_init_finds_outlines_and_they_become_their_masks(write, tmp_path):
    write(tmp_path)
    run = describe_folder(str(tmp_path))
    options = tomllib.loads(run.text([]))["data_options"]
    assert options["classes"] == {"cell": "cell", "nucleus": "nucleus"}
    source = open_source("annotations", options)
    assert len(source.case_ids) == 2
    for index in range(2):
        np.testing.assert_array_equal(source.read(index)[1], TRUTH)
        objects = source.objects(index, SHAPE)
        assert len(np.unique(objects)) == 1 + len(BOXES)
        np.testing.assert_array_equal(objects > 0, TRUTH > 0)


def test_holes_parts_and_groups(tmp_path):
    picture(tmp_path / "1.png")
    ring = [[2, 2], [12, 2], [12, 12], [2, 12]]
    hole = [[4, 4], [8, 4], [8, 8], [4, 8]]
    geometry = {
        "type": "MultiPolygon",
        "coordinates": [[ring, hole], [[[20, 2], [24, 2], [24, 5]]]],
    }
    feature = {"type": "Feature", "geometry": geometry, "properties": {}}
    (tmp_path / "1.geojson").write_text(json.dumps(feature))
    files = {"root": str(tmp_path), "images": "{case}.png", "annotations": "{case}.geojson"}
    source = open_source("annotations", files)
    mask = source.read(0)[1]
    assert list(source.regions) == ["object"]
    assert mask[2:12, 2:12].sum() == 100 - 16
    assert not mask[4:8, 4:8].any()
    assert mask[:, 20:].any()
    assert len(np.unique(source.objects(0, SHAPE))) == 2
    parts = [{"label": "cell", "points": points, "group_id": 3} for points in (ring, hole)]
    (tmp_path / "1.json").write_text(json.dumps({"shapes": parts, "imagePath": "1.png"}))
    source = open_source("annotations", {**files, "annotations": "{case}.json"})
    assert len(np.unique(source.objects(0, SHAPE))) == 2


@pytest.mark.parametrize(
    "box", [(-5, -4, 9, 7), (-5, 3, 9, 7), (20, -4, 40, 18), (-9, -9, 0, 0), (30, 20, 60, 40)]
)
def test_a_mask_beyond_the_border_is_cut_off(box, tmp_path):
    picture(tmp_path / "1.png")
    left, top, right, bottom = box
    drawn = np.random.default_rng(0).random((bottom - top, right - left)) < 0.5
    file = io.BytesIO()
    Image.fromarray(drawn.astype(np.uint8)).save(file, "PNG")
    mask = base64.b64encode(file.getvalue()).decode()
    shape = {"label": "a", "points": [box[:2], box[2:]], "shape_type": "mask", "mask": mask}
    (tmp_path / "1.json").write_text(json.dumps({"shapes": [shape]}))
    options = {"root": str(tmp_path), **EACH}
    wide = np.zeros((100, 100), bool)
    wide[top + 30 : bottom + 30, left + 30 : right + 30] = drawn
    found = open_source("annotations", options).read(0)[1]
    np.testing.assert_array_equal(found, wide[30:54, 30:62])


def test_classes_can_be_merged_and_left_out(tmp_path):
    coco(tmp_path, as_polygon)
    options = {"root": str(tmp_path), **LISTED}
    both = open_source("annotations", {**options, "classes": {"any": ["cell", "nucleus"]}})
    np.testing.assert_array_equal(both.read(0)[1], TRUTH > 0)
    one = open_source("annotations", {**options, "classes": {"kern": "nucleus"}, "border": "edge"})
    np.testing.assert_array_equal(one.read(0)[1] == 1, TRUTH == 2)
    assert "objects of cell are left out" in str(one.warnings[0])
    with pytest.raises(ValueError, match=r"'cel', .*Did you mean 'cell'\? Known: cell, nucleus"):
        open_source("annotations", {**options, "classes": {"any": "cel"}})


def test_a_category_without_a_name_is_the_class_object(tmp_path):
    content, path = coco(tmp_path, as_polygon)
    del content["categories"][0]["name"]
    path.write_text(json.dumps(content))
    options = {"root": str(tmp_path), **LISTED}
    assert set(open_source("annotations", options).regions) == {"nucleus", "object"}


NO_POINTS = "no list of points, nor of x, y, x, y, ... (annotation 10)"


@pytest.mark.parametrize(
    ("table", "key", "value", "words", "code"),
    [
        ("annotations", "image_id", 99, "annotation 10 is of image 99, which images does not", 2),
        ("annotations", "category_id", 99, "annotation 10 has the category 99, which categ", 2),
        ("images", "file_name", "gone.png", "missing image: it lists gone.png", 2),
        *(
            ("images", "file_name", name, f"image 7 has the file_name {name!r}, which names no", 2)
            for name in (None, 5, "")
        ),
        ("images", "height", 30, "has shape (30, 32), and its image images/1.png has (24, 32)", 2),
        *(
            ("annotations", "segmentation", outlines, words, code)
            for outlines, words, code in (
                ([], "an object (cell) has a box at most, and no segmentation (images/1.png)", 2),
                ([[1, 1, 5, 5]], "has an outline of 2 points; a polygon needs 3", 2),
                ([[1, 2, 3, 4, 5]], NO_POINTS, 2),
                ([1, 1, 5, 1, 5, 5], NO_POINTS, 2),
                ([["1", "b"]], NO_POINTS, 2),
                ([{"x": 1}], NO_POINTS, 2),
                ([[1, 1, 5, 1, 9, 1]], "has an outline without any area (annotation 10)", 2),
                ([[100, 1, 120, 1, 120, 9]], "an object (cell) lies outside of the image", 2),
                ([[20, 1, 120, 1, 120, 9]], "1 of its objects reach beyond the image, and are", 0),
            )
        ),
    ],
)
def test_data_check_tells_what_is_wrong_with_annotations(
    table, key, value, words, code, tmp_path, capsys, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    content, path = coco(tmp_path / "d", as_polygon, ("1.png", "2.png", "30.png"))
    assert main(["init", "d"]) == 0
    content[table][0][key] = value
    path.write_text(json.dumps(content))
    capsys.readouterr()
    assert main(["data", "check", "run.toml"]) == code
    assert words in capsys.readouterr().out


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda folder: (folder / "2.png").unlink(), "2.json: annotations without their image"),
        (lambda folder: (folder / "2.json").write_text("{}"), "holds no annotations of COCO"),
        (lambda folder: (folder / "2.json").write_text("{"), "2.json: cannot be read"),
        (
            lambda folder: (folder / "2.json").write_bytes((folder / "1.json").read_bytes()),
            "2.json: says that it is of 1.png, and its name goes with 2.png",
        ),
    ],
)
def test_a_file_for_each_image_may_be_missing_or_wrong(change, words, tmp_path):
    labelme(tmp_path, lambda box: {"points": corners(box)})
    change(tmp_path)
    options = {"root": str(tmp_path), **EACH}
    (defect,) = open_source("annotations", options, skip_bad=True).defects
    assert words in str(defect)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("meta.json", {"a": 1}),
        ("classes.json", ["cell"]),
        ("coco.json", {"images": [], "annotations": []}),
    ],
)
def test_other_json_beside_labelmes_is_told_and_no_defect(name, content, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    labelme(tmp_path / "d", lambda box: {"points": corners(box)})
    (tmp_path / "d" / name).write_text(json.dumps(content))
    assert main(["init", "d"]) == 0
    assert main(["data", "check", "run.toml"]) == 0
    options = {"root": "d", "images": "{case}.png", "annotations": "{case}.json"}
    (warning,) = open_source("annotations", options).warnings
    assert str(warning).startswith(f"{name}: is not used: no image has its name")


POINTS_IN_SPACE = [[1, 1, 0], [9, 1, 0], [9, 9, 0], [1, 9, 0]]


def with_ring(folder, ring):
    geojson(folder, lambda features: features)
    path = folder / "out/1.geojson"
    features = json.loads(path.read_text())
    features[0]["geometry"]["coordinates"] = [ring]
    path.write_text(json.dumps(features))
    return {"images": "in/{case}.png", "annotations": "out/{case}.geojson"}


def with_points(folder, points):
    labelme(folder, lambda box: {"points": points if box == BOXES[1][1] else corners(box)})
    return EACH


@pytest.mark.parametrize(
    ("write", "points"),
    [(with_points, each) for each in (POINTS_IN_SPACE, [["a", "b"]], 5, None, [1, 2, 3])]
    + [(with_ring, each) for each in (5, [5, 5], [["a", "b"]])],
)
def test_points_that_are_none_are_a_fault_of_their_object(write, points, tmp_path):
    files = write(tmp_path, points)
    with pytest.raises(ValueError, match=r"an object \(cell\) has an outline that is no list of"):
        open_source("annotations", {"root": str(tmp_path), **files})


def test_an_image_that_nobody_annotated_is_left_out_with_a_warning(tmp_path):
    labelme(tmp_path, lambda box: {"points": corners(box)})
    (tmp_path / "2.json").unlink()
    options = {"root": str(tmp_path), **EACH}
    source = open_source("annotations", options)
    assert source.case_ids == ("1",)
    (warning,) = source.warnings
    assert str(warning) == "2.png: is not used: it has no annotations in 2.json"
    (tmp_path / "1.json").unlink()
    with pytest.raises(ValueError, match=r"1.png: is not used: it has no annotations in 1\.json"):
        open_source("annotations", options)


def test_an_image_that_no_list_names_is_told(tmp_path):
    coco(tmp_path, as_polygon)
    picture(tmp_path / "images/3.png")
    options = {"root": str(tmp_path), **LISTED}
    source = open_source("annotations", options)
    assert len(source.case_ids) == 2
    (warning,) = source.warnings
    assert str(warning) == "images/3.png: is not used: no file of annotations lists it"


@pytest.mark.parametrize(
    ("listed", "file"),
    [
        ("1.png", "images/1.png"),
        ("./1.png", "images/1.png"),
        ("../images/1.png", "images/1.png"),
        ("C:\\mine\\images\\1.png", "images/1.png"),
        ("dog/1.png", None),
        ("images/dog/1.png", None),
        ("dog/0.png", "0.png"),  # It is in no folder that could differ.
    ],
)
def test_a_listed_folder_is_that_of_the_image(listed, file, tmp_path):
    content, path = coco(tmp_path, as_polygon, ("1.png", "2.png"))
    picture(tmp_path / "0.png")
    content["images"][0]["file_name"] = listed
    path.write_text(json.dumps(content))
    options = {"root": str(tmp_path), **LISTED}
    source = open_source("annotations", options, skip_bad=True)
    assert source.files == tuple(filter(None, [file, "images/2.png"]))
    assert [str(defect).partition("and no ")[2] for defect in source.defects] == (
        [] if file else ["dog/1.png is in the folder"]
    )


def test_sides_of_several_lists_are_groups(tmp_path):
    for side in ("train", "valid", "test"):
        coco(tmp_path / side, as_polygon, ("1.png", "2.png"))
    run = describe_folder(str(tmp_path))
    assert run.options["annotations"][0] == "{group}/annotations/instances.json"
    assert run.keys["validation_groups"][0] == ["valid"]
    assert run.options["exclude"][0] == ["test/annotations/instances.json"]
    assert sorted(run.source.groups) == ["train", "train", "valid", "valid"]
    assert not run.source.warnings
    for case, group in zip(run.source.files, run.source.groups, strict=True):
        assert case.startswith(f"{group}/images/")


@pytest.mark.parametrize(
    ("file", "text", "words"),
    [
        ("annotations.xml", "<annotations><image name='1.png'/></annotations>", "CVAT's XML"),
        ("1.xml", "<annotation><object><bndbox/></object></annotation>", "boxes of Pascal VOC"),
        ("1.xml", "<ASAP_Annotations/>", "QuPath"),
        ("labels/1.txt", "0 0.1 0.1 0.2 0.1 0.2 0.2\n", "outlines of YOLO"),
        ("labels/1.txt", "0 0.5 0.5 0.2 0.1\n", "boxes of YOLO"),
        ("train.csv", "ImageId,EncodedPixels\n1.png,1 5\n", "run lengths in a table"),
        ("1.csv", "index,shape-type,vertex-index,axis-0\n", "shapes of napari"),
        ("via.json", '{"_via_img_metadata": {}}', "export COCO's JSON from VIA"),
        ("ls.json", '[{"id": 1, "annotations": [{"result": [{"from_name": 1}]}]}]', "Label Studio"),
        ("1.json", '{"objects": [{"classTitle": "a"}]}', "Supervisely"),
        ("1_seg.npy", "", "Save masks as PNG"),
    ],
)
def test_other_annotations_are_named_with_how_to_export(file, text, words, tmp_path):
    for number in (1, 2):
        picture(tmp_path / "images" / f"{number}.png", number)
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text(text)
    with pytest.raises(ValueError, match="which tfunet does not draw") as error:
        describe_folder(str(tmp_path))
    assert words in str(error.value)
    assert str(error.value).startswith(f"{file} (1 such file)")


def test_masks_are_preferred_to_outlines(tmp_path):
    labelme(tmp_path, lambda box: {"points": corners(box)})
    for number in (1, 2):
        Image.fromarray(inside(BOXES[0][1])).save(tmp_path / f"{number}_mask.png")
    assert describe_folder(str(tmp_path)).keys["data"][0] == "folder"


def test_a_file_of_many_images_is_parsed_once(tmp_path, monkeypatch):
    coco(tmp_path, as_polygon, tuple(f"{number}.png" for number in range(1, 30)))
    parsed = []
    loads = json.loads
    monkeypatch.setattr(json, "loads", lambda text: parsed.append(text) or loads(text))
    options = {"root": str(tmp_path), **LISTED}
    source = open_source("annotations", options)
    for index in range(len(source.case_ids)):
        source.read(index)
    assert len(source.case_ids) == 29
    assert sum("categories" in text for text in parsed) == 1


@pytest.mark.parametrize("seed", range(5))
def test_packed_run_lengths_are_those_of_cocos_library(seed):
    dice = np.random.default_rng(seed)
    # Few long runs, or many short ones.
    pixels = dice.random((7, 400)) < dice.choice([0.001, 0.1, 0.5])
    packed = run_lengths.encode(np.asfortranarray(pixels.astype(np.uint8)))
    content = {"size": list(pixels.shape), "counts": packed["counts"].decode()}
    found = np.zeros(pixels.shape, bool)
    place, inside = _of_run_lengths(content, pixels.shape)
    found[place] = inside
    np.testing.assert_array_equal(found, pixels)


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("fill", [even_odd, _of_polygons])
def test_an_outline_is_drawn_as_on_the_whole_image(fill, seed):
    dice = np.random.default_rng(seed)
    centre, reach = dice.integers(-10, 50, 2), dice.choice([3, 20])
    outlines = [
        centre + dice.integers(-4 * reach, 4 * reach, (dice.integers(3, 9), 2)) / 4
        for _ in range(dice.integers(1, 4))
    ]
    found = np.zeros(SHAPE, bool)
    place, inside = DrawnObject(name="a", outlines=outlines, fill=fill).inside(SHAPE)
    found[place] = inside
    np.testing.assert_array_equal(found, fill(outlines, SHAPE))


@pytest.mark.parametrize(
    "segmentation",
    [
        [[5, 5, 9, 5, 9, 9]],
        {"size": [4000, 4000], "counts": [8000, 9, 3990, 9, 4000**2 - 12008]},
    ],
)
def test_small_objects_of_a_large_image_are_drawn_in_their_own_window(segmentation, tmp_path):
    content, path = coco(tmp_path, lambda _: segmentation, ("1.png",))
    content["images"][0].update(height=4000, width=4000)
    content["annotations"] *= 100
    path.write_text(json.dumps(content))
    (drawn,) = read(path).images.values()
    assert len(np.unique(drawn.numbered("cell", (4000, 4000))[:20, :20])) > 1
    assert len(drawn.drawings) >= 100
    windows = [drawing.inside((4000, 4000))[1] for drawing in drawn.drawings]
    assert max(window.size for window in windows) < 10_000


@pytest.mark.parametrize(
    "segmentation",
    [
        {"size": [24, 32], "counts": [1, 3]},
        {"size": [24, 32], "counts": [1, 10**9]},
        {"size": [24, 32], "counts": [-5, 24 * 32 + 5]},
        {"size": [10**6, 10**6], "counts": [1, 3]},
        {"size": [24, 32], "counts": "zzzz"},
        {"size": [24, 32], "counts": "o" * 1000},
        {"size": [24, 32], "counts": [2**62] * 4 + [24 * 32]},
        {"counts": [1, 3]},
        [[1e300, 1, 5, 1, 5, 5]],
        [[float("nan"), 1, 5, 1, 5, 5]],
        [[1, 2, 3, 4, 5]],
    ],
)
def test_hostile_outlines_are_refused(segmentation, tmp_path):
    coco(tmp_path, lambda box: segmentation)
    options = {"root": str(tmp_path), **LISTED}
    with pytest.raises((BadFileError, DefectsError), match=r"instances\.json"):
        open_source("annotations", options).read(0)


@pytest.mark.parametrize("end", ["", "0"])
def test_a_run_of_endless_digits_is_refused_at_once(end):
    content = {"size": list(SHAPE), "counts": "o" * 10**6 + end}
    with pytest.raises(ValueError, match="a run length of more than 60 bits"):
        _of_run_lengths(content, SHAPE)


def test_a_missing_package_names_the_extra(tmp_path, monkeypatch):
    coco(tmp_path, as_polygon)

    def missing(path):
        raise ModuleNotFoundError("No module", name="pycocotools")

    with pytest.raises(ValueError, match=r"needs pycocotools: pip install 'tfunet\[annotations\]'"):
        guarded(tmp_path / "annotations/instances.json", missing)
