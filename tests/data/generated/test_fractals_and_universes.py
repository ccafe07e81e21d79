"""Fractals and universes: the same bits for everyone, sound, and learnable from what they say."""

import hashlib
import subprocess
import sys

import numpy as np
import pytest

from tfunet.data.check import check, report_text
from tfunet.data.generated.fractal_scene import category, fractal_points
from tfunet.data.generated.phantoms import fractals, universes

SMALL = {fractals: {"scale": 4}, universes: {"size": 16}}


def digest(source, index):
    image, mask = source.read(index)
    return hashlib.sha256(image.tobytes() + mask.tobytes()).hexdigest()


@pytest.mark.parametrize("opener", SMALL)
def test_a_case_depends_on_seed_and_index_alone(opener):
    few, many = (opener(num_cases=number, **SMALL[opener]) for number in (3, 5))
    assert check(few).defects == check(few).warnings == ()
    backwards = [digest(many, index) for index in reversed(range(3))]
    assert [digest(few, index) for index in range(3)] == backwards[::-1]
    assert digest(opener(num_cases=3, seed=1, **SMALL[opener]), 0) not in backwards
    assert len(set(backwards)) == 3


def test_another_process_makes_the_same_bits():
    code = (
        "import hashlib; from tfunet.data.generated.phantoms import *;"
        "made = [fractals(scale=4).read(2), universes(size=16, channels=2).read(2)];"
        "print(hashlib.sha256(b''.join(i.tobytes() + m.tobytes() for i, m in made)).hexdigest())"
    )
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    made = [fractals(scale=4).read(2), universes(size=16, channels=2).read(2)]
    ours = hashlib.sha256(b"".join(image.tobytes() + mask.tobytes() for image, mask in made))
    assert printed.stdout.strip() == ours.hexdigest(), printed.stderr


@pytest.mark.parametrize("scale", [4, 5, 6])
def test_a_volume_has_a_fractal_of_each_category_apart_from_the_others(scale):
    source = fractals(num_cases=2, scale=scale, num_categories=5)
    half = 2**scale // 2
    assert source.patch == (2**scale,) * 3
    assert source.regions == {f"category{label}": (label,) for label in range(1, 6)}
    for index in range(2):
        image, mask = source.read(index)
        assert image.shape == (*source.patch, 1)
        octants = set()
        for label in range(1, 6):
            places = np.argwhere(mask == label)
            assert len(places) > half
            (octant,) = {tuple(place) for place in (places // half).tolist()}
            octants.add(octant)
        assert len(octants) == 5


def test_a_category_is_what_its_maps_leave_unchanged():
    """Each point's image under every map lies near the fractal: it is its own union of copies."""
    system = category(0, 0)
    points = fractal_points(np.random.default_rng(0), system, 4000)
    assert points.min() == 0
    assert points.max() == 1
    raw = np.zeros((4000, 3))
    rng = np.random.default_rng(1)
    for _ in range(30):
        chosen = rng.integers(len(system.shifts), size=len(raw))
        raw = np.einsum("pij,pj->pi", system.matrices[chosen], raw) + system.shifts[chosen]
    for matrix, shift in zip(system.matrices, system.shifts, strict=True):
        moved = raw[:50] @ matrix.T + shift
        nearest = np.linalg.norm(moved[:, np.newaxis] - raw, axis=2).min(1)
        assert nearest.max() < 0.1 * np.ptp(raw, axis=0).max()


def test_the_numbers_of_a_universe_show_in_its_image():
    source = universes(num_cases=60, size=24)
    assert list(source.targets) == ["omega_m", "sigma_8", "n_s"]
    assert source.num_outputs == 3
    images = [source.read(index)[0] for index in range(60)]
    # A higher mean of the counts; more unlike values; neighbours that differ more.
    means = [np.expm1(image + np.log1p(60)).mean() for image in images]
    rough = [np.abs(np.diff(image, axis=0)).mean() / image.std() for image in images]
    matter, uneven, tilt = source.targets.values()
    assert np.corrcoef(matter, means)[0, 1] > 0.6
    assert np.corrcoef(uneven, [image.std() for image in images])[0, 1] > 0.5
    assert np.corrcoef(tilt, rough)[0, 1] > 0.4
    assert np.abs(list(source.targets.values())).max() <= 1


def test_the_check_of_a_data_set_with_numbers_says_nothing_of_masks():
    report = check(universes(num_cases=3, size=16))
    assert report.label_names == ()
    assert "mask" not in report_text(report)
    assert "class" not in report_text(report)


@pytest.mark.parametrize(
    ("opener", "options", "message"),
    [
        (fractals, {"scale": 3}, "scale must be 4 to 11"),
        (fractals, {"scale": 12}, "2048 cubed.*got 12"),
        (fractals, {"num_categories": 9}, "num_categories must be 1 to 8, got 9"),
        (universes, {"size": 8}, "size must be at least 16"),
        (universes, {"channels": 5}, "channels must be 1 to 4"),
    ],
)
def test_wrong_options_are_refused(opener, options, message):
    with pytest.raises(ValueError, match=message):
        opener(**options)


@pytest.mark.parametrize(
    ("opener", "other"),
    [
        *((fractals, {name: value}) for name, value in {"scale": 4, "num_categories": 2}.items()),
        *((universes, {name: value}) for name, value in {"size": 16, "channels": 2}.items()),
        *((opener, {"seed": 1}) for opener in SMALL),
        *((opener, {"num_cases": 5}) for opener in SMALL),
        *((opener, {"noise": 0.5}) for opener in SMALL),
    ],
)
def test_the_fingerprint_follows_every_setting(opener, other):
    assert opener().fingerprint != opener(**other).fingerprint
