"""A network of Keras as one of torch, with the same weights: layer by layer, channels first."""

import keras
import torch
from torch.nn import functional


def twin(model):
    """Return a function from (batch, channels, *spatial) to logits (batch, classes, *spatial)."""
    steps = []
    for operation in model.operations:
        if isinstance(operation, keras.layers.InputLayer):
            continue
        inputs = [
            tensor._keras_history.operation.name
            for tensor in operation._inbound_nodes[0].input_tensors
        ]
        steps.append((operation.name, inputs, _layer(operation)))
    (first,) = (tensor._keras_history.operation.name for tensor in model.inputs)
    (last,) = (tensor._keras_history.operation.name for tensor in model.outputs)

    @torch.inference_mode()
    def forward(image):
        found = {first: image}
        for name, inputs, layer in steps:
            found[name] = layer(*(found[each] for each in inputs))
        return found[last]

    return forward


def _layer(layer):
    kind = type(layer).__name__
    if kind.startswith("Conv"):
        rank = layer.rank
        kernel, *bias = (torch.from_numpy(weight) for weight in layer.get_weights())
        # Keras: (*size, in, out), and (*size, out, in) where it is transposed.
        kernel = kernel.permute(rank + 1, rank, *range(rank)).contiguous()
        bias = bias[0] if bias else None
        if "Transpose" in kind:
            run = getattr(functional, f"conv_transpose{rank}d")
            return lambda image: run(image, kernel, bias, stride=layer.strides)
        run = getattr(functional, f"conv{rank}d")
        activation = (
            torch.relu if layer.activation is keras.activations.relu else lambda given: given
        )
        return lambda image: activation(run(image, kernel, bias, padding="same"))
    if kind.startswith("MaxPooling"):
        run = getattr(functional, f"max_pool{len(layer.pool_size)}d")
        return lambda image: run(image, 2)
    if kind == "Concatenate":
        return lambda *images: torch.cat(images, 1)
    if kind == "LeakyReLU":
        return lambda image: functional.leaky_relu(image, layer.negative_slope)
    if kind == "Activation" and layer.activation is keras.activations.relu:
        return torch.relu
    if kind == "Activation" and layer.activation is keras.activations.linear:
        return lambda image: image
    if kind.startswith("UpSampling") and getattr(layer, "interpolation", "nearest") == "nearest":
        sizes = [float(size) for size in layer.size]
        return lambda image: functional.interpolate(image, scale_factor=sizes, mode="nearest")
    raise ValueError(f"benchmarks/torch_twin.py has no {kind}.")
