"""Keeps what a report shows of three validation cases: the worst, the median and the best one."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import tensorflow as tf

from tfunet.data.shown_planes import Plane, in_8_bits, planes_through, shown_channels
from tfunet.data.true_colours import true_colours
from tfunet.files.arrays import write_arrays
from tfunet.learning.scores import dice
from tfunet.record import SHOWN_CASES
from tfunet.training.epochs import Trainer
from tfunet.training.evaluation import Scores
from tfunet.training.run_data import RunData
from tfunet.training.whole_cases import cores


def shown_positions(sums: np.ndarray) -> dict[str, int]:
    """Return the positions of the worst, the median and the best case by mean Dice.

    Args:
        sums: (cases, regions, 4), as `RegionScoring` sums them.
    """
    order = dice(sums[..., :3]).mean(-1).argsort(kind="stable").tolist()
    places = {"worst": 0, "median": (len(order) - 1) // 2, "best": len(order) - 1}
    by_place = {place: rank for rank, place in reversed(places.items())}
    return {by_place[place]: order[place] for place in sorted(by_place)}


def keep_shown_cases(trainer: Trainer, scores: Scores | None) -> None:
    """Predict three cases once more and keep planes of them; called by all processes together.

    Nothing is kept without scores of this attempt, without labels, and on a CPU whose memory is
    limited, where a further pipeline might find none.
    """
    attempt, data = trainer.attempt, trainer.data
    if scores is None or not trainer.validation.tells_labels or data.labels is None:
        return
    if attempt.config.cpu_memory is not None:
        return
    shown = shown_positions(scores.sums)
    chosen = tuple(data.split.validation[position] for position in shown.values())
    masks = [np.asarray(data.cases.mask(case)) for case in chosen]
    planes = [planes_through(mask) for mask in masks]
    predicted = [
        [np.zeros(plane.of(mask).shape, np.uint8) for plane in several]
        for mask, several in zip(masks, planes, strict=True)
    ]

    def add(output: Mapping[str, Any]) -> None:
        for case, corner, labels in cores(output):
            for plane, canvas in zip(planes[case], predicted[case], strict=True):
                plane.cut(labels, corner.tolist(), canvas)

    try:
        trainer.validation.evaluation.predict(
            replace(data.evaluation, validation=chosen), add, attempt.begin
        )
    except tf.errors.ResourceExhaustedError:
        # Other processes would wait for this one.
        if attempt.topology.process_count > 1:
            raise
        attempt.say("No pictures of cases are kept: no memory is left for them.")
        return
    flat = np.concatenate([canvas.ravel() for several in predicted for canvas in several])
    if attempt.topology.process_count > 1:
        # Each voxel was predicted by one process.
        flat = attempt.backend.sum(flat.astype(np.float64)).astype(np.uint8)
    if not attempt.topology.is_chief:
        return
    ranks = dict(zip(chosen, shown, strict=True))
    write_arrays(attempt.folder.path / SHOWN_CASES, *_pictures(data, ranks, masks, planes, flat))


def _pictures(
    data: RunData,
    ranks: Mapping[int, str],
    masks: Sequence[np.ndarray],
    planes: Sequence[Sequence[Plane]],
    flat: np.ndarray,
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Return the planes of cases, and what is said of them.

    Args:
        ranks: Why each case is shown, by its number.
        flat: The predicted labels of all planes, one after the other.
    """
    source = data.task.source
    arrays: dict[str, np.ndarray] = {}
    for number, (case, several) in enumerate(zip(ranks, planes, strict=True)):
        image = data.cases.image(case)
        coloured, in_colour = true_colours(source, case), source.in_colour
        pixels = [
            shown_channels(coloured(plane.of(image)), in_colour=in_colour) for plane in several
        ]
        for at, (plane, shades) in enumerate(zip(several, in_8_bits(pixels), strict=True)):
            mask = plane.of(masks[number])
            arrays[f"image-{number}-{at}"] = shades
            arrays[f"mask-{number}-{at}"] = np.where(mask == source.ignored, 0, mask)
            arrays[f"labels-{number}-{at}"] = flat[: mask.size].reshape(mask.shape)
            flat = flat[mask.size :]
    facts = {
        "schema_version": 1,
        "label_names": {str(label): name for label, name in source.label_names().items()},
        "cases": [
            {
                "case": source.case_ids[case],
                "rank": rank,
                "planes": [plane.title(mask.shape) for plane in several],
            }
            for (case, rank), mask, several in zip(ranks.items(), masks, planes, strict=True)
        ],
    }
    return arrays, facts
