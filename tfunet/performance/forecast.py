"""Plans a training step for a device that does not have to be present."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tfunet.backend import num_processes
from tfunet.config import amount
from tfunet.config.amount import MIB
from tfunet.config.run import RunConfig
from tfunet.data.task import open_task
from tfunet.performance.devices import DISK_BYTES_PER_SECOND, Device, described
from tfunet.performance.traced_step import traced_step
from tfunet.swap.arena.arena import Memory
from tfunet.swap.plan.placement import Tiers
from tfunet.swap.plan.plan import WAYS, Plan, Way
from tfunet.swap.search.fitting import fitted
from tfunet.swap.search.planner import Planner
from tfunet.swap.search.strategy import Problem


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """The predicted memory and time of a step of some samples.

    `plan` is without the weights, the optimizer's variables and the batch, which are resident.
    `untimed` names the ops whose time is left out: loops and functions.
    """

    plan: Plan
    resident_bytes: int
    memory_bytes: int
    samples: int
    untimed: tuple[str, ...] = ()

    @property
    def fits(self) -> bool:
        """Whether the step fits with the plan."""
        return self.plan.peak_bytes <= self.plan.budget_bytes and self.plan.finds_room == 1

    @property
    def fits_without(self) -> bool:
        """Whether the step fits with every tensor kept."""
        return self.fits and not self.plan.gives_up


def forecast(
    config: RunConfig,
    device: Device,
    *,
    memory_bytes: int | None = None,
    allowed: Sequence[Way] = WAYS,
) -> Forecast:
    """Return the predicted memory and time of one replica's step on a device.

    The step is traced but not run; only the weights and the optimizer's variables are allocated.
    The data set is opened for the shape of an image, and no case is read. The replicas of a process
    share its limits of host memory and disk.

    Raises ValueError for a configuration that cannot be trained.
    """
    task = open_task(config)
    task.source.check_images("a prediction of memory and time")
    step = traced_step(config, task)
    trace = step.trace
    memory = Memory(
        limit_bytes=memory_bytes or device.memory_bytes,
        resident=step.variables_bytes,
        more_bytes=step.more_bytes,
    )
    costs = replace(described(trace, device), tiers=_tiers(config))
    problem = Problem(trace=trace, costs=costs, budget_bytes=0, threshold_bytes=MIB)
    return Forecast(
        plan=fitted(problem, memory, Planner(allowed)),
        resident_bytes=step.resident_bytes,
        memory_bytes=memory.limit_bytes,
        samples=step.samples,
        untimed=trace.untimed,
    )


def _tiers(config: RunConfig) -> Tiers:
    if config.swap_host is None:
        return Tiers()
    num_replicas = max(1, config.num_devices // num_processes(config))
    disk_bytes: int | None = 0 if config.swap_disk is None else None
    if config.swap_disk_size is not None:
        disk_bytes = amount.in_bytes("swap_disk_size", config.swap_disk_size) // num_replicas
    return Tiers(
        host_bytes=amount.in_bytes("swap_host", config.swap_host) // num_replicas,
        disk_bytes=disk_bytes,
        disk_out_bytes_per_second=DISK_BYTES_PER_SECOND,
        disk_in_bytes_per_second=DISK_BYTES_PER_SECOND,
    )
