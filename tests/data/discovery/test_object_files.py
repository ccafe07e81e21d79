"""`tfunet init` on images with a mask file for each object."""

import re
import time
import tomllib

import numpy as np
import pytest
from init_folders import RNG, begun, grey, save, square
from paths import ROOT

from tfunet.data.check import check
from tfunet.data.discovery.describe import describe_folder
from tfunet.data.discovery.pairs import find_pairs, list_files
from tfunet.data.source import open_source

# Image to the number of its objects.
OBJECTS = {"0ab1": 3, "7f20": 5, "c3d4": 1, "e5f6": 2}
NESTED = "{case}/images/{case}.png", "{case}/masks/*.png"


def objects(number, gap=1):
    """Return masks of squares of 5 pixels in two rows."""
    masks = []
    for at in range(number):
        mask = np.zeros((32, 48), np.uint8)
        top, left = 2 + 14 * (at % 2), 2 + (5 + gap) * (at // 2)
        mask[top : top + 5, left : left + 5] = 255
        masks.append(mask)
    return masks


def fill(folder, image, mask, *, case=str, gap=4, used=OBJECTS):
    """Save images and masks; the mask's name may have a {hash} or a {number}."""
    for name, number in used.items():
        save(folder / image.format(case=case(name)), grey())
        for at, pixels in enumerate(objects(number, gap)):
            digest = f"{RNG.integers(1 << 32):08x}"
            save(folder / mask.format(case=case(name), hash=digest, number=at), pixels)


@pytest.mark.parametrize(
    ("image", "mask"),
    [
        ("{case}/images/{case}.png", "{case}/masks/{hash}.png"),
        ("images/{case}.png", "masks/{case}/{number}.png"),
        ("images/x_{case}.png", "masks/x_{case}_{number}.png"),
        ("{case}/image.png", "{case}/mask_{number}.png"),
        ("pic {case}.png", "pic {case} mask {number}.png"),
        ("{case}/images/{case}.PNG", "{case}/masks/{hash}.PNG"),
        # No word says that they are masks, and their values do.
        ("seen/{case}.png", "things/{case}/{hash}.png"),
    ],
)
def test_a_mask_file_for_each_object_is_found(tmp_path, image, mask):
    fill(tmp_path, image, mask)
    for hidden in ("masks/._x.png", "._0.png", "Thumbs.db"):
        (tmp_path / hidden).parent.mkdir(exist_ok=True)
        (tmp_path / hidden).write_bytes(b"\0\5")
    options = begun(tmp_path)["data_options"]
    assert options["images"] == image
    assert options["masks"] == {"foreground": re.sub("{hash}|{number}", "*", mask)}
    assert options["objects"] == "files"
    source = open_source("folder", options)
    assert len(source.case_ids) == 4
    assert [np.count_nonzero(source.read(at)[1]) for at in range(4)] == [75, 125, 25, 50]


def test_channels_of_images_with_objects_are_found(tmp_path):
    fill(tmp_path, "{case}/images/dapi.png", "{case}/masks/{hash}.png")
    for name in OBJECTS:
        save(tmp_path / f"{name}/images/gfp.png", grey())
    options = begun(tmp_path)["data_options"]
    assert options["images"] == ["{case}/images/dapi.png", "{case}/images/gfp.png"]


def test_folders_of_cases_may_have_objects_that_no_name_tells(tmp_path):
    fill(tmp_path, "batch/{case}/image.png", "batch/{case}/cells/{number}.png")
    assert begun(tmp_path)["data_options"]["objects"] == "files"


def test_the_line_for_a_class_between_objects_that_touch_can_be_copied(tmp_path):
    fill(tmp_path, "{case}/images/{case}.png", "{case}/masks/{hash}.png", gap=0)
    text = describe_folder(str(tmp_path)).text([])
    said = " ".join(text.replace("#", "").split())
    assert "A mask file for each object: 11 in 4 cases. In 2 of 3 images that" in said
    options = tomllib.loads(text.replace('# border = "border"', 'border = "border"'))[
        "data_options"
    ]
    source = open_source("folder", options)
    assert list(source.regions) == ["foreground", "border"]
    assert 2 in source.read(0)[1]
    assert "# border" not in describe_folder(str(apart(tmp_path))).text([])


def apart(folder):
    fill(folder / "apart", "{case}/images/{case}.png", "{case}/masks/{hash}.png")
    return folder / "apart"


def test_sides_of_a_split_are_found_with_objects(tmp_path):
    for side in ("train", "val"):
        named = f"{side}/{{case}}/images/{{case}}.png", f"{side}/{{case}}/masks/{{hash}}.png"
        fill(tmp_path, *named, case=lambda name, side=side: f"{name}{side[0]}")
    for name in "abcdefghijklm":  # More images without masks than masks.
        save(tmp_path / f"test/{name}/images/{name}.png", grey())
    table = begun(tmp_path)
    assert table["validation_groups"] == ["val"]
    assert table["data_options"]["images"] == "{group}/{case}/images/{case}.png"


def test_words_in_names_of_objects_are_classes(tmp_path):
    fill(tmp_path, "images/{case}.png", "masks/{case}/cell_{number}.png")
    for name in OBJECTS:
        save(tmp_path / f"masks/{name}/myelin_0.png", np.roll(square(255), 9, 0))
    masks = {name: f"masks/{{case}}/{name}*.png" for name in ("cell", "myelin")}
    assert begun(tmp_path)["data_options"]["masks"] == masks


def test_a_class_that_some_images_do_not_show_is_no_defect(tmp_path):
    fill(tmp_path, "images/{case}.png", "masks/{case}/cell_{number}.png")
    for name in ("0ab1", "7f20", "c3d4"):
        save(tmp_path / f"masks/{name}/myelin_0.png", np.roll(square(255), 9, 0))
    run = describe_folder(str(tmp_path))
    assert (len(run.source.case_ids), run.source.defects) == (4, ())
    assert check(run.source).defects == ()


def test_masks_in_grey_have_a_threshold(tmp_path):
    fill(tmp_path, "{case}/images/{case}.png", "{case}/masks/{hash}.png")
    for path, mask in zip(sorted(tmp_path.glob("7f20/masks/*.png")), objects(5), strict=True):
        # Edges that are smooth.
        mask[:, :40] = np.maximum(mask[:, :40], mask[:, 1:41] // 3)
        mask[:30] = np.maximum(mask[:30], mask[1:31] // 5)
        save(path, mask)
    options = begun(tmp_path)["data_options"]
    assert (options["objects"], options["threshold"]) == ("files", 127)


@pytest.mark.parametrize(
    ("masks", "words"),
    [
        # The same names everywhere: two classes, people, or objects.
        (lambda: objects(2), "--masks 'masks/{case}_\\*.png'  if each file is of one object"),
        # Nearly the same pixels: not objects, but two people.
        (lambda: [square(255), square(255)], "Several sets of files can be the masks"),
    ],
)
def test_what_may_be_no_objects_is_asked_for(tmp_path, masks, words):
    for name in OBJECTS:
        save(tmp_path / f"images/{name}.png", grey())
        for at, mask in enumerate(masks()):
            save(tmp_path / f"masks/{name}_{at}.png", mask)
    with pytest.raises(ValueError, match=words):
        describe_folder(str(tmp_path))
    options = begun(tmp_path, masks=["masks/{case}_*.png"])["data_options"]
    assert (options["images"], options["objects"]) == ("images/{case}.png", "files")
    both = begun(tmp_path, images=["images/{case}.png"], masks=["masks/{case}_*.png"])
    assert both["data_options"] == options


def test_masks_that_overlap_are_no_objects(tmp_path):
    for name in OBJECTS:
        save(tmp_path / f"images/{name}.png", grey())
        for at in range(2):
            save(tmp_path / f"masks/{name}/{at}{name[::-1]}.png", square(255))
    with pytest.raises(ValueError, match="Say --images and --masks"):
        describe_folder(str(tmp_path))


def test_one_file_that_is_no_mask_of_an_object_is_left_to_the_check(tmp_path):
    used = dict.fromkeys("abcd", 5)
    fill(tmp_path, "{case}/images/{case}.png", "{case}/masks/{hash}.png", used=used)
    bad = sorted(tmp_path.glob("b/masks/*.png"))[2]
    save(bad, grey())
    run = describe_folder(str(tmp_path))
    assert run.options["objects"][0] == "files"
    (defect,) = check(run.source).defects
    assert defect.file == f"b/masks/{bad.name}"


def test_masks_of_objects_in_colours_are_refused(tmp_path):
    fill(tmp_path, "{case}/images/{case}.png", "{case}/masks/{hash}.png")
    for path in tmp_path.glob("*/masks/*.png"):
        save(path, np.stack([objects(1)[0], objects(1)[0] * 0, objects(1)[0] * 0], -1))
    given = {"images": [NESTED[0]], "masks": [NESTED[1]]}
    with pytest.raises(ValueError, match="Store 0 and one other value in it"):
        describe_folder(str(tmp_path), **given)


def test_many_files_take_no_quadratic_time(tmp_path):
    names = [f"{number * 2654435761 % (1 << 32):08x}" for number in range(6000)]
    files = [f"{name}/images/{name}.png" for name in names[::30]]
    files += [f"{names[at // 30 * 30]}/masks/{name}.png" for at, name in enumerate(names)]
    for at, name in enumerate(names[::30]):
        if at % 50 == 0:
            fill(tmp_path, "{case}/images/{case}.png", "{case}/masks/{hash}.png", used={name: 2})
    files = sorted({*files, *list_files(tmp_path)})
    begin = time.process_time()
    pairs = find_pairs(files, root=tmp_path)
    taken = time.process_time() - begin
    assert (pairs.images[0], pairs.objects) == (NESTED[0], True)
    assert taken < 10


def test_the_example_of_the_page_is_what_is_written(tmp_path):
    page = (ROOT / "docs" / "data.md").read_text()
    (block,) = re.findall(r"```toml\n(# nuclei.toml\n.*?)```", page, re.DOTALL)
    shown = tomllib.loads(block)["data_options"]
    fill(tmp_path, "{case}/images/{case}.png", "{case}/masks/{hash}.png")
    written = begun(tmp_path)["data_options"]
    masks = {"foreground": shown["masks"]["nucleus"]}
    assert (shown["images"], masks) == (written["images"], written["masks"])
