"""A plan of a run on this machine or another, with what is known and measured of them."""

import contextlib
import hashlib
import json
import math
import os
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, final

from tfunet.backend import FACTS
from tfunet.bench import machine_constants
from tfunet.bench.machine_constants import Constants
from tfunet.bench.short_runs import Measurement, measure
from tfunet.config.amount import MIB
from tfunet.config.run import RunConfig
from tfunet.connection import own_place
from tfunet.plan.facts import sample_counts
from tfunet.plan.here import missing, this_machine, usable_backends
from tfunet.plan.layout import Layout, device_counts
from tfunet.plan.machine import Machine
from tfunet.plan.prediction import Prediction
from tfunet.record import RunFolder

if TYPE_CHECKING:
    from tfunet.plan.rank import Ranking

Say = Callable[[str], None]
LEVEL = "TF_CPP_MIN_LOG_LEVEL"
# What is proposed to a run that did not fit takes so much less.
LESS = 0.8
# Keys on which the time of a step hangs, beside those of its layout.
OF_A_STEP = (
    *("model", "model_options", "data", "data_options", "patch", "augmentation", "pipeline"),
    *("global_samples", "loss", "optimizer", "precision", "xla", "cores_per_replica"),
)


@final
@dataclass(frozen=True, kw_only=True)
class Plan:
    """A ranking, and what was measured of its first layouts.

    Args:
        measurements: In the order of the predictions; empty if nothing was measured.
        corrections: By kind of layout, the measured over the predicted time of earlier steps here,
            by which the predictions were corrected.
    """

    ranking: "Ranking"
    measurements: tuple[Measurement, ...] = ()
    corrections: tuple[tuple[str, float], ...] = ()

    @property
    def best(self) -> Prediction | None:
        """The layout to take: the fastest that was measured, or else predicted."""
        known = [one for one in self.measurements if one.seconds]
        if known:
            return min(known, key=lambda one: one.median).predicted
        return self.ranking.best


def make_plan(
    config: RunConfig,
    machine: Machine,
    *,
    is_here: bool,
    num_devices: int | None = None,
    num_measured: int = 0,
    noted: Sequence[int] = (),
    say: Say = lambda line: None,
    progress: Callable[[int], None] = lambda count: None,
) -> Plan:
    """Return the plan of a run.

    Args:
        is_here: Whether the machine is this one, whose constants may be known.
        num_measured: As many of the best layouts are measured, with short runs; 0 uses no device.
        noted: Gets a signal's number while something is measured.

    Raises ValueError for a run that cannot be planned.
    """
    constants = machine_constants.read() if is_here else None
    timed: dict[int, dict[str, Any]] = {}
    if constants is not None and num_measured:
        constants, timed = _measured_here(config, machine, constants, num_devices, say, noted)
    if constants is not None:
        machine = constants.applied(machine)
    if not timed:
        machine = replace(machine, estimates=(*machine.estimates, "time to prepare a sample"))
    with _quiet():  # TensorFlow is imported from here on.
        from tfunet.plan.gather import as_measured, gather
        from tfunet.plan.rank import corrected, ranked, short_list
        from tfunet.plan.swapped import with_plans

    facts = gather(
        config,
        machine.device,
        measured={
            cores: as_measured(machine.device, one["tables"]) for cores, one in timed.items()
        },
        # With all cores, they compete with no other process.
        sample_seconds=timed[max(timed)]["sample_seconds"] if timed else None,
        say=say,
    )
    lacking = {name: why for name in FACTS if is_here and (why := missing(name))}
    ranking = ranked(
        config, facts, machine, num_devices=num_devices, missing=lacking, progress=progress
    )
    corrections = _corrections(constants, ranking)
    # What is not measured yet errs as what is: or else it would look better, or worse, than that.
    others = statistics.median(corrections.values()) if corrections else 1.0
    ranking = corrected(ranking, lambda layout: corrections.get(kind_of(layout), others))
    ranking = with_plans(ranking, say)
    if not num_measured or constants is None or ranking.best is None:
        return Plan(ranking=ranking, corrections=tuple(corrections.items()))
    chosen = short_list(ranking, num_measured)
    found = measure(config, chosen, noted, say=say)
    return Plan(ranking=ranking, measurements=tuple(found), corrections=tuple(corrections.items()))


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Let TensorFlow print no messages of its own, unless the user asked for some."""
    if LEVEL in os.environ:
        yield
        return
    os.environ[LEVEL] = "3"
    try:
        yield
    finally:
        del os.environ[LEVEL]  # Processes of a run have their own.


def _measured_here(
    config: RunConfig,
    machine: Machine,
    constants: Constants,
    num_devices: int | None,
    say: Say,
    noted: Sequence[int],
) -> tuple[Constants, dict[int, dict[str, Any]]]:
    """Return the constants of this machine, and what the run's layers take on its cores."""
    if not machine.is_cpu:
        return constants, {}
    if constants.is_stale():
        constants = machine_constants.measured(constants, usable_backends(), say, noted)
        if not noted:
            machine_constants.keep(constants)
    samples = sample_counts(config.global_samples)
    counts = device_counts(min(num_devices or machine.devices, machine.cores))
    alone = Layout().applied(config)
    return constants, machine_constants.measured_layers(alone, samples, counts, say, noted)


