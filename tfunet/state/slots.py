"""Which states of an optimizer belong to which variable, and how it may be cut."""

from typing import Any, Literal

import keras
import numpy as np
import tensorflow as tf

from tfunet.inside import of_optimizers
from tfunet.inside.of_keras import trained_by
from tfunet.state.slices import SlicedOptimizer

Granularity = Literal["element", "variable"]

# What an optimizer is tried on, for so many steps: variables, and slices of them that vector
# instructions take whole.
TRIED_SHAPES = ((8, 6), (32,))
TRIED_STEPS = 3
TRIED_SLICE = 16


def slots_of(optimizer: keras.Optimizer) -> list[list[Any]]:
    """Return the states of each variable that a built optimizer trains, in its order."""
    trained = trained_by(optimizer)
    small = [of_optimizers.empty_like(variable) for variable in trained]
    owners: dict[int, int] = {}

    def add(before: Any, reference: Any, **options: Any) -> Any:
        made = before(**options)
        # Adafactor does not say whose a state is, but makes those of a variable together.
        at = next((i for i, each in enumerate(small) if each is reference), None)
        if at is None and tuple(options["shape"]) != ():
            at = next(i for i, each in enumerate(small) if each.name == options.get("name"))
        if at is not None:
            owners[id(made)] = at
        return made

    made = of_optimizers.remade(optimizer)
    with of_optimizers.adding(made, add):
        made.build(small)
    slots: list[list[Any]] = [[] for _ in trained]
    for like, state in zip(made.variables, optimizer.variables, strict=True):
        if id(like) in owners:
            slots[owners[id(like)]].append(state)
    return slots


def granularity(optimizer: keras.Optimizer) -> Granularity:
    """Return whether an optimizer updates each element by itself; it is tried.

    The states of one that does may be cut anywhere, those of others between variables.
    """
    draw = np.random.default_rng(0)
    with tf.init_scope():
        values = [draw.normal(size=shape).astype("float32") for shape in TRIED_SHAPES]
        variables = [keras.Variable(value, name="tried") for value in values]
        whole = of_optimizers.remade(optimizer)
        whole.build(variables)
        slots = [[slot.numpy() for slot in each] for each in slots_of(whole)]
        sliced = SlicedOptimizer(whole, variables[0])
        for value, states in zip(values, slots, strict=True):
            if [state.shape for state in states] != [value.shape] * sliced.num_slots:
                return "variable"
        for _ in range(TRIED_STEPS):
            gradients = [draw.normal(size=shape).astype("float32") for shape in TRIED_SHAPES]
            for value, gradient, states in zip(values, gradients, slots, strict=True):
                for first in range(0, value.size, TRIED_SLICE):
                    part = slice(first, first + TRIED_SLICE)
                    flat = [tf.constant(e.reshape(-1)[part]) for e in (gradient, value, *states)]
                    new, new_states = sliced.update(flat[0], flat[1], flat[2:])
                    for each, result in zip((value, *states), (new, *new_states), strict=True):
                        each.reshape(-1)[part] = result
            of_optimizers.apply_clipped(whole, [*map(tf.constant, gradients)], variables)
            whole.iterations.assign_add(1)
    same = all(
        np.allclose(variable, value, rtol=1e-5, atol=1e-6)
        for variable, value in zip(variables, values, strict=True)
    )
    return "element" if same else "variable"
