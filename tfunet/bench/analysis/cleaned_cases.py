"""Dice of predictions without some of their components, and which removal helps."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import final

import numpy as np

from tfunet.bench.analysis.confidence_intervals import Estimate, difference
from tfunet.learning import scores
from tfunet.prediction.cleaning import Cleaning, components

MIN_VOXELS = (10, 30, 100, 300, 1000, 3000)


@final
@dataclass(frozen=True, kw_only=True)
class ComparedCase:
    """A prediction against its mask, component by component.

    Args:
        truth: Voxels of each region in the mask.
        sizes: For each label, the voxels of each of its components.
        hits: For each label, (components, regions): voxels of a component that lie in the region
            in the mask; 0 for regions without this label.
        members: For each label, whether it is in each region.
    """

    truth: np.ndarray
    sizes: Mapping[int, np.ndarray]
    hits: Mapping[int, np.ndarray]
    members: Mapping[int, np.ndarray]

    def dice(self, cleaning: Cleaning) -> np.ndarray:
        """Return the Dice of each region once components are removed."""
        true_positive = np.zeros(len(self.truth), np.int64)
        predicted = np.zeros(len(self.truth), np.int64)
        for label, sizes in self.sizes.items():
            kept = cleaning.keeps(label, sizes)
            true_positive += self.hits[label][kept].sum(0)
            predicted += sizes[kept].sum() * self.members[label]
        counts = [true_positive, predicted - true_positive, self.truth - true_positive]
        return scores.dice(np.stack(counts, -1))


def compare(
    labels: np.ndarray, mask: np.ndarray, regions: Sequence[Sequence[int]], num_classes: int
) -> ComparedCase:
    """Return a prediction against its mask. Needs scipy.

    Args:
        labels: The prediction.
        mask: The truth, of the same shape.
        regions: The labels of each region.
        num_classes: Labels are 0 to num_classes - 1.
    """
    truth = [np.isin(mask, each) for each in regions]
    sizes, hits, members = {}, {}, {}
    for label in range(1, num_classes):
        numbered, sizes[label] = components(labels == label)
        members[label] = np.array([label in each for each in regions])
        inside = [
            np.bincount(numbered[each], minlength=len(sizes[label]) + 1)[1:] for each in truth
        ]
        hits[label] = np.stack(inside, -1) * members[label]
    voxels = np.array([each.sum() for each in truth])
    return ComparedCase(truth=voxels, sizes=sizes, hits=hits, members=members)


@final
@dataclass(frozen=True, kw_only=True)
class Removal:
    """What removing components of a label was worth over all cases."""

    label: int
    rule: str
    gain: Estimate
    better: int
    worse: int
    is_kept: bool


def mean_dice(cases: Sequence[ComparedCase], cleaning: Cleaning) -> np.ndarray:
    """Return (cases, regions)."""
    return np.stack([case.dice(cleaning) for case in cases])


def paired(new: np.ndarray, old: np.ndarray) -> Estimate:
    """Return the difference of the mean Dice of cases, with its interval over cases."""
    return difference(*(dict(enumerate(each.mean(-1).tolist())) for each in (new, old)))


def choose_cleaning(cases: Sequence[ComparedCase]) -> tuple[Cleaning, list[Removal]]:
    """Return the removals that help, and what each was worth.

    A removal helps if the interval of its gain in mean Dice is above 0, and no region has a lower
    mean. Labels are taken one after the other.
    """
    chosen = Cleaning()
    trials: list[Removal] = []
    for label in cases[0].sizes:
        before = mean_dice(cases, chosen)
        options: list[tuple[str, Cleaning]] = [
            ("largest", replace(chosen, largest=(*chosen.largest, label)))
        ]
        options += [
            (f"at least {size}", replace(chosen, min_voxels={**chosen.min_voxels, label: size}))
            for size in MIN_VOXELS
        ]
        best, best_gain, at = chosen, 0.0, -1
        for rule, option in options:
            after = mean_dice(cases, option)
            gain = paired(after, before)
            changes = after.mean(-1) - before.mean(-1)
            trials.append(
                Removal(
                    label=label,
                    rule=rule,
                    gain=gain,
                    better=int((changes > 0).sum()),
                    worse=int((changes < 0).sum()),
                    is_kept=False,
                )
            )
            helps = gain.low > 0 and (after.mean(0) >= before.mean(0)).all()
            if helps and gain.value > best_gain:
                best, best_gain, at = option, gain.value, len(trials) - 1
        chosen = best
        if at >= 0:
            trials[at] = replace(trials[at], is_kept=True)
    return chosen, trials
