"""What a step copies between the device and the host. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass

from tfunet.graph.step import Trace
from tfunet.swap.plan.chains import copies, copy_seconds
from tfunet.swap.plan.costs import Costs
from tfunet.swap.plan.placement import swapped_bytes
from tfunet.swap.plan.plan import Decision
from tfunet.swap.plan.split import Cut


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """The copies of a step.

    Args:
        out_bytes: From device to host.
        in_bytes: From host to device.
        slab_seconds: Of those that ops in slabs wait for.
    """

    out_bytes: int
    in_bytes: int
    slab_seconds: float


def traffic(trace: Trace, found: Cut, decisions: Mapping[int, Decision], costs: Costs) -> Traffic:
    """Return what is copied: swapped tensors once each way, and the rows of the slabs.

    Args:
        trace: The whole step.
        found: It with what is split; of a row that two slabs reach, both take a copy.
        decisions: What is done with tensors, by index.
        costs: Of the whole step.
    """
    slabs = [
        one
        for last, chain in found.chains.items()
        for one in copies(trace, chain, found.kept[last], found.split)
    ]
    swapped = {one for one, what in decisions.items() if what == "swap"}
    return Traffic(
        # What slabs have put together on the host is there already.
        out_bytes=swapped_bytes(found.trace, swapped - found.on_host)
        + sum(num_bytes for is_out, num_bytes, _ in slabs if is_out),
        in_bytes=swapped_bytes(found.trace, swapped)
        + sum(num_bytes for is_out, num_bytes, _ in slabs if not is_out),
        slab_seconds=sum(copy_seconds(*one, costs) for one in slabs),
    )
