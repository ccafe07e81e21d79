"""Defects with one cause are one line, whatever tells their files apart."""

import pytest

from tfunet.data.defects import Defect, by_cause


@pytest.mark.parametrize(
    "texts",
    [
        ("holds the values 1, 2; allowed: 0", "holds the values 7, 8, 9, 12; allowed: 0"),
        (
            "the mask holds the values 0, 1, 2; allowed: 0, 1.",
            "the mask holds the values 0, 1, 2, 3, 4, 5, ..., 255 (17 in all); allowed: 0, 1.",
        ),
        ("holds the colours #ff0000, #00ff00", "holds the colours #12ab00"),
        ("of shape (10, 12)", "of shape (9, 7)"),
        ("/data/x/a.png: cut off", "/data/y/b.png: cut off"),
    ],
)
def test_one_cause(texts):
    files = zip(("a.png", "b.png"), texts, strict=True)
    defects = [Defect(file=file, what=what) for file, what in files]
    assert len(by_cause(defects)) == 1


def test_short_names_of_cases_tell_no_causes_apart():
    defects = [
        Defect(file=f"{name}.png", what=f"no mask for {name!r} was found", case_id=name)
        for name in ("a", "b", "c7")
    ]
    assert len(by_cause(defects)) == 1


def test_other_causes_stay_apart():
    defects = [Defect(file="a.png", what="cut off"), Defect(file="b.png", what="its mask is empty")]
    assert len(by_cause(defects)) == 2
