"""The layout of a run: the keys that say where and in which parts it computes, not what. Pure."""

import json
import math
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from itertools import product
from typing import Any, final

from tfunet.backend import FACTS
from tfunet.config.memory_keys import SWAP_KEYS
from tfunet.config.placement_keys import SCHEDULES
from tfunet.config.run import RunConfig

# Up to so many devices, every smaller number is tried, too.
FEW_DEVICES = 8
LEAST_SHARE = 16
MOST_STAGES = 16
MOST_PARTS = 16
MOST_MICRO_BATCHES = 128
# Micro-batches for each stage.
MOST_WAVES, MOST_ROUNDS = 8, 4
# Along an axis, by the number of axes; and how much longer one side of a grid may be.
MOST_TILES = {2: 64, 3: 16}
MOST_STRETCH = 2


@final
@dataclass(frozen=True, kw_only=True)
class Layout:
    """Keys of a run as `RunConfig` has them; the samples of a step, and its result, do not change.

    Args:
        swap: The limit of a device's memory, such as "12GiB"; None without large-model support.
    """

    backend: str = "single"
    num_replicas: int = 1
    split: tuple[int, ...] = ()
    stages: int = 1
    micro_batches: int = 1
    schedule: str = "1f1b"
    recompute: bool = False
    tiling: tuple[int, ...] = ()
    accumulation: int = 1
    swap: str | None = None

    @classmethod
    def of(cls, config: RunConfig) -> "Layout":
        """Return the layout of a configuration."""
        return cls(**{key.name: getattr(config, key.name) for key in fields(cls)})

    @property
    def parts(self) -> int:
        """Parts of a sample."""
        return math.prod(self.split)

    @property
    def num_tiles(self) -> int:
        """Tiles of a sample."""
        return math.prod(self.tiling)

    @property
    def num_devices(self) -> int:
        """Devices of all replicas."""
        return self.num_replicas * self.parts * self.stages

    def applied(self, config: RunConfig) -> RunConfig:
        """Return the configuration in this layout, with the same samples in a step.

        Raises ValueError where the two do not go together.
        """
        changes: dict[str, Any] = {
            **vars(self),
            "global_batch": config.global_samples,
            "replica_batch": None,
            "layout": None,
        }
        before = Layout.of(config)
        if (self.backend, self.num_devices) != (before.backend, before.num_devices):
            changes["processes"] = None
        if self.backend != before.backend:
            changes["backend_options"] = {}
        if (self.stages, self.schedule) != (before.stages, before.schedule):
            changes["balance"] = "time"
        if self.stages == 1:
            changes["batch_norm"] = "micro_batch"
        if self.swap is None:
            changes.update(dict.fromkeys(SWAP_KEYS))
        return replace(config, **changes)

    def words(self, config: RunConfig) -> str:
        """Return the options to type after the run's file, so that it has this layout."""
        after = self.applied(config)
        others = {"global_batch", "replica_batch", "layout", *SWAP_KEYS[1:]}
        given = {
            key: value
            for key, value in vars(after).items()
            if key not in others and value != getattr(config, key)
        }
        if given.get("swap", "") is None:
            given["swap"] = "none"
        if after.replica_samples != config.replica_samples:
            given["replica_batch"] = after.replica_samples
            if after.replica_samples * self.num_replicas != config.global_samples:
                given["global_batch"] = config.global_samples
        return " ".join(f"--{key} {_word(value)}" for key, value in given.items())

    def __str__(self) -> str:
        words = [self.backend]
        if self.num_replicas > 1:
            words.append(f"{self.num_replicas} replicas")
        if self.parts > 1:
            words.append(f"split {_times(self.split)}")
        if self.stages > 1:
            words.append(f"{self.stages} stages of {self.micro_batches} ({self.schedule})")
        if self.recompute:
            words.append("recompute")
        if self.tiling:
            words.append(f"tiles {_times(self.tiling)}")
        if self.accumulation > 1:
            words.append(f"{self.accumulation} passes")
        if self.swap is not None:
            words.append("swap")
        return ", ".join(words)


def _times(parts: Sequence[int]) -> str:
    return " x ".join(map(str, parts))


def _word(value: Any) -> str:
    if value is None:
        return "null"
    return value if isinstance(value, str) else shlex.quote(json.dumps(value))


