"""Runs a Keras model on this device's part of a sample, layer by layer."""

import contextlib
import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, final

import keras
import tensorflow as tf

from tfunet.geometry.kinds import is_own
from tfunet.inside.of_keras import graph_of, has_graph, run_graph, takes_training
from tfunet.models.keras_errors import cause_line
from tfunet.parallel.exchange import ExchangeSwitch
from tfunet.parallel.group import SampleGroup, SentBytes
from tfunet.parallel.mesh import Bounds, Mesh
from tfunet.parallel.part import Part, cut
from tfunet.parallel.rules import merges, rule_of
from tfunet.parallel.window_inputs import CannotCutError


@dataclass(frozen=True, kw_only=True)
class Gathered:
    """A layer that runs on the whole tensor, on every device of a group.

    Args:
        name: Name of the layer.
        kind: Its class.
        num_bytes: Size of the whole tensors that it reads.
    """

    name: str
    kind: str
    num_bytes: int

    def __str__(self) -> str:
        return f"{self.name} ({self.kind}, {self.num_bytes / 2**20:.1f} MiB)"


@final
@dataclass(frozen=True, kw_only=True)
class SplitNetwork:
    """A model whose samples are split over the devices of a group.

    While it is installed, a call of the model with a part of a sample runs on the part, and gives
    the part of the output. A call with anything else runs as ever.

    Args:
        model: A functional or sequential model with one input, or one of a class of its own whose
            `call` only uses layers and operations of Keras.
        mesh: All devices.
        bounds: Bounds of the parts of the model's input, for each spatial axis.
        group: Returns the group of the device that is being traced.
        unit: What is split, in words.

    Attributes:
        gathered: What runs on whole tensors, by name; known once the model has been traced.
        calls: How often a step called the model ("model") and a loss ("loss").
    """

    model: keras.Model
    mesh: Mesh
    bounds: tuple[Bounds | None, ...]
    group: Callable[[], SampleGroup]
    unit: str = "sample"
    gathered: dict[str, Gathered] = field(default_factory=dict)
    calls: Counter[str] = field(default_factory=Counter)
    # The model's layers as a graph, in training (True) and in inference.
    _graphs: dict[bool, keras.Model] = field(default_factory=dict)
    # The model's call, if it is set on the model and not of its class.
    _set_calls: list[Any] = field(default_factory=list)

    @contextlib.contextmanager
    def traced_step(self, times: int = 1) -> Iterator[None]:
        """Count what the trace of a step in the block calls and exchanges.

        A step does what is traced so many times.
        """
        self.calls.clear()
        with self.group().traffic.of_step(times):
            yield

    def check_calls(self) -> None:
        """Raise ValueError if a step went around what puts parts of a sample together."""
        for what, does, instead in (
            ("model", "call the model", "run its layers on each part of a sample by itself"),
            ("loss", "call the compiled loss", "compute a loss of each part of a sample"),
        ):
            if not self.calls[what]:
                raise ValueError(
                    f"The model's train_step does not {does}, so it would {instead} instead of the "
                    "whole sample. Call self(x, training=True) and self.compute_loss(x, y, y_pred) "
                    "there, or leave out split."
                )

    def install(self) -> None:
        """Make the model's calls run on parts."""
        whole = self.model.call
        has_own_call = is_own(self.model, "call")
        self._set_calls[:] = [whole] if "call" in vars(self.model) else []

        def call(inputs: Any, training: Any = None, mask: Any = None, **more: Any) -> Any:
            if not self.is_part(inputs):
                options = {**more, **({} if mask is None else {"mask": mask})}
                if training is not None:
                    options["training"] = training
                return whole(inputs, **options)
            self.calls["model"] += 1
            is_training = bool(training)
            if is_training not in self._graphs:
                own_graph = None if has_own_call else _own_graph(self.model)
                self._graphs[is_training] = own_graph or _traced_graph(
                    self.model, whole, inputs, self.extents, is_training
                )
                _check_outputs(self.model, self._graphs[is_training])
            group = self.group()
            output = self.run(
                self._graphs[is_training],
                Part(tensor=inputs, bounds=self.bounds),
                group,
                is_training,
            )
            return self.own_rows(group, output)

        # Keras sees no layer or variable in a function, so that a saved model knows nothing of it.
        object.__setattr__(self.model, "call", call)
        self.model.input_spec = None

    def uninstall(self) -> None:
        """Give the model back its own call."""
        object.__delattr__(self.model, "call")
        for call in self._set_calls:
            object.__setattr__(self.model, "call", call)

    @property
    def variables(self) -> list[Any]:
        """Variables of the layers that calls with parts have run."""
        ops = (op for graph in self._graphs.values() for op in graph.operations)
        return [variable for op in ops for variable in getattr(op, "variables", [])]

    @property
    def extents(self) -> tuple[int | None, ...]:
        """Rows of a whole sample along the axes that are cut; None along others."""
        return tuple(None if bounds is None else bounds[-1] for bounds in self.bounds)

    def is_part(self, tensor: Any) -> bool:
        """Whether a tensor (batch, *spatial, ...) is a part of a sample, and not a whole one."""
        shape = getattr(tensor, "shape", ())
        return len(shape) > len(self.bounds) and any(
            extent is not None and rows is not None and rows < extent
            for rows, extent in zip(shape[1:], self.extents, strict=False)
        )

    def own_rows(self, group: SampleGroup, output: Any) -> Any:
        """Return the output's rows where this device's rows of the masks are."""
        if isinstance(output, Part):
            if output.extents == self._whole_extents(output):
                return output.aligned(group, self.bounds).tensor
            return output.whole(group)
        if len(output.shape) == len(self.bounds) + 2 and all(
            extent in (None, rows)
            for rows, extent in zip(output.shape[1:-1], self.extents, strict=True)
        ):
            return cut(group, output, self.bounds).tensor
        return output

    def whole_output(self, output: Any, group: SampleGroup) -> Any:
        """Return the whole output of the model, of which a call has returned this device's part."""
        if not self.is_part(output):
            return output
        return Part(tensor=output, bounds=self.bounds).whole(group)

    def summary(self) -> str:
        """Return in a line how samples are split, and what could not be."""
        shape = " x ".join(map(str, self.mesh.split))
        where = " of each stage" if self.mesh.stages > 1 else ""
        line = f"Split: each {self.unit} over {self.mesh.sample_parts} devices{where} ({shape})"
        if not self.gathered:
            return f"{line}."
        layers = ", ".join(map(str, self.gathered.values()))
        return f"{line}; every device has the whole input of {layers}."

    def _whole_extents(self, part: Part) -> tuple[int, ...]:
        return tuple(
            rows if extent is None else extent
            for rows, extent in zip(part.extents, self.extents, strict=True)
        )

    def note_gathered(self, name: str, kind: str, *parts: Part) -> None:
        """Remember that something reads whole tensors."""
        num_bytes = sum(
            math.prod(part.whole_shape) * tf.as_dtype(part.tensor.dtype).size for part in parts
        )
        self.gathered.setdefault(name, Gathered(name=name, kind=kind, num_bytes=num_bytes))

    def run(self, model: keras.Model, part: Any, group: SampleGroup, training: bool) -> Any:
        """Return the model's output for a part of its input."""

        def operation(op: Any) -> Callable[..., Any]:
            def call(*args: Any, **kwargs: Any) -> Any:
                return self.called(op, args, kwargs, group, training)

            return call

        outputs = run_graph(model, keras.tree.flatten(part), operation)
        return outputs[0] if isinstance(outputs, list) and len(outputs) == 1 else outputs

    def called(
        self, op: Any, args: Any, kwargs: dict[str, Any], group: SampleGroup, training: bool
    ) -> Any:
        """Return what an operation makes of arguments of which some are parts."""
        values = [value for value in keras.tree.flatten((args, kwargs)) if isinstance(value, Part)]
        options = dict(kwargs)
        if isinstance(op, keras.layers.Layer) and takes_training(op):
            options["training"] = training
        if not values:
            return op(*args, **options)
        inner = _own_graph(op) if isinstance(op, keras.Model) else None
        if inner is not None:
            return self.run(inner, args[0], group, training)
        try:
            if merges(op):
                return self._merged(op, args, kwargs, group)
            rule = rule_of(op, len(values[0].bounds) + 2)
            is_single = len(keras.tree.flatten(args)) == 1 and values[0] is args[0]
            if rule is not None and is_single:
                return rule(group, op, values[0], options)
        except CannotCutError:
            pass
        return self._on_whole(op, args, options, group)

    def _merged(self, op: Any, args: Any, kwargs: dict[str, Any], group: SampleGroup) -> Any:
        """Run an operation that joins tensors value by value."""
        parts = [value for value in keras.tree.flatten((args, kwargs)) if isinstance(value, Part)]
        # The one with the most voxels: others may be broadcast to it.
        first = max(parts, key=lambda part: math.prod(part.extents))
        axis = getattr(op, "axis", None) if type(op).__name__ == "Concatenate" else None
        if axis is not None and axis % len(first.whole_shape) != len(first.whole_shape) - 1:
            raise CannotCutError

        def own(value: Any) -> Any:
            if isinstance(value, Part):
                if value.extents != first.extents:
                    raise CannotCutError
                return value.aligned(group, first.bounds).tensor
            shape = getattr(value, "shape", ())
            if len(shape) <= 1:
                return value
            if len(shape) != len(first.whole_shape):
                raise CannotCutError
            rows = shape[1:-1]
            if all(count == 1 for count in rows):
                return value
            if tuple(rows) != first.extents:
                raise CannotCutError
            return cut(group, value, first.bounds).tensor

        args, kwargs = keras.tree.map_structure(own, (args, kwargs))
        return Part(tensor=op(*args, **kwargs), bounds=first.bounds)

    def _on_whole(self, op: Any, args: Any, kwargs: dict[str, Any], group: SampleGroup) -> Any:
        """Run a layer on the whole tensors, and cut what it makes if it has their extents."""
        parts = [value for value in keras.tree.flatten((args, kwargs)) if isinstance(value, Part)]
        self.note_gathered(op.name, type(op).__name__, *parts)

        def whole(value: Any) -> Any:
            return value.whole(group) if isinstance(value, Part) else value

        args, kwargs = keras.tree.map_structure(whole, (args, kwargs))
        bounds, extents = parts[0].bounds, parts[0].extents

        def back(value: Any) -> Any:
            is_image = len(value.shape) == len(extents) + 2
            if is_image and tuple(value.shape[1:-1]) == extents:
                return cut(group, value, bounds)
            return value

        return keras.tree.map_structure(back, op(*args, **kwargs))


