import pytest

from tfunet.bench.analysis.scaling_laws import fit, serial_share


@pytest.mark.parametrize(
    ("speed_up", "num_replicas", "scaling", "share"),
    [
        (4.0, 4, "strong", 0.0),
        (1.0, 4, "strong", 1.0),  # no gain: all of it serial
        (1 / (0.1 + 0.9 / 8), 8, "strong", 0.1),
        (8 - 0.1 * 7, 8, "weak", 0.1),
        (1.0, 4, "weak", 1.0),
        (4.4, 4, "weak", -0.4 / 3),  # more than the replicas: nothing is hidden
        # The 14 GPUs of the published campaign, Horovod and native.
        (14 * 0.962, 14, "strong", 0.00304),
        (14 * 0.799, 14, "strong", 0.01935),
    ],
)
def test_serial_share_of_one_speed_up(speed_up, num_replicas, scaling, share):
    assert serial_share(speed_up, num_replicas, scaling) == pytest.approx(share, abs=1e-4)


def test_one_replica_has_no_serial_share():
    with pytest.raises(ValueError, match="needs 2 replicas or more, got 1"):
        serial_share(1.0, 1, "weak")


@pytest.mark.parametrize(
    ("scaling", "law", "speed_up"),
    [
        ("strong", "Amdahl", lambda n: 1 / (0.05 + 0.95 / n)),
        ("weak", "Gustafson", lambda n: n - 0.05 * (n - 1)),
    ],
)
def test_the_fit_finds_the_share_that_was_planted(scaling, law, speed_up):
    found = fit({count: speed_up(count) for count in (1, 2, 4, 8)}, scaling)
    assert (found.law, found.share) == (law, pytest.approx(0.05))
    assert found.miss == pytest.approx(0, abs=1e-12)
    assert found.limit == (pytest.approx(20) if scaling == "strong" else None)


def test_the_fit_says_how_far_off_it_is():
    law = fit({2: 2.0, 4: 3.0}, "weak")
    # y = 0 and 1 at x = 1 and 3: s = 3 / 10, so 1.7 and 3.1 replicas.
    assert law.share == pytest.approx(0.3)
    assert law.miss == pytest.approx(0.15)


def test_two_points_are_the_least_for_a_fit():
    assert fit({1: 1.0, 2: 1.9}, "strong") is None
    assert fit({2: 2.2, 4: 4.5}, "strong").limit is None
