"""What a device's memory holds before a step: variables, the batch, and all else in use."""

from collections.abc import Sequence

import keras
import tensorflow as tf

from tfunet.graph import reader
from tfunet.graph.step import Trace
from tfunet.machine import device
from tfunet.swap.arena.arena import Memory


def of_model(
    model: keras.Model,
    limit_bytes: int,
    first_bytes: int,
    trace: Trace,
    handles: Sequence[tf.Tensor],
) -> Memory:
    """Return the memory of a device before a step of a model.

    Tensors that none of the step's ops makes are its batch. For `first_bytes` see
    `tfunet.swap.arena.arena.at_start`.
    """
    resident = variable_bytes(model)
    batch_bytes = sum(
        reader.num_bytes(handle)
        for tensor, handle in zip(trace.tensors, handles, strict=True)
        if tensor.producer < 0 and handle.op.type != "Const"
    )
    return Memory(
        limit_bytes=limit_bytes,
        first_bytes=first_bytes,
        resident=resident,
        more_bytes=max(batch_bytes, more_bytes(resident, limit_bytes)),
    )


def more_bytes(resident: Sequence[int], limit_bytes: int) -> int:
    """Return the bytes of the budget in use beside variables; 0 where the allocator keeps no
    account."""
    device_bytes = device.device_bytes()
    used = device.used_bytes() if device_bytes is not None else None
    if device_bytes is None or used is None:
        return 0
    return max(0, used[0] - sum(resident) - max(0, device_bytes - limit_bytes))


def resident_bytes(model: keras.Model) -> int:
    """Return the bytes of the weights and of the optimizer's variables."""
    return sum(variable_bytes(model))


def variable_bytes(model: keras.Model) -> list[int]:
    """Return the bytes of each weight and of each of the optimizer's variables."""
    optimizer = getattr(model, "optimizer", None)
    optimizer = optimizer.variables if optimizer else ()
    return [reader.num_bytes(variable.value) for variable in (*model.variables, *optimizer)]
