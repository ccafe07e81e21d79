"""Which sums and products TensorFlow's optimizer makes anew together, in another order.

Of `(a + b) + (c + d)` it makes one sum of four, and of `(large * small) * scalar` the product of
the two small ones first (stages AddOpsRewrite and MinimizeBroadcasts of its
`grappler/optimizers/arithmetic_optimizer.cc`). It does so where nothing but the outer op reads the
inner one, and no control edge leads to or from either. The last bits hang on it: a residual block
that ends in batch normalisation has such a sum, and a hard swish such a product in its gradient.
"""

from collections.abc import Callable, Collection, Iterator

import tensorflow as tf

from tfunet.graph.step import SHAPE_READERS

SUMS = frozenset({"Add", "AddN", "AddV2"})
# A quotient by a constant becomes a product before.
PRODUCTS = frozenset({"Mul", "RealDiv"})
# It takes these out before.
NAMES = frozenset({"Identity", "IdentityN", "PreventGradient", "StopGradient"})


def regrouped(
    ops: Collection[tf.Operation], last: Collection[str], runs: Callable[[tf.Operation], bool]
) -> dict[str, str]:
    """Return the name of each op that is made anew with the one that reads it, and that one's.

    Args:
        ops: Of a step, as it was traced: what reads a tensor later is not what decides.
        last: Names of those that make what the step returns, which is a reader more.
        runs: Whether an op that is none of these is not left out.
    """
    of_step = {op.name: op for op in ops}
    found: dict[str, str] = {}
    for op in ops:
        if op.type not in SUMS | {"Mul"} or op.control_inputs or op._control_outputs:
            continue
        if op.name in last:
            continue
        readers = [one for one in _readers(op, last) if one.name in of_step or runs(one)]
        if len(readers) == 1 and readers[0].name in of_step and _is_grouped(op, readers[0]):
            found[op.name] = readers[0].name
    for outer in {one for one in found.values() if one not in found}:
        if of_step[outer].type in PRODUCTS and not _moves(of_step[outer], found):
            for inner in list(_inner(of_step[outer], found)):
                del found[inner.name]
    return found


def _is_grouped(op: tf.Operation, reader: tf.Operation) -> bool:
    if reader.control_inputs:
        return False
    if op.type in SUMS:
        return reader.type in SUMS and not reader._control_outputs
    return op.type == "Mul" and _is_product(reader)


def _is_product(op: tf.Operation) -> bool:
    return op.type == "Mul" or (op.type == "RealDiv" and _is_constant(op.inputs[1].op))


def _is_constant(op: tf.Operation) -> bool:
    """Whether TensorFlow computes an op once and for all: a constant of another type, its root."""
    while len(op.inputs) == 1:
        op = op.inputs[0].op
    return op.type == "Const"


def _readers(op: tf.Operation, last: Collection[str]) -> Collection[tf.Operation]:
    """Return the ops that read an op's output, or its like under another name.

    A product's as often as they do: of a sum TensorFlow counts the ops that read it.
    """
    found = list(_reading(op.outputs[0], last))
    return {one.name: one for one in found}.values() if op.type in SUMS else found


def _reading(tensor: tf.Tensor, last: Collection[str]) -> Iterator[tf.Operation]:
    for op in {one.name: one for one in tensor.consumers()}.values():
        if op.type in SHAPE_READERS:
            continue
        for position, one in enumerate(op.inputs):
            if one.name != tensor.name:
                continue
            if op.type not in NAMES or op.name in last:
                yield op
            if op.type in NAMES:
                yield from _reading(op.outputs[position], last)


def made_by(tensor: tf.Tensor) -> tf.Operation:
    """Return the op that makes a tensor, under whatever names."""
    while tensor.op.type in NAMES:
        tensor = tensor.op.inputs[tensor.value_index]
    return tensor.op


def _inner(outer: tf.Operation, found: dict[str, str]) -> Iterator[tf.Operation]:
    for op in map(made_by, outer.inputs):
        if found.get(op.name) == outer.name:
            yield op
            yield from _inner(op, found)


def _factors(outer: tf.Operation, found: dict[str, str]) -> Iterator[tf.Tensor]:
    """Yield the factors of a product as TensorFlow does, which sorts those of each op by name."""
    for one in sorted(outer.inputs, key=lambda one: made_by(one).name):
        if found.get(made_by(one).name) == outer.name:
            yield from _factors(made_by(one), found)
        else:
            yield one


def _moves(outer: tf.Operation, found: dict[str, str]) -> bool:
    """Whether the factors of a product change places: the last of the largest comes last."""
    factors = list(_factors(outer, found))
    shapes = [one.shape for one in factors]
    if not all(one.is_fully_defined() for one in shapes):
        return True
    if len({tuple(one) for one in shapes}) == 1:
        return False
    own = [one for one in outer.inputs if found.get(made_by(one).name) != outer.name]
    largest = sorted(factors, key=lambda one: one.shape.num_elements())[-1]
    return len(factors) != 3 or not any(one is largest for one in own)
