"""The largest network and batch that fit, where a prediction costs seconds."""

import pytest

from tfunet.performance.largest_fitting import Candidate, largest_fitting

MIB = 2**20
WANTED = [
    Candidate(patch=(size, size), levels=2, filters=filters, batch=2)
    for filters in (32, 8)
    for size in (256, 192, 128, 64)
]


class Predictions:
    """The memory of steps: weights, and a part that grows with the samples."""

    def __init__(self):
        self.asked = []

    def __call__(self, candidate):
        self.asked.append(candidate)
        return candidate.filters**2 * 2**10 + candidate.size * 64


@pytest.mark.parametrize("memory", [700, 300, 150, 90, 40, 9, 5])
def test_the_first_that_fits_with_the_largest_batch(memory):
    predict = Predictions()
    found = largest_fitting(WANTED, predict, memory * MIB, lambda candidate: 50)
    asked = len(predict.asked)
    # By trying all.
    fitting = next(candidate for candidate in WANTED if predict(candidate) <= memory * MIB)
    batches = [Candidate(**{**vars(fitting), "batch": batch}) for batch in range(2, 51)]
    best = max(
        (candidate for candidate in batches if predict(candidate) <= memory * MIB),
        key=lambda one: one.batch,
    )
    assert found.candidate == best
    assert found.total_bytes == predict(best) <= memory * MIB
    assert asked <= 9


def test_a_batch_has_a_limit_and_a_memory_may_be_too_small():
    found = largest_fitting(WANTED, Predictions(), 10_000 * MIB, lambda candidate: 5)
    assert (found.candidate.batch, found.candidate.patch) == (5, (256, 256))
    with pytest.raises(ValueError, match=r"No network fits in 1\.0 MiB\. The smallest, with 8"):
        largest_fitting(WANTED, Predictions(), MIB, lambda candidate: 5)
