"""Which sums and products TensorFlow's optimizer computes together, in another order.

It makes one sum of four terms of `(a + b) + (c + d)`, and computes `(large * small) * scalar` as
`large * (small * scalar)` (stages AddOpsRewrite and MinimizeBroadcasts of its
`grappler/optimizers/arithmetic_optimizer.cc`). It does so if nothing but the outer op reads the
inner one, and no control edge leads to or from either. The last bits depend on it: a residual block
that ends in batch normalisation has such a sum, and the gradient of a hard swish such a product.
"""

from collections.abc import Callable, Collection, Iterator

import tensorflow as tf

from tfunet.graph.step import SHAPE_READERS
from tfunet.inside.of_tensorflow import control_outputs

SUMS = frozenset({"Add", "AddN", "AddV2"})
# The optimizer turns a quotient by a constant into a product first.
PRODUCTS = frozenset({"Mul", "RealDiv"})
# The optimizer removes these first.
NAMES = frozenset({"Identity", "IdentityN", "PreventGradient", "StopGradient"})


def regrouped(
    ops: Collection[tf.Operation], last: Collection[str], runs: Callable[[tf.Operation], bool]
) -> dict[str, str]:
    """Return the name of each op that is merged into the op that reads it, and that reader's name.

    Args:
        ops: The ops of a step as it was traced: later readers do not count.
        last: Names of the ops that make what the step returns. Returning it counts as a reader.
        runs: Whether TensorFlow runs an op that is none of `ops`.
    """
    by_name = {op.name: op for op in ops}
    outer_of: dict[str, str] = {}
    for op in ops:
        if op.type not in SUMS | {"Mul"} or op.control_inputs or control_outputs(op):
            continue
        if op.name in last:
            continue
        readers = [
            reader for reader in _readers(op, last) if reader.name in by_name or runs(reader)
        ]
        if len(readers) == 1 and readers[0].name in by_name and _is_grouped(op, readers[0]):
            outer_of[op.name] = readers[0].name
    for outer in {name for name in outer_of.values() if name not in outer_of}:
        if by_name[outer].type in PRODUCTS and not _moves(by_name[outer], outer_of):
            for inner in list(_inner(by_name[outer], outer_of)):
                del outer_of[inner.name]
    return outer_of


def _is_grouped(op: tf.Operation, reader: tf.Operation) -> bool:
    if reader.control_inputs:
        return False
    if op.type in SUMS:
        return reader.type in SUMS and not control_outputs(reader)
    if op.type != "Mul":
        return False
    return reader.type == "Mul" or (reader.type == "RealDiv" and _is_constant(reader.inputs[1].op))


def _is_constant(op: tf.Operation) -> bool:
    """Whether TensorFlow computes an op only once: a cast of a constant, or its square root."""
    while len(op.inputs) == 1:
        op = op.inputs[0].op
    return op.type == "Const"


def _readers(op: tf.Operation, last: Collection[str]) -> Collection[tf.Operation]:
    """Return the ops that read an op's output, also under other names.

    An op that reads a product twice counts twice; an op that reads a sum twice counts once.
    """
    readers = list(_reading(op.outputs[0], last))
    return {reader.name: reader for reader in readers}.values() if op.type in SUMS else readers


def _reading(tensor: tf.Tensor, last: Collection[str]) -> Iterator[tf.Operation]:
    for op in {reader.name: reader for reader in tensor.consumers()}.values():
        if op.type in SHAPE_READERS:
            continue
        for position, source in enumerate(op.inputs):
            if source.name != tensor.name:
                continue
            if op.type not in NAMES or op.name in last:
                yield op
            if op.type in NAMES:
                yield from _reading(op.outputs[position], last)


def made_by(tensor: tf.Tensor) -> tf.Operation:
    """Return the op that makes a tensor, behind ops that only give it another name."""
    while tensor.op.type in NAMES:
        tensor = tensor.op.inputs[tensor.value_index]
    return tensor.op


def _inner(outer: tf.Operation, outer_of: dict[str, str]) -> Iterator[tf.Operation]:
    for op in map(made_by, outer.inputs):
        if outer_of.get(op.name) == outer.name:
            yield op
            yield from _inner(op, outer_of)


def _factors(outer: tf.Operation, outer_of: dict[str, str]) -> Iterator[tf.Tensor]:
    """Yield the factors of a product in TensorFlow's order: those of each op by name."""
    for tensor in sorted(outer.inputs, key=lambda tensor: made_by(tensor).name):
        if outer_of.get(made_by(tensor).name) == outer.name:
            yield from _factors(made_by(tensor), outer_of)
        else:
            yield tensor


def _moves(outer: tf.Operation, outer_of: dict[str, str]) -> bool:
    """Whether the factors of a product change places: the last of the largest comes last."""
    factors = list(_factors(outer, outer_of))
    shapes = [factor.shape for factor in factors]
    if not all(shape.is_fully_defined() for shape in shapes):
        return True
    if len(set(map(tuple, shapes))) == 1:
        return False
    kept = [factor for factor in outer.inputs if outer_of.get(made_by(factor).name) != outer.name]
    largest = sorted(factors, key=lambda factor: factor.shape.num_elements())[-1]
    return len(factors) != 3 or not any(factor is largest for factor in kept)