def _check_outputs(model: keras.Model, graph: keras.Model) -> None:
    if len(graph.outputs) != 1:
        raise ValueError(
            f"The model {type(model).__name__} has {len(graph.outputs)} outputs in training, and "
            "split needs one. Leave out split, or the other outputs (deep supervision)."
        )


def _own_graph(model: keras.Model) -> keras.Model | None:
    """Return a model whose call is to run its graph of layers; None for a `call` of its own."""
    if is_own(model, "call"):
        return None
    graph = graph_of(model)
    return graph if has_graph(graph) else None


def _traced_graph(
    model: keras.Model,
    call: Callable[..., Any],
    inputs: Any,
    extents: tuple[int | None, ...],
    training: bool,
) -> keras.Model:
    """Return the graph of what the `call` of a model's own does.

    Raises ValueError where it cannot be read.
    """
    shape = [
        rows if extent is None else extent
        for rows, extent in zip(inputs.shape[1:-1], extents, strict=True)
    ]
    image = keras.Input((*shape, inputs.shape[-1]), batch_size=inputs.shape[0])
    options = {"training": training} if takes_training(model) else {}
    try:
        return keras.Model(image, call(image, **options))
    except Exception as error:
        raise ValueError(
            f"The layers of the model {type(model).__name__} cannot be read from its call, so "
            f"that `split` is not possible: {cause_line(error).rstrip('.')}. Use layers and "
            "keras.ops only, or a functional model."
        ) from error


class Groups:
    """The groups of the devices of this process.

    Args:
        mesh: All devices.
        local: Devices of this process.
        exchange: The backend's exchange.
    """

    def __init__(self, mesh: Mesh, local: range, exchange: ExchangeSwitch) -> None:
        self.exchange = exchange
        self._groups = {
            device: SampleGroup(mesh=mesh, device=device, exchange=exchange) for device in local
        }
        self._local = local

    def current(self) -> SampleGroup:
        """Return the group of the device that is being traced."""
        if len(self._local) == 1:
            return self._groups[self._local.start]
        context = tf.distribute.get_replica_context()
        return self._groups[int(tf.get_static_value(context.replica_id_in_sync_group))]

    @property
    def traffic(self) -> SentBytes:
        """What the first device of this process sends in a step, as it was last traced."""
        return self._groups[self._local.start].traffic
