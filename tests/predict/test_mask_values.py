"""`--values masks`: predictions that are masks of the data set that the run was trained on."""

import json
import shutil

import numpy as np
import pytest
import tifffile
from PIL import Image

from tfunet.cli import main
from tfunet.data.image_files import read_image, read_mask
from tfunet.data.layouts.label_mapping import label_mapping
from tfunet.data.source import open_source
from tfunet.prediction.mask_values import MaskValues, mask_values
from tfunet.prediction.options import Options
from tfunet.prediction.output import SUFFIXES, write
from tfunet.prediction.raster import RawFile, raster_of
from tfunet.prediction.run import predict
from tfunet.record import RunFolder

# What `classes` says, the values that labels 0, 1 and 2 get, and the type of their pixels.
VALUES = [
    ({"a": 1, "b": 255}, (0, 1, 255), "uint8"),
    ({"a": [300, 4], "b": 2}, (0, 300, 2), "uint16"),
    ({"a": -1, "b": 7, "background": [9, 8]}, (9, -1, 7), "int16"),
    ({"a": 70000, "b": 1}, (0, 70000, 1), "int32"),
    ({"a": 5_000_000_000, "b": 1}, (0, 5_000_000_000, 1), "int64"),
    # Where no pixel is background, it gets a value that no class has.
    ({"a": 3, "b": 1, "background": []}, (0, 3, 1), "uint8"),
    ({"a": 0, "b": 1, "background": []}, (255, 0, 1), "uint8"),
    ({"a": [0, 2], "b": [255, 1], "background": []}, (3, 0, 255), "uint8"),
    ({"a": "#ff8000", "b": "#0000FF"}, (0, 0xFF8000, 0x0000FF), "uint8"),
    ({"a": "#000000", "b": "#0000ff", "background": []}, (0xFFFFFF, 0, 0x0000FF), "uint8"),
]


@pytest.mark.parametrize(("classes", "values", "dtype"), VALUES)
def test_each_label_has_its_first_value_in_the_smallest_type(classes, values, dtype):
    known = label_mapping("m", classes, None).values_of_labels()
    found = mask_values(known)
    assert (found.values, found.dtype) == (values, dtype)


@pytest.mark.parametrize(("masks", "threshold"), [("{case}.png", None), ({"a": "{case}.png"}, 127)])
def test_a_description_without_values_has_none(masks, threshold):
    known = label_mapping(masks, None, threshold).values_of_labels()
    with pytest.raises(ValueError, match=r"does not say which values.*\{ NAME = 255 \}"):
        mask_values(known)


@pytest.mark.parametrize("kind", ["tiff", "nifti", "zarr"])
@pytest.mark.parametrize("values", [(0, 1, 4), (7, -3, 70000)])
def test_a_volume_holds_the_values_in_every_format(values, kind, tmp_path):
    labels = np.random.default_rng(0).integers(0, 3, (5, 30, 20)).astype(np.uint8)
    raw = RawFile(path=tmp_path / "labels.raw", shape=labels.shape, dtype="uint8")
    raw.append(labels)
    written, path = MaskValues(values=values, are_colours=False), tmp_path / f"a{SUFFIXES[kind]}"
    raster = written.raster(raster_of(raw, labels.shape, None))
    write(kind, raster, path, image=tmp_path / "a.png", spacing=None)
    stored = read_mask(path)
    np.testing.assert_array_equal(stored, np.array(values)[labels])
    assert stored.dtype == written.dtype
    np.testing.assert_array_equal(written.read(path, labels.shape), labels)


@pytest.fixture
def trained_on(local_run, tmp_path):
    """A function that gives the run with other masks in its record."""

    def run_of(values):
        run = tmp_path / "run"
        shutil.copytree(local_run, run)
        data = RunFolder(run).read_data()
        RunFolder(run).write_data({**data, "mask_values": values})
        return run

    return run_of


def scene(folder, path):
    """The image that no run was trained on, in another format."""
    image = read_image(folder / "scene.tif")
    if path.suffix == ".png":
        Image.fromarray((image / 256).astype(np.uint8)).save(path)
    else:
        shutil.copy(folder / "scene.tif", path)
    return path


