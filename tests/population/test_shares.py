import pytest

from tfunet.config.tournament import read_tournament
from tfunet.population.shares import share_of


def shares(groups, cases=None, **settings):
    tournament = read_tournament({"round_steps": 1, **settings})
    cases = range(len(groups)) if cases is None else cases
    return [
        share_of(tournament, cases, groups, seed=0, trainer=trainer)
        for trainer in range(tournament.trainers)
    ]


GROUPS = [f"animal{number // 2}" for number in range(24)]


@pytest.mark.parametrize("selection", ["pairwise", "truncation", "none"])
def test_each_case_is_in_exactly_one_partition(selection):
    cases = range(2, 24)
    found = shares(GROUPS, cases, trainers=3, partition=True, selection=selection)
    trained = [case for share in found for case in share.train]
    deciding = {case for share in found for case in share.deciding}
    assert len(trained) == len(set(trained))
    assert not set(trained) & deciding
    assert sorted({*trained, *deciding}) == list(cases)
    sizes = [len(share.train) for share in found]
    assert max(sizes) - min(sizes) <= 2
    for share in found:
        others = {case for other in found if other is not share for case in other.train}
        assert not {GROUPS[case] for case in share.train} & {GROUPS[case] for case in others}


def test_rounds_are_decided_on_own_cases_in_pairs_and_on_common_ones_in_ranks():
    own = [share.deciding for share in shares(GROUPS, trainers=3, partition=True)]
    assert len(set(own)) == 3
    assert len({case for cases in own for case in cases}) == sum(map(len, own))
    (common,) = {
        share.deciding
        for share in shares(GROUPS, trainers=3, partition=True, selection="truncation")
    }
    assert common


def test_without_partition_all_have_the_same_cases():
    assert len(set(shares(GROUPS, trainers=4))) == 1
    assert len(shares(GROUPS, trainers=2, share=0.9)[0].deciding) == 22  # Never all of them.


def test_independent_runs_have_the_cases_of_the_tournament():
    settings = {"trainers": 3, "partition": True}
    assert shares(GROUPS, **settings, selection="none") == shares(GROUPS, **settings)


@pytest.mark.parametrize(
    ("num_groups", "settings", "least"),
    [
        (3, {"trainers": 2, "partition": True}, 4),
        (2, {"trainers": 2, "partition": True, "selection": "truncation"}, 3),
        (1, {"trainers": 2}, 2),
    ],
)
def test_too_few_cases_are_refused(num_groups, settings, least):
    groups = [str(number) for number in range(num_groups)]
    with pytest.raises(ValueError, match=f"at least {least} groups .* there are {num_groups}"):
        shares(groups, **settings)
    more = [str(number) for number in range(least)]
    assert all(share.train and share.deciding for share in shares(more, **settings))


def test_groups_of_unequal_size_leave_nobody_without():
    groups = ["big"] * 20 + ["a", "b", "c", "d", "e"]
    found = shares(groups, trainers=3, partition=True)
    assert all(share.train and share.deciding for share in found)
