"""Makes chains of ops of a traced step run in slabs."""

from collections.abc import Callable, Mapping, Sequence

import tensorflow as tf

from tfunet.graph import slab_ops
from tfunet.graph.edits import forget_shape_readers, read_instead
from tfunet.graph.step import Trace
from tfunet.inside.of_tensorflow import control_outputs, set_control_inputs
from tfunet.swap.plan.slab_chains import SlabChain, reached_outputs, slabs_of
from tfunet.swap.plan.split import Cut
from tfunet.swap.storage.host import Rows, Tier


class SlabGraph:
    """Replaces ops of a step by the slabs of their chains.

    A tensor that a chain makes anew replaces the old one in `handles` and in all that read it.
    """

    def __init__(
        self, cut: Cut, ops: Sequence[tf.Operation], handles: list[tf.Tensor], tier: Tier
    ) -> None:
        self.handles = handles
        self._cut = cut
        self._ops = ops
        self._rows = {tensor: tier.rows(handles[tensor]) for tensor in cut.on_host}
        for chain in cut.chains.values():
            for op in (ops[index] for index in chain.ops):
                for waiting in control_outputs(op):
                    # Only an order (see `tfunet.graph.slab_rules`), which would keep the whole op.
                    others = [before for before in waiting.control_inputs if before.name != op.name]
                    set_control_inputs(waiting, others)
                for output in op.outputs:
                    forget_shape_readers(output)

    def run(
        self, chain: SlabChain, given: Mapping[int, tf.Tensor], before: Sequence[tf.Operation]
    ) -> tf.Operation:
        """Make a chain run in slabs, and return the op after which all of it is done.

        The chain reads the tensors in `given`, by index, instead of the step's own.
        """
        rows_out = {tensor: self._rows[tensor] for tensor in self._cut.kept[chain.ops[-1]]}
        after, sums = in_slabs(
            self._cut.whole,
            self._ops,
            chain,
            chain.slabs,
            given=given.get,
            rows={tensor: self._rows[tensor] for tensor in self._cut.split},
            rows_out=rows_out,
            before=before,
        )
        for tensor, total in sums.items():
            with tf.device(self.handles[tensor].device):
                self._replace(tensor, tf.cast(total, self.handles[tensor].dtype))
        for tensor in rows_out:
            if tensor not in self._cut.split:
                with tf.control_dependencies(after):
                    whole = self.back(tensor)
                self._replace(tensor, whole)
                after = [whole.op]
        with tf.control_dependencies(after):
            return tf.no_op()

    def has(self, tensor: int) -> bool:
        """Whether a tensor that is whole on the device lies on the host as well."""
        return tensor in self._rows

    def back(self, tensor: int) -> tf.Tensor:
        """Return a tensor, whole, from its rows on the host; under the caller's control edges."""
        return self._rows[tensor].read(0, self.handles[tensor].shape[1])

    def _replace(self, tensor: int, handle: tf.Tensor) -> None:
        read_instead(self.handles[tensor], handle)
        self.handles[tensor] = handle


def in_slabs(
    trace: Trace,
    ops: Sequence[tf.Operation],
    chain: SlabChain,
    slabs: Sequence[tuple[int, int]],
    *,
    given: Callable[[int, tf.Tensor], tf.Tensor],
    rows: Mapping[int, Rows],
    rows_out: Mapping[int, Rows],
    before: Sequence[tf.Operation],
) -> tuple[list[tf.Operation], dict[int, tf.Tensor]]:
    """Put slabs of a chain into the graph, one after the other.

    Args:
        slabs: First row, and the row after the last, of each slab that runs.
        given: Returns the tensor to read for one that is whole on the device, from its index and
            the tensor that the op reads now.
        rows: The rows of tensors that are not whole on the device, by index.
        rows_out: Where rows go that the chain makes, by index.

    Returns the ops after which all is done, and the sums over the slabs, in 32 bits or more, by
    index.
    """
    made_rows = {
        tensor: reach for index in chain.ops for tensor, reach in reached_outputs(trace.ops[index])
    }
    sums: dict[int, tf.Tensor] = {}
    after = list(before)
    for begin, end in slabs:
        made = _slab(trace, ops, chain, begin, end, given, rows, after)
        after = []
        for tensor, value in made.items():
            reach = made_rows[tensor]
            if reach is None:
                with tf.device(value.device):
                    # In 16 bits each slab would round the sum once more.
                    is_short = value.dtype.is_floating and value.dtype.size < 4
                    more = tf.cast(value, tf.float32 if is_short else value.dtype)
                    sums[tensor] = sums[tensor] + more if tensor in sums else more
                after.append(sums[tensor].op)
            elif tensor in rows_out:
                after.append(rows_out[tensor].write(value, reach.rows(begin, end)[0]))
    return after, sums


def _slab(
    trace: Trace,
    ops: Sequence[tf.Operation],
    chain: SlabChain,
    begin: int,
    end: int,
    given: Callable[[int, tf.Tensor], tf.Tensor],
    rows: Mapping[int, Rows],
    after: Sequence[tf.Operation],
) -> dict[int, tf.Tensor]:
    made: dict[int, tf.Tensor] = {}
    read: dict[tuple[int, int, int], tf.Tensor] = {}
    for index in chain.ops:
        op, described = ops[index], trace.ops[index]
        slabs = slabs_of(described)
        inputs = []
        for tensor, reach, handle in zip(described.inputs, slabs.inputs, op.inputs, strict=True):
            if tensor in made:
                inputs.append(made[tensor])
            elif reach is None:
                inputs.append(given(tensor, handle))
            else:
                first, last = reach.rows(begin, end)
                key = (tensor, first, last)
                if key not in read:
                    whole = given(tensor, handle)
                    read[key] = _read(rows.get(tensor), whole, first, last, after)
                inputs.append(read[key])
        if described.kind == "LeakyRelu" and described.inputs[0] in trace.parted:
            inputs[0] = apart(inputs[0])
        # Nothing else would hold back an op that reads no rows.
        first_of_all = after if not any(slabs.inputs) else ()
        with tf.device(op.device), tf.control_dependencies(first_of_all):
            outputs = slab_ops.make(op, slabs, inputs, begin, end)
        made |= dict(zip(described.outputs, outputs, strict=True))
    return made


def apart(tensor: tf.Tensor) -> tf.Tensor:
    """Return the tensor in the same memory, so that TensorFlow does not fuse its reader with the op
    that made it: an activation fused with its bias rounds 16 bits once less."""
    with tf.control_dependencies(None), tf.device(tensor.device):
        return tf.raw_ops.EnsureShape(input=tensor, shape=tensor.shape)


def _read(
    rows: Rows | None, whole: tf.Tensor, first: int, last: int, after: Sequence[tf.Operation]
) -> tf.Tensor:
    with tf.control_dependencies(after):
        if rows is not None:
            return rows.read(first, last)
        with tf.device(whole.device):
            rest = whole.shape.as_list()[2:]
            begin = [0, first, *(0 for _ in rest)]
            return tf.slice(whole, begin, [whole.shape[0], last - first, *rest])
