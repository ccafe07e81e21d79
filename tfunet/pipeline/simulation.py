"""When the passes of a step happen on each device, and what each device keeps meanwhile. Pure."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from math import inf

from tfunet.pipeline.balance import Balance
from tfunet.pipeline.chain import Chain
from tfunet.pipeline.schedules import (
    Orders,
    StagePass,
    gpipe,
    homes,
    in_order,
    one_f_one_b,
    waiting,
)


@dataclass(frozen=True, kw_only=True)
class Link:
    """What a message between two devices takes; messages of two devices follow each other."""

    bytes_per_second: float = inf
    seconds: float = 0.0

    def seconds_of(self, num_bytes: int) -> float:
        """Return how long a message takes."""
        return self.seconds + num_bytes / self.bytes_per_second


@dataclass(frozen=True, kw_only=True)
class Work:
    """What the chunks of a network cost for one micro-batch.

    Args:
        forward, backward: Seconds of each chunk.
        devices: The device of each chunk.
        messages: Bytes that a chunk gets straight from an earlier one, by (maker, reader). As many
            bytes of gradients go back.
        kept_bytes: What each chunk keeps from its forward to its backward pass.
    """

    forward: Sequence[float]
    backward: Sequence[float]
    devices: Sequence[int]
    messages: Mapping[tuple[int, int], int]
    kept_bytes: Sequence[int]
    link: Link = Link()

    @property
    def num_devices(self) -> int:
        """Devices that have a chunk."""
        return max(self.devices) + 1

    def seconds(self, action: StagePass) -> float:
        """Return how long a pass takes."""
        return (self.forward if action.kind == "forward" else self.backward)[action.chunk]

    @cached_property
    def readers(self) -> Sequence[Sequence[tuple[int, int]]]:
        """For each chunk, who reads what it makes, and how many bytes."""
        return [
            [(reader, size) for (maker, reader), size in self.messages.items() if maker == chunk]
            for chunk in range(len(self.forward))
        ]

    @cached_property
    def makers(self) -> Sequence[Sequence[tuple[int, int]]]:
        """For each chunk, who makes what it reads, and how many bytes."""
        return [
            [(maker, size) for (maker, reader), size in self.messages.items() if reader == chunk]
            for chunk in range(len(self.forward))
        ]

    def sends(self, action: StagePass) -> Iterator[tuple[StagePass, int]]:
        """Yield the passes that wait for this one, and the bytes that they get from it."""
        kind, chunk, number = action
        for other, size in (self.readers if kind == "forward" else self.makers)[chunk]:
            yield StagePass(kind, other, number), size

    def needs(self, action: StagePass) -> Iterator[StagePass]:
        """Yield the passes that this one waits for."""
        kind, chunk, number = action
        for other, _ in (self.makers if kind == "forward" else self.readers)[chunk]:
            yield StagePass(kind, other, number)
        if kind == "backward":
            yield StagePass("forward", chunk, number)


def work_of(
    chain: Chain, found: Balance, link: Link, recomputed: Sequence[float] | None = None
) -> Work:
    """Return what the chunks of a cut cost; `recomputed` as in `balance`."""
    chunks = chain.stages(found.cuts)
    messages: dict[tuple[int, int], int] = {}
    for reader, chunk in enumerate(chunks):
        for tensor, num_bytes in chunk.receives.items():
            layer = chain.makers[tensor]
            maker = next(at for at, part in enumerate(chunks) if part.begin <= layer < part.end)
            messages[maker, reader] = messages.get((maker, reader), 0) + num_bytes
    shares = recomputed or [0.0] * len(chunks)
    pairs = list(zip(chunks, shares, strict=True))
    return Work(
        forward=[chunk.forward_seconds for chunk in chunks],
        backward=[chunk.backward_seconds + share * chunk.forward_seconds for chunk, share in pairs],
        devices=found.devices,
        messages=messages,
        kept_bytes=[chunk.input_bytes if share else chunk.kept_bytes for chunk, share in pairs],
        link=link,
    )


@dataclass(frozen=True, kw_only=True)
class Event:
    """A pass on a device."""

    action: StagePass
    device: int
    begin: float
    end: float


@dataclass(frozen=True, kw_only=True)
class Simulation:
    """A simulated step.

    Args:
        events: All passes, in the order in which they begin.
        busy_seconds: For each device.
        peak_micro_batches: The most chunks with a micro-batch between its passes, for each device.
        peak_bytes: The most bytes of what each device keeps, with what has come and waits.
        sent_bytes: For each device.
    """

    events: tuple[Event, ...]
    step_seconds: float
    busy_seconds: tuple[float, ...]
    peak_micro_batches: tuple[int, ...]
    peak_bytes: tuple[int, ...]
    sent_bytes: tuple[int, ...]

    @property
    def bubble(self) -> float:
        """The share of the devices' time in which they wait."""
        whole = self.step_seconds * len(self.busy_seconds)
        return 1 - sum(self.busy_seconds) / whole if whole else 0.0

    @property
    def orders(self) -> Orders:
        """What each device does, one after the other."""
        devices = {event.action.chunk: event.device for event in self.events}
        actions = [event.action for event in self.events]
        return in_order(actions, len(self.busy_seconds), devices)


