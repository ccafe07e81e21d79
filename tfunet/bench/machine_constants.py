"""What is known of this machine for plans: measured once, and kept in the cache folder."""

import contextlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, final

from tfunet.bench.launch.one_trial import execute
from tfunet.bench.study.toml_writer import config_toml
from tfunet.config.run import RunConfig
from tfunet.files.atomic import WriteError, write_atomic
from tfunet.files.home import cache_home
from tfunet.files.typed import RecordError, read_json
from tfunet.machine.cores import usable_cores
from tfunet.machine.environment import environment
from tfunet.performance.devices import BYTES_SHARE, CONVOLUTION_SHARE, Device
from tfunet.plan.here import load
from tfunet.plan.machine import CORE, Curve, Machine

SCRIPT = Path(__file__).with_name("timing_script.py")
FILE = "machine.json"
# What the layers of a network reach of a convolution and of sums that are timed alone: most have
# fewer channels, and read what the last one wrote. From networks that were measured.
OF_CONVOLUTIONS, OF_SUMS = 0.7, 0.4
# Cores that others used while constants were measured.
QUIET_LOAD = 0.5
# Steps are kept up to this number.
MOST_STEPS = 200


@final
@dataclass(frozen=True, kw_only=True)
class Constants:
    """Constants of a machine.

    Args:
        software: Versions and cores for which they hold.
        date: When they were measured.
        load: Cores that others used then.
        core: What a core computes alone, floating-point operations and bytes a second.
        busy: How much longer it takes while all cores compute.
        averages, exchanges: By backend, pairs of bytes and seconds, with two devices.
        steps: Measured seconds of the steps of runs, with the layout and its kind.
    """

    software: dict[str, Any]
    date: str = ""
    load: float = 0.0
    core: dict[str, float] = field(default_factory=dict)
    busy: float | None = None
    averages: dict[str, list[list[float]]] = field(default_factory=dict)
    exchanges: dict[str, list[list[float]]] = field(default_factory=dict)
    steps: list[dict[str, Any]] = field(default_factory=list)

    def applied(self, machine: Machine) -> Machine:
        """Return a machine whose cores compute, with what was measured instead of estimates."""
        if not machine.is_cpu:
            return machine
        missing = [one for one in machine.estimates if not self._knows(one)]
        told = [*missing, *self.doubts()]
        core = machine.device
        if self.core:
            flops = OF_CONVOLUTIONS * self.core["flops_per_second"] / CONVOLUTION_SHARE
            core = Device(
                memory_bytes=core.memory_bytes,
                flops_per_second=flops,
                half_flops_per_second=flops,
                bytes_per_second=OF_SUMS * self.core["bytes_per_second"] / BYTES_SHARE,
                link_bytes_per_second=CORE.link_bytes_per_second,
                source=f"a core of this machine, measured {self.date}",
            )
        return replace(
            machine,
            device=core,
            averages={name: _curve(rows) for name, rows in self.averages.items()},
            exchanges={name: _curve(rows) for name, rows in self.exchanges.items()},
            busy=machine.busy if self.busy is None else self.busy,
            estimates=tuple(told),
        )

    def _knows(self, estimate: str) -> bool:
        if estimate.startswith("averages and exchanges of"):
            return set(estimate.removeprefix("averages and exchanges of ").split(", ")) <= {
                *self.averages
            }
        return bool(self.core) if estimate.startswith("time of each op") else self.busy is not None

    def doubts(self) -> list[str]:
        """Return why the constants may not hold."""
        found = []
        if self.date and self.software != software():
            found.append(f"constants of {self.date} are of other versions or cores")
        if self.date and self.load > QUIET_LOAD:
            found.append(f"while they were measured, others used {self.load:.1f} cores")
        return found

    def is_stale(self) -> bool:
        """Whether they have to be measured, or measured anew."""
        return not self.date or self.software != software()


def _curve(rows: Sequence[Sequence[float]]) -> Curve:
    return Curve(num_bytes=tuple(row[0] for row in rows), seconds=tuple(row[1] for row in rows))


