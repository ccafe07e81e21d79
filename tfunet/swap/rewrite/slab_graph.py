"""Makes a chain of ops of a traced step run in slabs."""

from collections.abc import Callable, Mapping, Sequence

import tensorflow as tf

from tfunet.graph import slab_ops
from tfunet.graph.slabs import SlabRows
from tfunet.graph.step import SHAPE_READERS, Trace
from tfunet.swap.plan.chains import Chain, slabs_of
from tfunet.swap.plan.split import Cut
from tfunet.swap.storage.host import Rows, Tier


class SlabGraph:
    """Puts slabs in the place of whole ops.

    Args:
        whole: The step before it was cut.
        found: And after.
        ops: Behind the indices of both.
        handles: The tensors behind the indices of both. Where a chain makes a tensor anew, it
            takes the place of the old one here and in every op that reads it.
        tier: Where tensors go that are split.
    """

    def __init__(
        self,
        whole: Trace,
        found: Cut,
        ops: Sequence[tf.Operation],
        handles: list[tf.Tensor],
        tier: Tier,
    ) -> None:
        self._whole = whole
        self._cut = found
        self._ops = ops
        self._handles = handles
        self._rows = {one: tier.rows(handles[one]) for one in found.on_host}
        for chain in found.chains.values():
            for op in (ops[index] for index in chain.ops):
                for one in op._control_outputs:
                    # An order only: see slab_rules.describe. It would keep the whole op.
                    others = [other for other in one.control_inputs if other.name != op.name]
                    one._remove_all_control_inputs()
                    one._add_control_inputs(others)
                for output in op.outputs:
                    _forget_shape_readers(output)

    def run(
        self, chain: Chain, given: Mapping[int, tf.Tensor], before: Sequence[tf.Operation]
    ) -> tf.Operation:
        """Make a chain run in slabs, and return the op after which all of it is done.

        Args:
            chain: Of the cut step.
            given: Tensors that the chain reads, by index, where they are not those of the step.
            before: Ops that come first.
        """
        rows_out = {one: self._rows[one] for one in self._cut.kept[chain.ops[-1]]}
        after, sums = in_slabs(
            self._whole,
            self._ops,
            chain,
            chain.slabs,
            given=given.get,
            rows={one: self._rows[one] for one in self._cut.split},
            rows_out=rows_out,
            before=before,
        )
        for one, total in sums.items():
            with tf.device(self._handles[one].device):
                self._replace(one, tf.cast(total, self._handles[one].dtype))
        for one in rows_out:
            if one not in self._cut.split:
                with tf.control_dependencies(after):
                    whole = self.back(one)
                self._replace(one, whole)
                after = [whole.op]
        with tf.control_dependencies(after):
            return tf.no_op()

    def has(self, tensor: int) -> bool:
        """Whether a tensor that is whole on the device lies on the host as well."""
        return tensor in self._rows

    def back(self, tensor: int) -> tf.Tensor:
        """Return a tensor, whole, from its rows on the host; under the caller's control edges."""
        return self._rows[tensor].read(0, self._handles[tensor].shape[1])

    def _replace(self, one: int, tensor: tf.Tensor) -> None:
        """Let every reader of a tensor of the step read another one instead."""
        for reader in self._handles[one].consumers():
            for position, handle in enumerate(reader.inputs):
                if handle is self._handles[one]:
                    reader._update_input(position, tensor)
        self._handles[one] = tensor


def in_slabs(
    whole: Trace,
    ops: Sequence[tf.Operation],
    chain: Chain,
    slabs: Sequence[tuple[int, int]],
    *,
    given: Callable[[int, tf.Tensor], tf.Tensor],
    rows: Mapping[int, Rows],
    rows_out: Mapping[int, Rows],
    before: Sequence[tf.Operation],
) -> tuple[list[tf.Operation], dict[int, tf.Tensor]]:
    """Make ops of a chain in slabs, one after the other.

    Args:
        whole: The step before it was cut.
        ops: Of its graph.
        chain: Of ops.
        slabs: Those that run: first own row, and the row after the last.
        given: Returns what is read of a tensor that is whole on the device, by its index, and by
            that which the op itself reads.
        rows: Of those that are not.
        rows_out: Where made rows go.
        before: Ops that come first.

    Returns the ops after which all is done, and the sums, in 32 bits or more, by index.
    """
    sums: dict[int, tf.Tensor] = {}
    after = list(before)
    for begin, end in slabs:
        made = _slab(whole, ops, chain, begin, end, given, rows, after)
        after = []
        for one, value in made.items():
            if one in rows_out:
                reach = _given_reach(whole, one, chain)
                after.append(rows_out[one].write(value, reach.rows(begin, end)[0]))
            elif _is_sum(whole, one, chain):
                with tf.device(value.device):
                    # In 16 bits each slab would round the sum once more.
                    more = tf.cast(value, _of_sums(value.dtype))
                    sums[one] = sums[one] + more if one in sums else more
                after.append(sums[one].op)
    return after, sums