@pytest.mark.parametrize(
    ("name", "classes", "written"),
    [
        ("scene.png", {"a": 255}, "uint8"),
        ("scene.png", {"a": 1000, "background": 7}, "uint16"),
        ("scene.png", {"a": "#ff8000"}, "rgb"),
        ("scene.tif", {"a": "#ff8000", "background": "#ffffff"}, "rgb"),
        ("scene.tif", {"a": -3}, "int16"),
        ("scene.tif", {"a": 70000}, "int32"),
    ],
)
def test_a_prediction_is_a_mask_of_the_data_set(
    name, classes, written, trained_on, folder, tmp_path
):
    run = trained_on(label_mapping("m", classes, None).values_of_labels())
    image = scene(folder, tmp_path / name)
    (labels,) = predict(run, [str(image)], tmp_path / "labels", Options(overlay=False))
    options = Options(overlay=False, values="masks")
    (mask,) = predict(run, [str(image)], tmp_path / "masks", options)
    stored = np.asarray(Image.open(mask)) if mask.suffix == ".png" else tifffile.imread(mask)
    assert (
        (stored.shape[2:], stored.dtype) == ((3,), np.uint8)
        if written == "rgb"
        else (
            (),
            np.dtype(written),
        )
    )
    data = {
        "root": str(tmp_path),
        "images": name.replace("scene", "{case}"),
        "masks": f"masks/{{case}}{mask.suffix}",
        "classes": classes,
    }
    source = open_source("folder", data)
    _, read = source.read_case(0)
    expected = tifffile.imread(labels) if labels.suffix == ".tif" else Image.open(labels)
    np.testing.assert_array_equal(read, expected)
    assert set(np.unique(read)) == {0, 1}
    facts = json.loads((tmp_path / "masks/scene.json").read_text())
    assert facts["values"] == mask_values(source.mask_values).shown
    # Nothing is predicted again, and labels are no prediction with these options.
    assert predict(run, [str(image)], tmp_path / "masks", options) == [mask]
    if written != "rgb" or name == "scene.png":
        with pytest.raises(ValueError, match="is there already"):
            predict(run, [str(image)], tmp_path / "masks", Options(overlay=False))


@pytest.mark.parametrize(
    ("values", "kind", "message"),
    [
        ([["#000000"], ["#ff0000"]], "tiff", "are colours, which are written as PNG"),
        ([[0], [70000]], "png", "a PNG holds the values 0 to 65535.*0 to 70000"),
        ([[-1], [1]], "png", "are -1 to 1. Choose --format tiff"),
        ([], None, "does not say which values"),
    ],
)
def test_what_cannot_be_written_is_refused_before(
    values, kind, message, trained_on, folder, tmp_path
):
    run, options = trained_on(values), Options(values="masks", format=kind, overlay=False)
    with pytest.raises(ValueError, match=message):
        predict(run, [str(folder / "scene.tif")], tmp_path / "out", options)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("other", [400, 2000])
def test_a_file_of_other_values_is_no_prediction(other, tmp_path):
    written = np.array([[0, 1000], [500, other]], np.uint16)
    tifffile.imwrite(tmp_path / "a.tif", written)
    with pytest.raises(ValueError, match=f"holds {other}, which is no value of the masks"):
        mask_values([[0], [1000], [500]]).read(tmp_path / "a.tif", (2, 2))
    written[1, 1] = 0
    tifffile.imwrite(tmp_path / "a.tif", written)
    labels = mask_values([[0], [1000], [500]]).read(tmp_path / "a.tif", (2, 2))
    np.testing.assert_array_equal(labels, [[0, 1], [2, 0]])


@pytest.mark.parametrize("values", [[[0], [255]], [["#00ff00"], ["#ff0000"]]])
def test_scores_are_those_of_the_labels(values, trained_on, folder, tmp_path):
    run = trained_on(values)
    scores = []
    for way in ("labels", "masks"):
        out = tmp_path / way
        command = ["evaluate", str(run), str(folder), "--training_cases", "--no-overlay"]
        assert main([*command, "--values", way, "--out", str(out)]) == 0
        scores.append((out / "scores.csv").read_text())
    assert scores[0] == scores[1]
