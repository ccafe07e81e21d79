"""How much a step copies between the device and the host. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass

from tfunet.graph.step import Trace
from tfunet.swap.plan.costs import Costs
from tfunet.swap.plan.placement import swapped_bytes, swapped_in
from tfunet.swap.plan.plan import Decision
from tfunet.swap.plan.slab_chains import copies, copy_seconds
from tfunet.swap.plan.split import Cut


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """The copies of a step, and the time of those that ops in slabs wait for."""

    out_bytes: int
    in_bytes: int
    slab_seconds: float


def traffic(trace: Trace, cut: Cut, decisions: Mapping[int, Decision], costs: Costs) -> Traffic:
    """Return what is copied: swapped tensors once each way, and the rows of the slabs.

    A row that two slabs reach is copied twice.
    """
    slabs = [
        copy
        for last, chain in cut.chains.items()
        for copy in copies(trace, chain, cut.kept[last], cut.split)
    ]
    swapped = swapped_in(decisions)
    return Traffic(
        # Tensors that slabs put together on the host are there already.
        out_bytes=swapped_bytes(cut.trace, swapped - cut.on_host)
        + sum(num_bytes for is_out, num_bytes, _ in slabs if is_out),
        in_bytes=swapped_bytes(cut.trace, swapped)
        + sum(num_bytes for is_out, num_bytes, _ in slabs if not is_out),
        slab_seconds=sum(copy_seconds(*copy, costs) for copy in slabs),
    )
