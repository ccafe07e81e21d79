"""The machine on which tfunet runs, as far as it is known without using its devices."""

import os

import psutil

from tfunet.backend import FACTS
from tfunet.config.amount import in_bytes
from tfunet.config.not_installed import NotInstalledError
from tfunet.config.run import RunConfig
from tfunet.machine.cores import usable_cores
from tfunet.machine.doctor import check_installed
from tfunet.machine.environment import gpus
from tfunet.performance.devices import DEVICES
from tfunet.plan.machine import Machine, described, of_cores

# The share of the memory that is free now which may be filled.
FREE_SHARE = 0.9


def this_machine(
    config: RunConfig, limit_bytes: int | None = None, num_devices: int = 0
) -> Machine:
    """Return this machine; ValueError for GPUs that are not known.

    Args:
        limit_bytes: What a device may use; by default what the run says.
        num_devices: Devices asked for; more than there are cores if the run lets them share.
    """
    found = gpus()
    limit = limit_bytes or _own_limit(config, on_gpu=bool(found))
    if found:
        name = _known_gpu(found[0]["name"])
        # nvidia-smi says "81559 MiB".
        least = min(in_bytes("memory", gpu["memory_total"]) for gpu in found)
        return described(f"{len(found)} {name}", limit or least)
    cores = len(usable_cores())
    free = int(psutil.virtual_memory().available * FREE_SHARE)
    return of_cores(
        cores,
        free,
        limit_bytes=limit,
        devices=max(cores, num_devices) if config.share_cores else cores,
        cores_each=config.cores_per_replica or 0,
        backends=usable_backends(),
    )


def usable_backends() -> list[str]:
    """Return the backends that are installed and have several devices."""
    return [name for name, facts in FACTS.items() if not facts.one_replica and not missing(name)]


def missing(backend: str) -> str:
    """Return why a backend cannot be used here; empty if it can."""
    try:
        check_installed(backend)
    except NotInstalledError as error:
        return str(error)
    return ""


def _own_limit(config: RunConfig, *, on_gpu: bool) -> int | None:
    """Return the limit that a run gives to TensorFlow's allocator."""
    key = "gpu_memory" if on_gpu else "cpu_memory"
    given = getattr(config, key)
    return None if given is None else in_bytes(key, given)


def _known_gpu(name: str) -> str:
    """Return the device of the table that nvidia-smi calls so."""
    words = name.lower().replace("-", " ").split()
    for known in DEVICES:
        if known.partition("-")[0] in words:
            return known
    raise ValueError(
        f"Nothing is known of the GPU {name!r}. Say which known device is nearest, with --device. "
        f"Known: {', '.join(DEVICES)}."
    )


def load() -> float:
    """Return how many cores others use, about."""
    return os.getloadavg()[0]
