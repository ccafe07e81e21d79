"""The terms of a report, explained where they stand."""

from collections.abc import Iterable

TERMS = {
    "backend": "The way of training: single device, tf.distribute (mirrored, multiworker) or "
    "Horovod, with its options.",
    "replicas": "Copies of the network that train side by side, each on samples of its own.",
    "repeats": "Runs with the same settings and different seeds, or folds.",
    "proved": "Whether the run proved, by a small step both ways, that its step is that of one "
    "device. Runs that step as one device have nothing to prove.",
    "samples/s": "Samples that all replicas together train on in a second, in steady steps.",
    "val_loss": "Loss over all validation samples: less is better.",
    "images/s": "Images that all replicas together train on in a second, in steady steps.",
    "speed-up": "How many times as fast as the baseline, which is one replica. In parentheses the "
    "95 % interval.",
    "efficiency": "Speed-up divided by the replicas: 1 is ideal.",
    "of bound": "Time of a step on data in memory divided by that on the run's data. Below 1 the "
    "devices wait for data.",
    "Dice": "Overlap of prediction and mask of a region: 1 is perfect, 0 is none. Mean over cases.",
    "IoU": "Intersection over union of prediction and mask: 1 is perfect. Mean over cases.",
    "Dice where present": "Mean Dice over the cases whose mask has the region.",
    "IoU where present": "Mean IoU over the cases whose mask has the region.",
    "present": "Cases whose mask has the region. A case without it in mask and prediction counts "
    "as 1 in Dice and IoU.",
    "dataset Dice": "Dice of the pixels of all cases together.",
    "dataset IoU": "IoU of the pixels of all cases together, as benchmarks have it.",
    "mIoU": "IoU of the pixels of all cases together, as benchmarks have it: its mean over "
    "regions.",
    "MAE": "Mean absolute error of a number that is predicted.",
    "memory (GiB)": "Peak resident memory of all processes together.",
    "device memory (GiB)": "Peak memory on the device of the process that needs most.",
    "serial share": "Part of the work that ran as if on one replica: 0 is ideal. It is - "
    "where n replicas were more than n times as fast, or slower than one.",
    "device-hours a run": "Hours of the whole run times its devices.",
    "energy a run (Wh)": "Energy of CPU packages and GPUs over the training loop.",
    "J a sample": "Energy of the run divided by its samples.",
    "samples to Dice": "Samples that were trained on before an evaluation first reached this Dice.",
    "seconds": "Seconds of training up to this Dice; of a trial, its whole duration.",
    "device-hours": "Hours up to this Dice times the devices.",
    "reached": "Repeats that reached this Dice.",
    "lost efficiency": "1 minus the efficiency; the parts in this row add up to it.",
    "computation": "Lost because steps without communication are slower than those of one replica.",
    "communication": "Lost on averaging the gradients.",
    "stragglers": "Lost on waiting for the slowest process.",
    "input": "Lost on waiting for data.",
    "rest": "Lost in the run, but not seen in the measurement after it.",
    "average alone (ms)": "Time of averaging the gradients and nothing else.",
    "bus GB/s": "Bandwidth of the average, as nccl-tests defines it.",
    "hd95": "95th percentile of the distances between the surfaces of prediction and mask.",
    "hd": "Hausdorff distance: the largest distance between the surfaces of prediction and mask.",
    "assd": "Average distance between the surfaces of prediction and mask.",
    "nsd": "Normalised surface Dice: share of both surfaces that is within a tolerance of the "
    "other one.",
    "lesion_precision": "Share of the predicted components that touch one of the mask.",
    "lesion_recall": "Share of the components of the mask that touch a predicted one.",
    "lesion_f1": "Harmonic mean of lesion precision and recall.",
    "instance_precision": "Share of the predicted objects that are one of the mask.",
    "instance_recall": "Share of the objects of the mask that a predicted one is.",
    "instance_f1": "Harmonic mean of instance precision and recall.",
    "instance_ap": "Matched objects over matched, missed and false ones. "
    "Without a number it is the mean over IoU 0.5 to 0.95.",
    "instance_difference": "Number of predicted objects minus that of the mask.",
    "panoptic_quality": "Sum of the IoU of matched objects over the mean number of objects.",
    "cldice": "Centreline Dice: how much of each centre line lies in the other mask. 1 is perfect.",
    "arand": "Adapted Rand error: 1 minus the F-score over pairs of voxels of one cell. 0 is "
    "perfect.",
    "vi_split": "Variation of information by cells that were split, in bits: 0 is perfect.",
    "vi_merge": "Variation of information by cells that were merged, in bits: 0 is perfect.",
    "volume_difference": "Predicted volume minus that of the mask.",
    "difference from the best": "Its mean minus that of the configuration with the highest mean "
    "Dice, within repeats. In parentheses the 95 % interval.",
    "interval over cases": "95 % interval of the difference from the best over the validation "
    "cases, each with its mean over the runs.",
    "adjusted p": "Probability of such a difference by chance alone, raised for the number of "
    "comparisons.",
    "parameters": "Numbers that the network learns or keeps.",
    "ms a step": "Median time of a steady optimizer step.",
    "region": "A class, or several classes taken together, that is scored.",
    "trial": "One run of the sweep.",
    "repeat": "Number of the run among those with the same settings.",
    "state": "done, failed, interrupted, profiled, running or waiting.",
    "spread": "10th to 90th percentile of repeated times, divided by the median.",
}
# Terms of sentences, not of tables.
WORDS = {
    "cell": "All repeats of one combination of settings.",
    "family": "Cells that differ only in backend and number of replicas.",
    "95 % interval": "A range that holds the true value in 95 of 100 sweeps.",
    "adjusted p": TERMS["adjusted p"],
    "not distinguishable": "Chance alone can explain the difference.",
    "weak scaling": "Each replica keeps its batch, so more replicas train on more samples a step.",
    "strong scaling": "All replicas share one batch, so more replicas have less work each.",
}


def explained(name: str) -> str:
    """Return what a column of a table is; empty for one that needs no words.

    "Dice cell" and "nsd@1mm" are explained by the word that they begin with.
    """
    return TERMS.get(_term(name), "")


def terms_of(columns: Iterable[str]) -> dict[str, str]:
    """Return the terms among the names of columns, and those of sentences, with explanations."""
    used = dict.fromkeys(map(_term, columns))
    return {term: TERMS[term] for term in used if term} | WORDS


def _term(name: str) -> str:
    """Return the term that the name of a column begins with, or an empty text."""
    words = name.split(" ")
    starts = [" ".join(words[:end]) for end in range(len(words), 0, -1)]
    known = (start for start in (*starts, name.partition("@")[0]) if start in TERMS)
    return next(known, "")
