"""Ranks the layouts of a run: which is best, why, and what would make it faster. Pure."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import final

from tfunet.config.amount import MIB
from tfunet.config.run import RunConfig
from tfunet.geometry.grid import grid
from tfunet.performance.devices import Device
from tfunet.pipeline.balance import NoBalanceError
from tfunet.plan.facts import RunFacts
from tfunet.plan.layout import Layout, layouts, tilings_of
from tfunet.plan.machine import Machine
from tfunet.plan.predict import Predictor
from tfunet.plan.prediction import Prediction
from tfunet.plan.refusal import Refusals

# Times that differ by less are alike: the layout with fewer devices, then the simpler one, is
# taken.
ALIKE = 0.01
# As many of the best are asked what another machine would give.
ASKED_AGAIN = 40
# Keys of a layout that do not say where it computes.
PASSES = ("accumulation", "micro_batches", "schedule", "recompute")
# The schedules of as many of the best layouts are played through; the others are estimated.
PLAYED = 60


@final
@dataclass(frozen=True, kw_only=True)
class Refused:
    """A layout that cannot be, and why."""

    layout: Layout
    reason: str


@final
@dataclass(frozen=True, kw_only=True)
class Ranking:
    """The layouts of a run on a machine.

    Args:
        fitting: Those that fit, the best first.
        others: Those that do not, or not surely, the nearest first.
        refused: For each reason the first layout that it refuses.
        num_refused: Layouts that were refused.
        what_if: The seconds of a step with one device more, a link or a memory twice as large, by
            name, where that is another time.
    """

    config: RunConfig
    facts: RunFacts
    machine: Machine
    fitting: tuple[Prediction, ...]
    others: tuple[Prediction, ...]
    refused: tuple[Refused, ...]
    num_refused: int
    what_if: tuple[tuple[str, float], ...] = ()

    @property
    def best(self) -> Prediction | None:
        """The layout to take; None if none fits."""
        return self.fitting[0] if self.fitting else None


def ranked(
    config: RunConfig,
    facts: RunFacts,
    machine: Machine,
    *,
    num_devices: int | None = None,
    missing: dict[str, str] | None = None,
    progress: Callable[[int], None] = lambda count: None,
) -> Ranking:
    """Return the layouts of a run, ranked.

    Args:
        num_devices: As many may be used; by default all of the machine.
        missing: By backend, why it cannot be used.
        progress: Is told how many layouts were looked at.
    """
    most = machine.num_devices if num_devices is None else num_devices
    predictor = Predictor(facts, machine, quick=True)
    refusals = Refusals(config, facts, machine, missing or {})
    found: list[Prediction] = []
    reasons: dict[str, Refused] = {}
    num_refused = 0
    for number, layout in enumerate(_tried(config, facts, most)):
        progress(number)
        for one in _with_swap(layout, config, predictor, refusals):
            if isinstance(one, Refused):
                num_refused += 1
                reasons.setdefault(one.reason, one)
            else:
                found.append(one)
    found = _played(found, replace(predictor, quick=False))
    fitting = by_time([one for one in found if one.fits])
    ranking = Ranking(
        config=config,
        facts=facts,
        machine=machine,
        fitting=tuple(fitting),
        others=tuple(sorted((one for one in found if not one.fits), key=_excess)),
        refused=tuple(_shortest(reasons.values())),
        num_refused=num_refused,
    )
    return replace(ranking, what_if=tuple(_what_if(ranking, predictor, refusals, most)))


def _played(found: Sequence[Prediction], predictor: Predictor) -> list[Prediction]:
    """Return predictions, the best of them with schedules played through."""
    near = sorted(found, key=lambda one: (not one.fits, one.seconds))[:PLAYED]
    near += sorted((one for one in found if not one.fits), key=_excess)[:ASKED_AGAIN]
    kept = {id(one) for one in near}
    return [
        predictor.predict(one.layout) if id(one) in kept and one.layout.stages > 1 else one
        for one in found
    ]


def corrected(ranking: Ranking, factor: Callable[[Layout], float]) -> Ranking:
    """Return a ranking in which the seconds of each layout are so many times as long."""

    def longer(one: Prediction) -> Prediction:
        times = factor(one.layout)
        return replace(
            one,
            parts=one.parts.times(times),
            samples_per_second=one.samples_per_second / times,
            device_hours=one.device_hours * times,
        )

    return replace(
        ranking,
        fitting=tuple(by_time(map(longer, ranking.fitting))),
        others=tuple(map(longer, ranking.others)),
    )


def by_time(predictions: Iterable[Prediction]) -> list[Prediction]:
    """Return predictions from the fastest on; of those alike, the simplest comes first."""
    left = sorted(predictions, key=lambda one: one.seconds)
    ordered: list[Prediction] = []
    while left:
        alike = [one for one in left if one.seconds <= left[0].seconds * (1 + ALIKE)]
        first = min(alike, key=lambda one: (one.layout.num_devices, _complexity(one.layout)))
        ordered.append(first)
        left.remove(first)
        # Only the first places are worth this.
        if len(ordered) >= ASKED_AGAIN:
            return [*ordered, *left]
    return ordered


def _complexity(layout: Layout) -> int:
    plain = Layout()
    return sum(value != getattr(plain, key) for key, value in vars(layout).items())


def _excess(one: Prediction) -> float:
    return one.num_bytes / one.limit_bytes


def _tried(config: RunConfig, facts: RunFacts, most: int) -> Iterator[Layout]:
    """Yield the layouts to look at; of tiles or stages one, where there can be none."""
    axes = len(facts.patch)
    tilings = tilings_of(axes) if axes in (2, 3) else []
    possible = [] if facts.why_no_tiles else [one for one in tilings if _can_tile(one, facts)]
    yield from layouts(
        config,
        most,
        axes=axes,
        tilings=possible,
        most_stages=1 if facts.why_no_stages else facts.num_layers,
    )
    if tilings and len(possible) < len(tilings):
        yield Layout(tiling=next(one for one in tilings if one not in possible))
    if facts.why_no_stages and most > 1:
        yield Layout(backend="multiworker", stages=2)


def _can_tile(tiling: tuple[int, ...], facts: RunFacts) -> bool:
    try:
        cut = grid(facts.patch, tiling, facts.halo, facts.alignment)
    except ValueError:
        return False
    return not cut.is_finer_than_halo


def _with_swap(
    layout: Layout, config: RunConfig, predictor: Predictor, refusals: Refusals
) -> Iterator[Prediction | Refused]:
    """Yield what a layout takes, and where it does not fit the same with large-model support."""
    if (reason := refusals.reason(layout)) is not None:
        yield Refused(layout=layout, reason=reason)
        return
    try:
        predicted = predictor.predict(layout)
    except NoBalanceError as error:
        yield Refused(layout=layout, reason=str(error))
        return
    yield predicted
    if predicted.fits:
        return
    swapping = replace(layout, swap=f"{predicted.limit_bytes // MIB}MiB")
    if (reason := refusals.reason(swapping)) is not None:
        yield Refused(layout=swapping, reason=reason)
    else:
        yield predictor.predict(swapping)


def _shortest(refused: Iterable[Refused]) -> list[Refused]:
    """Return one layout for each kind of reason: reasons that only differ in numbers are alike."""
    kinds: dict[str, Refused] = {}
    for one in refused:
        kind = "".join(letter for letter in one.reason if not letter.isdigit())[:40]
        kinds.setdefault(kind, one)
    return list(kinds.values())


def _what_if(
    ranking: Ranking, predictor: Predictor, refusals: Refusals, most: int
) -> Iterator[tuple[str, float]]:
    """Yield what another machine would give to the best layouts."""
    best, machine = ranking.best, ranking.machine
    if best is None:
        return
    for name, other, count in (
        ("one device more", _larger(machine, most), most + 1),
        ("a link twice as fast", _faster(machine), most),
        ("twice the memory", _roomier(machine), most),
    ):
        predictor = replace(predictor, machine=other)
        asked = replace(refusals, machine=other)
        candidates: Iterable[Layout]
        if count > most:
            candidates = (
                one
                for one in _tried(ranking.config, ranking.facts, count)
                if one.num_devices == count
            )
        else:
            candidates = [
                replace(one.layout, swap=None)
                for one in (*ranking.fitting[:ASKED_AGAIN], *ranking.others[:ASKED_AGAIN])
            ]
        seconds = min(
            (
                one.seconds
                for layout in candidates
                for one in _with_swap(layout, ranking.config, predictor, asked)
                if isinstance(one, Prediction) and one.fits
            ),
            default=None,
        )
        if seconds is not None and seconds < best.seconds * (1 - ALIKE):
            yield name, seconds


def _larger(machine: Machine, most: int) -> Machine:
    """Return a machine with room for one device more."""
    if most < machine.num_devices:
        return machine
    if machine.hosts > 1:
        return replace(machine, hosts=machine.hosts + 1)
    return replace(machine, devices=machine.devices + 1, cores=machine.cores + machine.is_cpu)


def _roomier(machine: Machine) -> Machine:
    limit = machine.limit_bytes
    return replace(
        machine,
        memory_bytes=2 * machine.memory_bytes,
        limit_bytes=None if limit is None else 2 * limit,
    )


def _faster(machine: Machine) -> Machine:
    device: Device = machine.device
    peer = device.peer_bytes_per_second
    return replace(
        machine,
        device=replace(
            device,
            link_bytes_per_second=2 * device.link_bytes_per_second,
            peer_bytes_per_second=peer and 2 * peer,
        ),
        across=machine.across._replace(bytes_per_second=2 * machine.across.bytes_per_second),
        averages={name: curve.faster(2) for name, curve in machine.averages.items()},
        exchanges={name: curve.faster(2) for name, curve in machine.exchanges.items()},
    )


def short_list(ranking: Ranking, count: int) -> list[Prediction]:
    """Return the layouts to measure: the best ones that differ in more than their passes."""
    chosen: list[Prediction] = []
    for one in ranking.fitting:
        if len(chosen) == count:
            break
        if not any(_is_near(one.layout, other.layout) for other in chosen):
            chosen.append(one)
    return chosen


def _is_near(first: Layout, second: Layout) -> bool:
    """Whether two layouts only differ in how samples follow each other on the same devices."""
    plain = Layout()
    same = {key: getattr(plain, key) for key in PASSES}
    return replace(first, **same) == replace(second, **same)