def in_best_layout(config: RunConfig, folder: RunFolder, say: Say) -> RunConfig:
    """Return a run with `layout = "auto"` in the best layout of this machine, and write what it is
    predicted to take into its folder; a run that goes on keeps its layout.

    Raises ValueError where none fits, and under launchers, which have started the processes.
    """
    from tfunet.plan.text import nothing_fits, prediction_json

    place = own_place()
    if place is not None and place.count > 1:
        raise ValueError(
            "layout = 'auto' chooses how many processes there are, and a launcher has started "
            f"{place.count}. Run `tfunet plan` first, and give the keys that it says."
        )
    before = folder.read_predicted()
    if before is not None:
        return Layout(**{key: _read(value) for key, value in before["layout"].items()}).applied(
            config
        )
    plan = make_plan(config, this_machine(config), is_here=True, say=say)
    best = plan.best
    if best is None:
        raise ValueError(nothing_fits(plan.ranking))
    folder.create()
    folder.write_predicted(prediction_json(best))
    print(
        f"layout = 'auto': {best.layout}, predicted {1e3 * best.seconds:.0f} ms a step and "
        f"{best.num_bytes / MIB:,.0f} MiB on a device.",
        flush=True,
    )
    return best.layout.applied(config)


def _read(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def note_measured(folder: RunFolder) -> None:
    """Keep what the steps of a run took, for later plans of the same run on this machine."""
    result, config = folder.read_result(), folder.read_config()
    if result is None or config is None or result["median_step_seconds"] is None:
        return
    layout, constants = Layout.of(config), machine_constants.read()
    step = {
        "run": _run_of(config),
        "layout": str(layout),
        "kind": kind_of(layout),
        "measured": result["median_step_seconds"],
    }
    steps = [*constants.steps, step][-machine_constants.MOST_STEPS :]
    machine_constants.keep(replace(constants, steps=steps))


def that_fits(config: RunConfig, run: str, say: Say) -> str:
    """Return the line to type for the first layout that takes clearly less than the run, which ran
    out of memory; empty if none does.
    """
    from tfunet.plan.text import line

    given = replace(config, layout=None)
    plan = make_plan(given, this_machine(given), is_here=True, say=say)
    ranking = plan.ranking
    own = next(
        (
            one
            for one in (*ranking.fitting, *ranking.others)
            if one.layout == replace(Layout.of(given), swap=None)
        ),
        None,
    )
    most = math.inf if own is None else LESS * own.num_bytes
    best = next((one for one in ranking.fitting if one.num_bytes <= most), None)
    return "" if best is None else line(ranking, best, run)


def kind_of(layout: Layout) -> str:
    """Return the kind of layout whose steps are corrected alike: the backend and its ways."""
    words = [layout.backend]
    words += ["replicas"] if layout.num_replicas > 1 else []
    words += ["split"] if layout.parts > 1 else []
    words += ["stages"] if layout.stages > 1 else []
    words += ["tiles"] if layout.tiling else []
    return " ".join(words)


def _corrections(constants: Constants | None, ranking: "Ranking") -> dict[str, float]:
    """Return by kind of layout the median of measured over predicted steps of this run here."""
    if constants is None:
        return {}
    predicted = {str(one.layout): one.seconds for one in (*ranking.fitting, *ranking.others)}
    run = _run_of(ranking.config)
    ratios: dict[str, list[float]] = {}
    for step in constants.steps:
        if step.get("run") == run and step["layout"] in predicted:
            ratio = step["measured"] / predicted[step["layout"]]
            ratios.setdefault(step["kind"], []).append(ratio)
    return {kind: statistics.median(found) for kind, found in ratios.items()}


def _run_of(config: RunConfig) -> str:
    """Return what names the steps of a run in all its layouts, with the software they run on."""
    keys = [str(getattr(config, name)) for name in OF_A_STEP]
    text = json.dumps([keys, machine_constants.software()], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
