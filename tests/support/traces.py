"""Small hand-made steps."""

import dataclasses

from tfunet.graph.step import Op, Tensor, Trace
from tfunet.swap.plan.costs import Costs
from tfunet.swap.plan.plan import WAYS
from tfunet.swap.search.planner import Planner
from tfunet.swap.search.strategy import Problem


def make_trace(*rows):
    """Return a trace from rows of (kind, inputs, output, bytes); capital letters are backward.

    Tensors are named by letters; one that no row makes was there before the step.
    """
    names: list[str] = []
    sizes: dict[str, int] = {}
    producers: dict[str, int] = {}
    for position, (_, inputs, output, num_bytes) in enumerate(rows):
        names += [name for name in (*inputs, output) if name not in names]
        sizes[output], producers[output] = num_bytes, position
    ops = [
        Op(
            name=f"op{position}",
            kind=kind,
            inputs=tuple(names.index(name) for name in inputs),
            outputs=(names.index(output),),
            is_backward=output.isupper(),
            is_repeatable=kind != "Stateful",
            flops=0.0,
        )
        for position, (kind, inputs, output, _) in enumerate(rows)
    ]
    tensors = [
        Tensor(name=name, num_bytes=sizes.get(name, 0), producer=producers.get(name, -1))
        for name in names
    ]
    return Trace(ops=tuple(ops), tensors=tuple(tensors)), names


def costs(trace, *, overlaps=True, copy_seconds=1.0, **options):
    """Return costs where every op takes a second, and a copy of 100 bytes as long as given."""
    return Costs(
        op_seconds=[1.0] * len(trace.ops),
        out_bytes_per_second=100 / copy_seconds,
        in_bytes_per_second=100 / copy_seconds,
        copy_seconds=0.0,
        copies_overlap=overlaps,
        **options,
    )


# x is the batch; a, b, c the forward pass; L the loss's gradient; C, B, A the backward pass.
CHAIN = (
    ("Conv3D", "x", "a", 100),
    ("Conv3D", "a", "b", 100),
    ("Conv3D", "b", "c", 100),
    ("Loss", "c", "L", 100),
    ("ConvGrad", "Lb", "B", 100),
    ("ConvGrad", "Ba", "A", 100),
    ("ConvGrad", "Ax", "X", 10),
)


# A U-Net of one level: its skip s lives longest; the activation n costs little to repeat.
UNET = (
    ("Conv3D", "x", "s", 100),
    ("MaxPool3D", "s", "p", 20),
    ("Conv3D", "p", "m", 20),
    ("Norm", "m", "n", 20),
    ("Conv3D", "n", "u", 100),
    ("Add", "us", "v", 100),
    ("Loss", "v", "L", 100),
    ("Grad", "Lu", "U", 20),
    ("Grad", "Un", "N", 20),
    ("Grad", "Nm", "M", 20),
    ("Grad", "Mp", "P", 100),
    ("Grad", "Ps", "S", 10),
)


def costs_of(trace, *, op_rate=1.0, link_rate=1.0, copies_overlap=False):
    """Return costs where an op takes a second for each op_rate bytes that it reads or writes."""
    moved_bytes = [
        sum(trace.tensors[index].num_bytes for index in (*op.inputs, *op.outputs))
        for op in trace.ops
    ]
    return Costs(
        op_seconds=[num_bytes / op_rate for num_bytes in moved_bytes],
        out_bytes_per_second=link_rate,
        in_bytes_per_second=link_rate,
        copy_seconds=0.0,
        copies_overlap=copies_overlap,
    )


def plan_for(rows, budget, costs=None, *, allowed=WAYS, **options):
    """Return the planner's plan for a trace from rows; `costs` are options of `costs_of`."""
    trace, _ = make_trace(*rows)
    options = {"costs": costs_of(trace, **(costs or {})), "threshold_bytes": 1, **options}
    return Planner(allowed).plan(Problem(trace=trace, budget_bytes=budget, **options))


MIB = 2**20


# a and b are read again at the end; swapped, they leave room for what is between.
STEP, _ = make_trace(
    ("Conv3D", "x", "a", 4 * MIB),
    ("Conv3D", "a", "b", 5 * MIB),
    ("Conv3D", "b", "c", 3 * MIB),
    ("Conv3D", "c", "d", 6 * MIB),
    ("Loss", "d", "L", 6 * MIB),
    ("ConvGrad", "Lc", "C", 3 * MIB),
    ("ConvGrad", "Cb", "B", 5 * MIB),
    ("ConvGrad", "Ba", "A", 4 * MIB),
)


COSTS = Costs(op_seconds=[1.0] * 8, out_bytes_per_second=MIB, in_bytes_per_second=MIB)


PROBLEM = Problem(trace=STEP, costs=COSTS, budget_bytes=0, threshold_bytes=MIB)


def planned(budget_bytes):
    return Planner().plan(dataclasses.replace(PROBLEM, budget_bytes=budget_bytes))