def software() -> dict[str, Any]:
    """Return what constants depend on."""
    facts = environment()
    names = ("tensorflow", "horovod")
    packages = {name: facts["packages"].get(name) for name in names}
    return {**packages, "cpu": facts["cpu"], "cores": len(usable_cores())}


def read(folder: Path | None = None) -> Constants:
    """Return what is kept; nothing where it is missing, or of another version of tfunet."""
    path = (folder or cache_home()) / FILE
    with contextlib.suppress(RecordError, TypeError, OSError):
        table = read_json(path, dict[str, Any])
        if table is not None:
            return Constants(**table)
    return Constants(software=software())


def keep(constants: Constants, folder: Path | None = None) -> None:
    """Write constants; without a word where the folder cannot be written."""
    where = folder or cache_home()
    with contextlib.suppress(WriteError, OSError):
        where.mkdir(parents=True, exist_ok=True)
        write_atomic(where / FILE, json.dumps(asdict(constants), indent=1) + "\n")


def measured(
    before: Constants,
    backends: Sequence[str],
    say: Callable[[str], None] = lambda line: None,
    noted: Sequence[int] = (),
) -> Constants:
    """Return the constants of this machine, measured with small processes on each backend."""
    cores = len(usable_cores())
    others = load()
    alone = _timed({"backend": "single", "cores_per_replica": 1}, ["links"], say, noted)
    found: dict[str, dict[str, Any]] = {}
    for backend in backends if cores > 1 else ():
        keys = {"backend": backend, "num_replicas": cores, "cores_per_replica": 1}
        if (one := _timed(keys, ["links"], say, noted)) is not None:
            found[backend] = one
    together = [one["flops_per_second"] for name, one in found.items() if name != "mirrored"]
    busy = None
    if alone and together:
        busy = max(1.0, alone["flops_per_second"] / max(together))
    return Constants(
        software=software(),
        date=time.strftime("%Y-%m-%d"),
        load=others,
        core={}
        if alone is None
        else {key: alone[key] for key in ("flops_per_second", "bytes_per_second")},
        busy=busy,
        averages={name: one["averages"] for name, one in found.items() if "averages" in one},
        exchanges={name: one["exchanges"] for name, one in found.items() if "exchanges" in one},
        steps=before.steps,
    )


def measured_layers(
    config: RunConfig,
    samples: Sequence[int],
    counts: Sequence[int],
    say: Callable[[str], None] = lambda line: None,
    noted: Sequence[int] = (),
) -> dict[int, dict[str, Any]]:
    """Return by the cores of a device, while `counts` devices compute at once, `tables` of what the
    layers of a run take, and `sample_seconds`; empty where they cannot be measured.
    """
    cores = len(usable_cores())
    found = {}
    with tempfile.TemporaryDirectory() as name:
        run = Path(name) / "run.toml"
        write_atomic(run, config_toml(config))
        for count in counts:
            share = cores // count
            backend = "single" if count == 1 else "multiworker"
            keys = {"backend": backend, "num_replicas": count, "cores_per_replica": share}
            words = ["layers", str(run)]
            timed = _timed(keys, words, say, noted, [str(one) for one in samples])
            if timed is not None:
                found[share] = timed
    return found


def _timed(
    keys: Mapping[str, Any],
    words: Sequence[str],
    say: Callable[[str], None],
    noted: Sequence[int],
    more: Sequence[str] = (),
) -> Any:
    """Return what the script finds on a backend; None if it fails."""
    options = [word for key, value in keys.items() for word in (f"--{key}", str(value))]
    say(f"timing {words[0]} with {' '.join(options)}")
    with tempfile.TemporaryDirectory() as name:
        out = Path(name) / "found.json"
        command = [sys.executable, "-m", "tfunet", "run", *options, "--out", f"{name}/logs"]
        command += [str(SCRIPT), *words, str(out), *more]
        # A script of tfunet's own, whatever the folder.
        path = os.pathsep.join([str(SCRIPT.parents[2]), os.environ.get("PYTHONPATH", "")])
        execute(command, Path(name) / "log.txt", noted, variables={"PYTHONPATH": path})
        with contextlib.suppress(RecordError):
            return read_json(out, dict[str, Any])
    return None