def layouts(
    config: RunConfig,
    num_devices: int,
    *,
    axes: int,
    tilings: Sequence[tuple[int, ...]] = (),
    most_stages: int = MOST_STAGES,
) -> Iterator[Layout]:
    """Yield the layouts of a run on up to so many devices, that of the run first; none swaps.

    Args:
        axes: Spatial axes of a sample.
        tilings: Those to try.
        most_stages: As many as the network has layers.
    """
    own = replace(Layout.of(config), swap=None)
    yield own
    for layout in _all(config, num_devices, axes, tilings, min(most_stages, MOST_STAGES)):
        if layout != own:
            yield layout


def _all(
    config: RunConfig,
    num_devices: int,
    axes: int,
    tilings: Sequence[tuple[int, ...]],
    most_stages: int,
) -> Iterator[Layout]:
    for count in device_counts(num_devices):
        for stages in divisors(count, most_stages):
            for parts in divisors(count // stages, MOST_PARTS):
                replicas = count // stages // parts
                for split, backend in product(_splits(parts, axes), _backends(config, count)):
                    place = Layout(
                        backend=backend, num_replicas=replicas, split=split, stages=stages
                    )
                    yield from _in_passes(place, config.global_samples)
                    # Tiles in parts are for tiles that no device holds.
                    for tiling in tilings if parts == 1 else ():
                        tiled = replace(place, tiling=tiling)
                        yield from _in_passes(tiled, config.global_samples)


def _in_passes(place: Layout, global_samples: int) -> Iterator[Layout]:
    """Yield the ways to cut the samples of a replica's step into passes."""
    units = global_samples * place.num_tiles
    if units % place.num_replicas:
        yield place  # Is refused.
        return
    counts = divisors(units // place.num_replicas, MOST_MICRO_BATCHES)
    if place.stages == 1:
        yield from (
            replace(place, accumulation=count) for count in ((1,) if place.tiling else counts)
        )
        return
    # With fewer micro-batches most stages wait. More hardly shorten that, and tiles that follow
    # each other in more passes only need less memory.
    most = (MOST_ROUNDS if place.tiling else MOST_WAVES) * place.stages
    counts = _few([one for one in counts if place.stages // 2 <= one <= most] or counts[-1:])
    for count, schedule, recompute in product(counts, SCHEDULES, (False, True)):
        if not recompute or (schedule != "v" and not place.tiling):
            yield replace(place, micro_batches=count, schedule=schedule, recompute=recompute)


def _few(counts: list[int]) -> list[int]:
    """Return some of the counts, each about twice the one before; the last among them."""
    found = counts[-1:]
    for count in reversed(counts):
        if 2 * count <= found[0]:
            found.insert(0, count)
    return found


def device_counts(num_devices: int) -> list[int]:
    """Return how many devices are tried: of many some that divide them, down to a sixteenth."""
    if num_devices <= FEW_DEVICES:
        return list(range(1, num_devices + 1))
    found = divisors(num_devices, num_devices)
    return _few([one for one in found if one * LEAST_SHARE >= num_devices])


def divisors(number: int, most: int) -> list[int]:
    """Return the divisors of a number, up to `most`."""
    return [one for one in range(1, min(number, most) + 1) if number % one == 0]


def _splits(parts: int, axes: int) -> list[tuple[int, ...]]:
    """Return the ways to cut a sample into so many parts, with no more along later axes."""
    if parts == 1:
        return [()]
    return [
        split
        for split in product(divisors(parts, parts), repeat=axes)
        if math.prod(split) == parts and list(split) == sorted(split, reverse=True)
    ]


def _backends(config: RunConfig, count: int) -> tuple[str, ...]:
    if config.backend not in FACTS:
        return (config.backend,)
    return tuple(name for name, facts in FACTS.items() if facts.one_replica == (count == 1))


def tilings_of(axes: int) -> list[tuple[int, ...]]:
    """Return the grids of tiles that are tried, the coarsest first."""
    most = MOST_TILES[axes]
    counts = [2**power for power in range(most.bit_length()) if 2**power <= most]
    found = [
        tiling
        for tiling in product(counts, repeat=axes)
        if math.prod(tiling) > 1 and max(tiling) <= MOST_STRETCH * min(tiling)
    ]
    return sorted(found, key=lambda tiling: (math.prod(tiling), tiling))
