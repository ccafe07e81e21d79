"""Splits: whole groups, the same every time, and nothing lost when written and read."""

import json
from dataclasses import replace

import numpy as np
import pytest

from tfunet.data.source import DataSource
from tfunet.data.split import (
    Split,
    from_json,
    held_out_line,
    leave_out,
    left_out,
    split_cases,
    to_json,
)


def source(groups):
    return DataSource(
        name="set",
        case_ids=tuple(f"case{index}" for index in range(len(groups))),
        groups=tuple(groups),
        num_classes=2,
        channels=1,
        regions={"cell": (1,)},
        patch=(8, 8),
        fingerprint="",
        read=lambda index: (np.zeros((8, 8, 1), np.float32), np.zeros((8, 8), np.uint8)),
    )


ANIMALS = source("aabbbcddee")


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("share", [0.01, 0.2, 0.5, 0.99])
def test_every_case_is_on_one_side_and_no_group_on_both(share, seed):
    split = split_cases(ANIMALS, share=share, seed=seed)
    assert sorted(split.train + split.validation) == list(range(10))
    sides = [{ANIMALS.groups[case] for case in side} for side in (split.train, split.validation)]
    assert not sides[0] & sides[1]
    assert min(map(len, sides)) >= 1


@pytest.mark.parametrize(
    ("num_groups", "share", "held_out"),
    [(10, 0.2, 2), (5, 0.2, 1), (2, 0.01, 1), (2, 0.99, 1), (260, 0.2, 52), (10, 0.25, 2)],
)
def test_the_share_counts_groups(num_groups, share, held_out):
    split = split_cases(source([str(group) for group in range(num_groups)]), share=share)
    assert len(split.validation) == held_out


def test_the_seed_decides_and_the_order_of_the_files_does_not():
    names = [f"animal{index}" for index in range(12)]
    first, turned = source(names), source(names[::-1])

    def held_out(data, seed):
        return {data.groups[case] for case in split_cases(data, share=0.25, seed=seed).validation}

    assert held_out(first, 3) == held_out(turned, 3)
    assert len({frozenset(held_out(first, seed)) for seed in range(10)}) > 5


def test_the_split_of_a_seed_never_changes():
    # Written down on purpose: results of earlier runs are compared with those of later ones.
    assert split_cases(ANIMALS, share=0.4, seed=0).validation == (0, 1, 6, 7)


def test_named_groups_are_held_out():
    assert split_cases(ANIMALS, share=0.9, groups=["b", "d"]) == Split(
        train=(0, 1, 5, 8, 9), validation=(2, 3, 4, 6, 7)
    )


def test_the_groups_that_are_held_out_are_named():
    split = split_cases(ANIMALS, groups=["d", "b"])
    assert held_out_line(split, ANIMALS) == "Held out: b (3 cases), d (2 cases)"
    assert json.loads(to_json(split, ANIMALS))["validation_groups"] == ["b", "d"]
    many = source([f"rat{index:02d}" for index in range(24)])
    line = held_out_line(split_cases(many, share=0.5), many)
    assert line.startswith("Held out: 12 groups, rat")
    assert line.count(" case)") == 10
    # Each case is its own group.
    alone = replace(ANIMALS, groups=ANIMALS.case_ids)
    split = split_cases(alone)
    assert held_out_line(split, alone) == ""
    assert "validation_groups" not in json.loads(to_json(split, alone))
    assert from_json(to_json(split, alone), alone) == split


def test_an_unknown_group_gives_the_near_match():
    with pytest.raises(ValueError, match=r"no group 'rat_6'. Did you mean 'rat6'\? Known: rat6, r"):
        split_cases(source(["rat6", "rat8"]), groups=["rat_6"])


@pytest.mark.parametrize("num_folds", [2, 3, 5])
def test_every_group_is_held_out_in_exactly_one_fold(num_folds):
    folds = [split_cases(ANIMALS, folds=num_folds, fold=fold, seed=1) for fold in range(num_folds)]
    held_out = [{ANIMALS.groups[case] for case in fold.validation} for fold in folds]
    assert sorted(group for part in held_out for group in part) == list("abcde")
    assert max(map(len, held_out)) - min(map(len, held_out)) <= 1
    for fold in folds:
        assert sorted(fold.train + fold.validation) == list(range(10))
    assert folds[0] == split_cases(ANIMALS, folds=num_folds, fold=0, seed=1)
    assert len({split_cases(ANIMALS, folds=num_folds, seed=seed) for seed in range(9)}) > 1


def test_more_folds_than_groups_are_refused():
    with pytest.raises(
        ValueError, match="folds=6 needs as many groups, and the data set 'set' has 5 groups"
    ):
        split_cases(ANIMALS, folds=6)


def test_a_case_that_cannot_be_used_leaves_the_others_where_they_are():
    split = split_cases(ANIMALS, share=0.4, seed=0)
    assert leave_out(split, ANIMALS, {3: "cut", 6: "cut"}) == Split(
        train=(2, 4, 5, 8, 9), validation=(0, 1, 7)
    )
    with pytest.raises(
        ValueError, match=r"left for validation: case0: cut \(3 more like it: case1, case6, case7\)"
    ):
        leave_out(split, ANIMALS, dict.fromkeys(split.validation, "cut"))


def test_a_written_split_keeps_out_what_was_left_out():
    split = leave_out(split_cases(ANIMALS, share=0.4, seed=0), ANIMALS, {3: "cut"})
    text = to_json(split, ANIMALS, left_out(ANIMALS, {3: "cut"}))
    # Mended or not: the run goes on with the samples that it had.
    assert from_json(text, ANIMALS) == from_json(text, ANIMALS, {3: "cut"}) == split
    with pytest.raises(ValueError, match=r"'case4', which cannot be used here: gone Restore"):
        from_json(text, ANIMALS, {4: "gone"})


def test_a_side_without_cases_is_refused():
    with pytest.raises(ValueError, match="none is left for training"):
        split_cases(ANIMALS, groups=list("edcba"))
    with pytest.raises(ValueError, match=r"single group \('a'\).*at least two"):
        split_cases(source("aaaa"))


def test_a_written_split_comes_back():
    split = split_cases(ANIMALS, share=0.4, seed=5)
    text = to_json(split, ANIMALS)
    assert set(json.loads(text)) == {"train", "validation", "validation_groups", "left_out"}
    assert from_json(text, ANIMALS) == split


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"train": ["case0"', "not JSON"),
        ("[1, 2]", "must be"),
        ('{"train": ["case0"], "validation": []}', "at least one"),
        ('{"train": ["case0"], "validation": [["case1"]]}', "must be"),
        ('{"train": ["case0"], "validation": ["cas1"]}', "Did you mean 'case1'"),
        ('{"train": ["case0", "case1"], "validation": ["case0"]}', "twice: case0"),
        ('{"train": ["case0"], "validation": ["case1"]}', "leaves out 1 cases.*case2"),
        ('{"train": ["case0"], "validation": ["case1", "case2"]}', "group 'a' on both sides"),
    ],
)
def test_a_written_split_that_does_not_fit_the_data_is_refused(text, reason):
    with pytest.raises(ValueError, match=reason):
        from_json(text, source("aab"))
