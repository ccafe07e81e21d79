"""Small hand-made steps."""

from tfunet.graph.step import Op, Tensor, Trace
from tfunet.swap.plan.costs import Costs


def make_trace(*rows):
    """Return a trace from rows of (kind, inputs, output, bytes); capital letters are backward.

    Tensors are named by letters; one that no row makes was there before the step.
    """
    names: list[str] = []
    sizes: dict[str, tuple[int, int]] = {}
    for position, (_, inputs, output, num_bytes) in enumerate(rows):
        names += [one for one in (*inputs, output) if one not in names]
        sizes[output] = (num_bytes, position)
    ops = [
        Op(
            name=f"op{position}",
            kind=kind,
            inputs=tuple(names.index(one) for one in inputs),
            outputs=(names.index(output),),
            is_backward=output.isupper(),
            is_repeatable=kind != "Stateful",
            flops=0.0,
        )
        for position, (kind, inputs, output, _) in enumerate(rows)
    ]
    tensors = [
        Tensor(name=one, num_bytes=sizes.get(one, (0, -1))[0], producer=sizes.get(one, (0, -1))[1])
        for one in names
    ]
    return Trace(ops=tuple(ops), tensors=tuple(tensors)), names


def costs(trace, *, overlaps=True, copy_seconds=1.0, **options):
    """Return costs where every op takes a second, and a copy as given for 100 bytes."""
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