class _Run:
    """The state of a simulated step."""

    def __init__(self, work: Work) -> None:
        self.work = work
        self.free = [0.0] * work.num_devices
        self.done: dict[StagePass, float] = {}
        self.events: list[Event] = []
        self._arrived: dict[tuple[StagePass, StagePass], float] = {}
        self._sent_until: dict[tuple[int, int], float] = {}
        self.sent_bytes = [0] * work.num_devices
        # (seconds, order, device, bytes): what comes and goes.
        self._changes: list[tuple[float, int, int, int]] = []

    def ready(self, action: StagePass) -> float | None:
        """Return when all is there that a pass needs, or None if that is not known yet."""
        latest = 0.0
        for before in self.work.needs(action):
            if before not in self.done:
                return None
            latest = max(latest, self._arrived.get((before, action), self.done[before]))
        return latest

    def begin(self, action: StagePass, at: float) -> None:
        """Let a device do a pass."""
        work, device = self.work, self.work.devices[action.chunk]
        end = at + work.seconds(action)
        self.events.append(Event(action=action, device=device, begin=at, end=end))
        self.done[action] = self.free[device] = end
        kept = work.kept_bytes[action.chunk]
        if action.kind == "forward":
            self._changes.append((at, 1, device, kept))
        else:
            self._changes.append((end, 0, device, -kept))
        for reader, size in work.sends(action):
            other = work.devices[reader.chunk]
            if other == device:
                continue
            # A link is busy with one message after the other.
            begun = max(end, self._sent_until.get((device, other), 0.0))
            arrived = begun + work.link.seconds_of(size)
            self._sent_until[device, other] = self._arrived[action, reader] = arrived
            self.sent_bytes[device] += size
            self._changes.append((arrived, 1, other, size))
        for before in work.needs(action):
            if (before, action) in self._arrived:
                size = dict(work.sends(before))[action]
                self._changes.append((at, 0, device, -size))

    def result(self) -> Simulation:
        """Return the finished step."""
        events = sorted(self.events, key=lambda event: (event.begin, event.end))
        devices = range(self.work.num_devices)
        passes = [[event for event in events if event.device == device] for device in devices]
        return Simulation(
            events=tuple(events),
            step_seconds=max(self.free),
            busy_seconds=tuple(sum(event.end - event.begin for event in own) for own in passes),
            peak_micro_batches=tuple(
                max(accumulate(1 if event.action.kind == "forward" else -1 for event in own))
                for own in passes
            ),
            peak_bytes=tuple(self._peak_bytes(device) for device in devices),
            sent_bytes=tuple(self.sent_bytes),
        )

    def _peak_bytes(self, device: int) -> int:
        changes = sorted(change for change in self._changes if change[2] == device)
        return max(accumulate(size for *_, size in changes), default=0)


def simulate(orders: Orders, work: Work) -> Simulation:
    """Return when the passes happen if each device does its own in this order.

    Raises ValueError if devices wait for each other for ever.
    """
    run = _Run(work)
    at = [0] * work.num_devices
    waiting = set(range(work.num_devices))
    while waiting:
        went_on = False
        for device in sorted(waiting):
            while at[device] < len(orders[device]):
                action = orders[device][at[device]]
                ready = run.ready(action)
                if ready is None:
                    break
                run.begin(action, max(ready, run.free[device]))
                at[device] += 1
                went_on = True
            if at[device] == len(orders[device]):
                waiting.discard(device)
        if waiting and not went_on:
            stuck = ", ".join(
                f"device {device} before {_said(orders[device][at[device]])}" for device in waiting
            )
            raise ValueError(f"The devices wait for each other for ever: {stuck}.")
    return run.result()


