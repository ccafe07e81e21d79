"""The learning-rate range test: the loss of steps whose rate rises from very small to very large.

Smith 2017, "Cyclical Learning Rates for Training Neural Networks", arXiv:1506.01186. The rate of
the steepest fall and a tenth of that of the lowest loss are the two rules of fastai's `lr_find`
(Howard and Gugger 2020, "fastai: A Layered API for Deep Learning", arXiv:2002.04688).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, final

import numpy as np

from tfunet.backend import Launch
from tfunet.config.run import RunConfig
from tfunet.process.watchdog import nobody_asks
from tfunet.single_device import SingleDevice
from tfunet.training.attempt import start
from tfunet.training.network import build
from tfunet.training.run_data import open_data
from tfunet.training.step import Steps
from tfunet.training.whole import Whole

# A loss that is this many times the lowest one has left the range.
DIVERGED = 4.0
# The share of the best rate that is advised.
SHARE = 0.1
# Decades of the rate, on either side, over which the loss is smoothed, and the fewest steps.
REACH, FEWEST = 0.75, 3


@final
@dataclass(frozen=True, kw_only=True)
class RateRange:
    """The loss of each step, and the learning rate that it had."""

    rates: tuple[float, ...]
    losses: tuple[float, ...]

    @property
    def smoothed(self) -> np.ndarray:
        """The losses, smoothed by a parabola through each step and its neighbours, (steps,).

        Cleveland 1979, "Robust Locally Weighted Regression and Smoothing Scatterplots", without its
        repeats. A mean over the past would lag: its lowest point comes after that of the losses.
        """
        decades, losses = np.log10(self.rates), np.array(self.losses)
        spacing = (decades[-1] - decades[0]) / (len(decades) - 1)
        reach = max(REACH, (FEWEST + 1) * spacing)
        smoothed = []
        for decade in decades:
            nearness = np.maximum(0, 1 - (np.abs(decades - decade) / reach) ** 3) ** 3
            # `polyfit` multiplies residuals, before it squares them.
            curve = np.polyfit(decades - decade, losses, 2, w=np.sqrt(nearness))
            smoothed.append(curve[-1])
        return np.array(smoothed)

    @property
    def best(self) -> float:
        """The rate of the lowest smoothed loss."""
        return self.rates[int(self.smoothed.argmin())]

    @property
    def advised(self) -> float:
        """A tenth of it, to two digits: at the best rate itself training is about to diverge."""
        return float(f"{SHARE * self.best:.1e}")

    @property
    def steepest(self) -> float:
        """The rate at which the smoothed loss falls fastest, below the best one."""
        end = max(int(self.smoothed.argmin()), 2)
        slopes = np.gradient(self.smoothed[: end + 1], np.log(self.rates[: end + 1]))
        return self.rates[int(slopes.argmin())]

    def __str__(self) -> str:
        ended = f"The loss diverged at {self.rates[-1]:.1e}. " if self.has_diverged else ""
        return (
            f"The loss falls fastest at a learning rate of {self.steepest:.1e}, and is lowest at "
            f"{self.best:.1e}. {ended}Try learning_rate = {self.advised:g}, a tenth of that of the "
            "lowest loss."
        )

    @property
    def has_diverged(self) -> bool:
        """Whether the steps ended because the loss did."""
        return _diverged(self.losses[-1], min(self.losses))


def measure_rates(
    config: RunConfig,
    folder: Path,
    *,
    lowest: float,
    highest: float,
    steps: int,
    progress: Callable[[], object] = lambda: None,
) -> RateRange:
    """Return the losses of steps at learning rates from the lowest to the highest.

    Everything runs on one device, with the global batch of the configuration. The weights are lost.

    Args:
        folder: For the record of the data; may be removed afterwards.
        progress: Is called after each step.
    """
    rates = np.geomspace(lowest, highest, steps).tolist()
    backend: Any = SingleDevice(Launch())
    attempt = start(_alone(config, steps), backend, folder, nobody_asks)
    data = open_data(attempt)
    network = build(attempt, data, Whole(attempt, data))
    model = network.model
    run = Steps(attempt, data, network, (), 0)
    losses: list[float] = []
    for rate in rates:
        model.optimizer.learning_rate = rate
        # Keras's losses are means since the last reset.
        model.reset_metrics()
        loss = float(run.take(run.batches)["logs"]["loss"].numpy().mean())
        if not math.isfinite(loss):
            break
        losses.append(loss)
        progress()
        if _diverged(loss, min(losses)):
            break
    attempt.stop()
    if len(losses) < 3:
        raise ValueError(
            f"The loss was not finite, or diverged, after {len(losses)} steps. Give a smaller "
            f"--lowest than {lowest:g}."
        )
    return RateRange(rates=tuple(rates[: len(losses)]), losses=tuple(losses))


def _diverged(loss: float, least: float) -> bool:
    return loss > DIVERGED * abs(least) and loss > least


def _alone(config: RunConfig, steps: int) -> RunConfig:
    """Return a configuration of one device whose rate nothing but this module changes."""
    return replace(
        config,
        backend="single",
        backend_options={},
        num_replicas=1,
        processes=None,
        cores_per_replica=None,
        split=(),
        stages=1,
        micro_batches=1,
        schedule="1f1b",
        balance="time",
        recompute=False,
        replica_batch=None,
        global_batch=config.global_samples,
        scale_learning_rate=False,
        warmup_epochs=0.0,
        decay_epochs=(),
        learning_rate_schedule=None,
        metrics=(),
        callbacks=(),
        tournament={},
        elastic=False,
        trace=False,
        profile=False,
        time_parts=False,
        cpu_memory=None,
        swap="none",
        steps=steps,
    )
