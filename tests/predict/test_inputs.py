"""Files, folders and patterns of images."""

from unicodedata import normalize

import pytest

from tfunet.prediction.inputs import find_images, find_named_images
from tfunet.prediction.jobs import plan_jobs


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in (
        *("a.png", "b.png", ".hidden.png", "notes.txt", "sub/c.png"),
        *("t/p1_0000.nii.gz", "t/p1_0001.nii.gz", "t/p2_0000.nii.gz", "t/p2_0001.nii.gz"),
        *("series/1.dcm", "series/2.dcm", "store.zarr/zarr.json", "x[1].png"),
        *(".cache/c.png", "1,2/c,d.png"),
    ):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.touch()
    return tmp_path


@pytest.mark.parametrize(
    ("given", "num_files", "found"),
    [
        (["a.png"], 1, ["a.png"]),
        (["."], 1, ["a.png", "b.png", "store.zarr", "x[1].png"]),
        (["*.png"], 1, ["a.png", "b.png", "x[1].png"]),
        (["?.png", "sub"], 1, ["a.png", "b.png", "sub/c.png"]),
        (["*/{case}.png"], 1, ["1,2/c,d.png", "sub/c.png"]),  # Not those of hidden folders.
        (["1,2/c,d.png", "1,2"], 1, ["1,2/c,d.png", "1,2/c,d.png"]),
        (["x[1].png"], 1, ["x[1].png"]),
        # One image each: slices of a volume, and a store.
        (["series", "store.zarr"], 1, ["series", "store.zarr"]),
        (
            ["t/{case}_0000.nii.gz,t/{case}_0001.nii.gz"],
            2,
            ["t/p1_0000.nii.gz,t/p1_0001.nii.gz", "t/p2_0000.nii.gz,t/p2_0001.nii.gz"],
        ),
        (["missing.png"], 1, ["missing.png"]),  # Whoever opens it says so.
    ],
)
def test_what_is_predicted(given, num_files, found, folder):
    assert find_images(given, num_files) == found


def test_absolute_patterns(folder):
    assert find_images([f"{folder}/sub/*.png"]) == [f"{folder}/sub/c.png"]
    assert find_images([str(folder / "sub")]) == [str(folder / "sub/c.png")]


@pytest.mark.parametrize(
    ("given", "num_files", "message"),
    [
        ("*.tif", 1, r"No file matches '\*.tif'. The folder '\.' holds "),
        ("empty/*.tif", 1, r"No file matches 'empty/\*.tif'. The folder 'empty' holds nothing"),
        ("new/*/*.tif", 1, r"No file matches 'new/\*/\*.tif'. There is no folder 'new'"),
        ("t", 2, "made of 2 files"),
        ("empty", 1, "a folder without images"),
        ("t/{case}_0000.nii.gz,t/{case}_0002.nii.gz", 2, "No file matches"),
    ],
)
def test_nothing_to_predict_is_an_error(given, num_files, message, folder):
    (folder / "empty").mkdir()
    with pytest.raises(ValueError, match=message):
        find_images([given], num_files)


def test_a_file_without_the_others_of_its_image_is_named(folder):
    (folder / "t/p2_0001.nii.gz").unlink()
    with pytest.raises(ValueError, match=r"p2_0000\.nii\.gz has no file"):
        find_images(["t/{case}_0000.nii.gz,t/{case}_0001.nii.gz"], 2)


def test_a_comma_in_a_name_joins_nothing(folder):
    (job,) = plan_jobs(["1,2/c,d.png"], folder / "out", None, probabilities=False)
    assert list(map(str, job.files)) == ["1,2/c,d.png"]
    assert job.labels.name == "c,d.png"
    (job,) = plan_jobs(["a.png,b.png"], folder / "out", None, probabilities=False)
    assert list(map(str, job.files)) == ["a.png", "b.png"]


@pytest.mark.parametrize(
    ("given", "names"),
    [
        (["p/{case}/flair.nii,p/{case}/t1c.nii"], ["a", "b"]),
        (["p/{group}/{name}.nii"], ["a_flair", "a_t1c", "b_flair", "b_t1c"]),
        (["{top}/{case}/fl*.nii"], ["p_a", "p_b"]),
        # All files have one name: that of their folders, as far as they differ.
        (["p/*/flair.nii,p/*/t1c.nii"], ["a", "b"]),
        (["p/a/flair.nii,p/a/t1c.nii", "p/b/flair.nii,p/b/t1c.nii"], ["a", "b"]),
        (["p/a/flair.nii", "p/b/../b/flair.nii"], ["a", "b"]),
        (["p/a/flair.nii"], ["flair"]),
        (["p/a"], ["flair", "t1c"]),
        (["*.png"], ["a", "b", "x[1]"]),
    ],
)
def test_how_predictions_are_called(given, names, folder):
    for name in ("a/flair", "a/t1c", "b/flair", "b/t1c"):
        (folder / f"p/{name}.nii").parent.mkdir(exist_ok=True, parents=True)
        (folder / f"p/{name}.nii").touch()
    found = find_named_images(given, len(given[0].split(",")))
    assert [name for _, name in found] == names
    images = [image for image, _ in found]
    jobs = plan_jobs(images, folder / "out", None, probabilities=False, names=names)
    assert [job.facts.name for job in jobs] == [f"{name}.json" for name in names]


def test_one_name_for_some_images_is_an_error_that_says_how_to_name_them(folder):
    (folder / "other").mkdir()
    for name in ("other/c.png", "other/d.png"):
        (folder / name).touch()
    found = find_named_images(["sub", "other"])
    images, names = zip(*found, strict=True)
    with pytest.raises(ValueError, match=r"called c\.json.*'test/\{group\}/\{case\}\.png'"):
        plan_jobs(images, folder / "out", None, probabilities=False, names=names)


def test_the_files_of_an_image_may_have_names_in_two_unicode_forms(tmp_path):
    for name in ("Zürich", "naïve", "plain"):
        (tmp_path / normalize("NFC", f"größe {name}_0.png")).touch()
        (tmp_path / normalize("NFD", f"größe {name}_1.png")).touch()
    for form in ("NFC", "NFD"):
        given = [
            f"{tmp_path}/{normalize(form, f'größe {{case}}_{channel}.png')}" for channel in "01"
        ]
        found = find_named_images([",".join(given)], 2)
        assert [name for _, name in found] == ["Zürich", "naïve", "plain"]