def _slab(
    whole: Trace,
    ops: Sequence[tf.Operation],
    chain: Chain,
    begin: int,
    end: int,
    given: Callable[[int, tf.Tensor], tf.Tensor],
    rows: Mapping[int, Rows],
    after: Sequence[tf.Operation],
) -> dict[int, tf.Tensor]:
    """Return what a slab gives of each output of each op of a chain."""
    made: dict[int, tf.Tensor] = {}
    read: dict[tuple[int, int, int], tf.Tensor] = {}
    for index in chain.ops:
        op, described = ops[index], whole.ops[index]
        slabs = slabs_of(described)
        inputs = []
        for one, reach, handle in zip(described.inputs, slabs.inputs, op.inputs, strict=True):
            if one in made:
                inputs.append(made[one])
            elif reach is None:
                inputs.append(given(one, handle))
            else:
                first, last = reach.rows(begin, end)
                key = (one, first, last)
                if key not in read:
                    read[key] = _read(one, given(one, handle), first, last, rows, after)
                inputs.append(read[key])
        if described.kind == "LeakyRelu" and described.inputs[0] in whole.parted:
            inputs[0] = apart(inputs[0])
        # Nothing else would hold back an op that reads no rows.
        first_of_all = after if not any(slabs.inputs) else ()
        with tf.device(op.device), tf.control_dependencies(first_of_all):
            outputs = slab_ops.make(op, slabs, inputs, begin, end)
        made |= dict(zip(described.outputs, outputs, strict=True))
    return made


def apart(tensor: tf.Tensor) -> tf.Tensor:
    """Return a tensor, the same memory, whose reader TensorFlow makes no one op of with what made
    it: in an activation as one op with its bias, 16 bits are rounded once less."""
    with tf.control_dependencies(None), tf.device(tensor.device):
        return tf.raw_ops.EnsureShape(input=tensor, shape=tensor.shape)


def _read(
    one: int,
    handle: tf.Tensor,
    first: int,
    last: int,
    rows: Mapping[int, Rows],
    after: Sequence[tf.Operation],
) -> tf.Tensor:
    with tf.control_dependencies(after):
        if one in rows:
            return rows[one].read(first, last)
        with tf.device(handle.device):
            rest = handle.shape.as_list()[2:]
            begin = [0, first, *(0 for _ in rest)]
            return tf.slice(handle, begin, [handle.shape[0], last - first, *rest])


def _given_reach(whole: Trace, tensor: int, chain: Chain) -> SlabRows:
    for index in chain.ops:
        op = whole.ops[index]
        if tensor in op.outputs:
            reach = slabs_of(op).outputs[op.outputs.index(tensor)]
            if reach is not None:
                return reach
    raise ValueError(f"{whole.tensors[tensor].name} has no rows.")


def _is_sum(whole: Trace, tensor: int, chain: Chain) -> bool:
    ops = (whole.ops[index] for index in chain.ops)
    return any(
        tensor in op.outputs and slabs_of(op).outputs[op.outputs.index(tensor)] is None
        for op in ops
    )


def _of_sums(dtype: tf.DType) -> tf.DType:
    return tf.float32 if dtype.is_floating and dtype.size < 4 else dtype


def _forget_shape_readers(tensor: tf.Tensor) -> None:
    """Put known shapes in the place of ops that read the shape of a tensor that is split."""
    values: dict[str, Callable[[list[int]], tf.Tensor]] = {
        "Shape": lambda shape: shape,
        "ShapeN": lambda shape: shape,
        "Rank": len,
        "Size": lambda shape: tf.TensorShape(shape).num_elements(),
    }
    for op in tensor.consumers():
        if op.type not in SHAPE_READERS or op.type not in values:
            continue
        for position, output in enumerate(op.outputs):
            shape = op.inputs[position].shape
            if op.inputs[position] is not tensor:
                continue
            with tf.control_dependencies(None), tf.device(op.device):
                known = tf.constant(values[op.type](shape.as_list()), output.dtype)
            for reader in output.consumers():
                for at, handle in enumerate(reader.inputs):
                    if handle is output:
                        reader._update_input(at, known)
