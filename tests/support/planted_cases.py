"""Gives the runs of a made-up sweep the Dice of each case that a test wants."""

from statistics import fmean

from synthetic_sweep import write_trial

from tfunet.record import CASE_COLUMNS, RunFolder

VOXELS = 1000


def plant(folder, trial, cases, *, voxels=VOXELS, metrics=None, **changes):
    """Write the record of a trial with these Dice, by case and region, to three digits.

    `voxels` are those of every region in the mask, `metrics` the other metrics of every case;
    `changes` go into result.json.
    """
    regions = dict.fromkeys(region for dice in cases.values() for region in dice)
    means = {region: fmean(dice[region] for dice in cases.values()) for region in regions}
    write_trial(folder, trial, regions=tuple(regions), **{"dice": means, **changes})
    rows = []
    for case, dice in cases.items():
        for region, value in dice.items():
            hit = round(voxels * value)
            # With as many false voxels as missed ones, this is the Dice.
            counts = (hit, voxels - hit, voxels - hit)
            row = dict(zip(CASE_COLUMNS, (3, case, region, *counts), strict=True))
            rows.append({**row, **(metrics or {})})
    RunFolder(folder / trial.id).write_cases(rows, metrics=tuple(metrics or ()))