def _said(action: StagePass) -> str:
    return f"the {action.kind} pass of micro-batch {action.micro_batch} in chunk {action.chunk}"


def greedy(work: Work, micro_batches: int, in_flight: int) -> Simulation:
    """Return a step in which every device does what it can, forward and backward passes in turn.

    At most `in_flight` micro-batches are between their first forward and last backward pass, so
    that memory is bounded. None of them ever waits for one that has not begun: nothing can hang.
    """
    run = _Run(work)
    chunks = range(len(work.forward))
    following = {(kind, chunk): 0 for kind in ("forward", "backward") for chunk in chunks}
    last_kind: dict[int, str] = {}
    known: dict[StagePass, float] = {}
    for _ in range(2 * len(work.forward) * micro_batches):
        best: tuple[float, bool, int, StagePass] | None = None
        for kind, chunk in following:
            # For mypy, a key of `following` is any text.
            action = StagePass(kind, chunk, following[kind, chunk])  # type: ignore[arg-type]
            if action.micro_batch >= micro_batches:
                continue
            ready = known.get(action)
            if ready is None:
                ready = run.ready(action)
                if ready is None:
                    continue
                known[action] = ready
            if kind == "forward" and chunk == 0 and action.micro_batch >= in_flight:
                last = run.done.get(StagePass("backward", 0, action.micro_batch - in_flight))
                if last is None:
                    continue
                ready = max(ready, last)
            device = work.devices[chunk]
            # The earliest wins, then another kind than the last, then what is nearest to its end.
            is_again = kind == last_kind.get(device, "backward")
            place = -chunk if kind == "forward" else chunk
            candidate = (max(ready, run.free[device]), is_again, place, action)
            if best is None or candidate < best:
                best = candidate
        if best is None:
            raise ValueError("No pass can begin: a chunk reads what a later one makes.")
        begin, _, _, action = best
        run.begin(action, begin)
        following[action.kind, action.chunk] += 1
        last_kind[work.devices[action.chunk]] = action.kind
    return run.result()


def scheduled(schedule: str, work: Work, micro_batches: int) -> Simulation:
    """Return the simulated step of a schedule.

    With `v` at most twice as many micro-batches as devices are in flight. It is the faster of two
    orders: that which does what can be done at once, and that of passes which all take as long.
    """
    if schedule == "gpipe":
        return simulate(gpipe(work.num_devices, micro_batches), work)
    if schedule == "1f1b":
        return simulate(one_f_one_b(work.num_devices, micro_batches), work)
    steps = [
        greedy(work, micro_batches, 2 * work.num_devices),
        simulate(_alike(work, micro_batches), work),
    ]
    return min(steps, key=lambda step: step.step_seconds)


def training_orders(
    schedule: str, num_devices: int, micro_batches: int, crossing: Iterable[tuple[int, int]]
) -> Orders:
    """Return what each device does in training, whatever a pass takes.

    `crossing` has the pairs of chunks (maker, reader) between which tensors go.
    """
    if schedule != "v":
        make = {"gpipe": gpipe, "1f1b": one_f_one_b}[schedule]
        return make(num_devices, micro_batches)
    devices = homes(schedule, num_devices)
    work = Work(
        forward=[1.0] * len(devices),
        backward=[1.0] * len(devices),
        devices=devices,
        messages=dict.fromkeys(crossing, 0),
        kept_bytes=[0] * len(devices),
    )
    return _alike(work, micro_batches)


def recomputed_shares(schedule: str, num_stages: int, micro_batches: int) -> list[float]:
    """Return the share of the micro-batches whose forward pass each stage makes twice."""
    again = waiting(training_orders(schedule, num_stages, micro_batches, ()))
    return [len(again.get(stage, ())) / micro_batches for stage in range(num_stages)]


def _alike(work: Work, micro_batches: int) -> Orders:
    """Return the orders that are best if all passes take as long, and messages no time."""
    same = [1.0] * len(work.forward)
    given = replace(work, forward=same, backward=same, link=Link())
    return greedy(given, micro_batches, 2 * work.num_devices).orders
