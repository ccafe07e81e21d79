"""Simulated sweeps whose truth is known, with the noise that sweeps on a shared machine had.

Records of twelve trials of the quickstart and of three rounds of benchmarks/scaling.py, on a shared
machine with two cores, had 8 to 14 % of noise within a repeat, 4 to 13 % that a repeat's trials
share, and now and then a trial that a neighbour slowed down by half.
"""

import math

import numpy as np

NOISE = 0.08
SHARED = 0.10
SLOW_SHARE = 0.05
SLOW = 1.5


def sweeps(dice, count, speeds, repeats, noise=NOISE, slow_share=SLOW_SHARE):
    """Yield `count` sweeps: a dict for every true speed, from repeat to the speed measured."""
    shape = (count, len(speeds), repeats)
    logs = np.log(speeds)[None, :, None] + dice.normal(0, noise, shape)
    logs += dice.normal(0, SHARED, (count, 1, repeats))
    logs -= math.log(SLOW) * (dice.random(shape) < slow_share)
    for sweep in np.exp(logs):
        yield [dict(enumerate(row, 1)) for row in sweep.tolist()]
