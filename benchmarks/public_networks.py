"""Small networks of 4 to 16 filters after published architectures, for check_ways.py."""

from collections.abc import Callable
from typing import Any

import keras
from keras import layers

Shape = tuple[int, ...]
# On a CPU, TensorFlow 2.16 to 2.21 with oneDNN write beyond the gradient of a convolution of 1 x 1
# pixels with strides and fewer channels, where the batch is odd: the process dies.
LEAST_STRIDED = 16


def conv(x: Any, filters: int, kernel: int = 3, **options: Any) -> Any:
    """Return a convolution of the same size with ReLU, unless told otherwise."""
    return layers.Conv2D(filters, kernel, **{"padding": "same", "activation": "relu", **options})(x)


def conv_norm(
    x: Any, filters: int, norm: Callable[[], Any], kernel: int = 3, **options: Any
) -> Any:
    """Return a convolution without bias, normalised, with ReLU."""
    x = conv(x, filters, kernel, activation=None, use_bias=False, **options)
    return layers.ReLU()(norm()(x))


def joined(*tensors: Any) -> Any:
    """Return the channels of all tensors."""
    return layers.Concatenate()(list(tensors))


def up(x: Any, filters: int, kernel: int = 2) -> Any:
    """Return a tensor of twice the size."""
    return layers.Conv2DTranspose(filters, kernel, strides=2, padding="same")(x)


def ended(image: Any, x: Any, num_classes: int) -> keras.Model:
    """Return the model that ends with the logits of each pixel."""
    return keras.Model(image, layers.Conv2D(num_classes, 1)(x))


def two_levels(
    image_shape: Shape, num_classes: int, block: Callable[[Any, int], Any]
) -> keras.Model:
    """Return an encoder and a decoder with a skip, all of this block."""
    image = keras.Input(image_shape)
    first = block(image, 4)
    x = block(layers.MaxPooling2D()(first), 8)
    return ended(image, block(joined(first, up(x, 4)), 4), num_classes)


def unet(*, image_shape: Shape, num_classes: int) -> keras.Model:
    """U-Net (Ronneberger et al. 2015) whose convolutions keep the size."""
    return two_levels(image_shape, num_classes, lambda x, n: conv(conv(x, n), n))


def unet_valid(*, image_shape: Shape, num_classes: int) -> keras.Model:
    """U-Net (Ronneberger et al. 2015) as published: valid convolutions, and skips that are cut."""
    image = keras.Input(image_shape)
    x = layers.ZeroPadding2D(8)(image)
    first = conv(conv(x, 4, padding="valid"), 4, padding="valid")
    x = conv(conv(layers.MaxPooling2D()(first), 8, padding="valid"), 8, padding="valid")
    x = joined(layers.Cropping2D(4)(first), up(x, 4))
    x = conv(conv(x, 4, padding="valid"), 4, padding="valid")
    return ended(image, x, num_classes)


def unet_batch_norm(*, image_shape: Shape, num_classes: int) -> keras.Model:
    """U-Net with batch normalisation, as 3D U-Net has it (Cicek et al. 2016)."""

    def block(x: Any, filters: int) -> Any:
        return conv_norm(x, filters, layers.BatchNormalization)

    return two_levels(image_shape, num_classes, block)


def unet_synchronized(*, image_shape: Shape, num_classes: int) -> keras.Model:
    """U-Net with the statistics of all replicas, as in DeepLab v3 and PSPNet trained on many."""

    def block(x: Any, filters: int) -> Any:
        return conv_norm(x, filters, lambda: layers.BatchNormalization(synchronized=True))

    return two_levels(image_shape, num_classes, block)


def unet_instance_norm(*, image_shape: Shape, num_classes: int) -> keras.Model:
    """U-Net with instance normalisation and leaky ReLU, as nnU-Net (Isensee et al. 2021)."""

    def block(x: Any, filters: int) -> Any:
        x = conv(x, filters, activation=None)
        return layers.LeakyReLU(negative_slope=0.01)(layers.GroupNormalization(-1)(x))

    return two_levels(image_shape, num_classes, block)


def resunet(*, image_shape: Shape, num_classes: int) -> keras.Model:
    """ResUNet (Zhang et al. 2018): residual blocks, strides for pooling."""

    def block(x: Any, filters: int, strides: int = 1) -> Any:
        short = conv(x, filters, 1, strides=strides, activation=None)
        x = conv(conv(layers.ReLU()(x), filters, strides=strides), filters, activation=None)
        return layers.Add()([x, short])

    image = keras.Input(image_shape)
    first = block(image, LEAST_STRIDED)
    x = layers.UpSampling2D()(block(first, LEAST_STRIDED, 2))
    return ended(image, block(joined(first, x), 4), num_classes)


def attention_unet(*, image_shape: Shape, num_classes: int) -> keras.Model:
    """Attention U-Net (Oktay et al. 2018): the skip is weighted by a gate."""
    image = keras.Input(image_shape)
    first = conv(image, LEAST_STRIDED)
    x = conv(layers.MaxPooling2D()(first), 8)
    coarse = layers.Add()([conv(first, 4, 1, strides=2, activation=None), conv(x, 4, 1)])
    gate = conv(layers.ReLU()(coarse), 1, 1, activation="sigmoid")
    gate = layers.UpSampling2D(interpolation="bilinear")(gate)
    x = joined(layers.Multiply()([first, gate]), layers.UpSampling2D()(x))
    return ended(image, conv(x, 4), num_classes)


def unet_plus_plus(*, image_shape: Shape, num_classes: int) -> keras.Model:
    """U-Net++ (Zhou et al. 2018): nested skips, the mean of outputs of each depth."""
    image = keras.Input(image_shape)
    x00 = conv(image, 4)
    x10 = conv(layers.MaxPooling2D()(x00), 4)
    x20 = conv(layers.MaxPooling2D()(x10), 8)
    x01 = conv(joined(x00, up(x10, 4)), 4)
    x11 = conv(joined(x10, up(x20, 4)), 4)
    x02 = conv(joined(x00, x01, up(x11, 4)), 4)
    heads = [layers.Conv2D(num_classes, 1)(x) for x in (x01, x02)]
    return keras.Model(image, layers.Average()(heads))


def segnet(*, image_shape: Shape, num_classes: int) -> keras.Model:
    """SegNet (Badrinarayanan et al. 2017): no skips; up-sampling to where the maxima were."""
    image = keras.Input(image_shape)
    first = conv(image, 4)
    pooled = layers.MaxPooling2D()(first)
    x = conv(conv(pooled, 8), 4)
    here = keras.ops.equal(first, layers.UpSampling2D()(pooled))
    x = layers.UpSampling2D()(x) * keras.ops.cast(here, "float32")
    return ended(image, conv(x, 4), num_classes)


def fcn8(*, image_shape: Shape, num_classes: int) -> keras.Model:
    """FCN-8 (Long et al. 2015): scores of three strides are added up."""
    image = keras.Input(image_shape)
    x, scores = image, []
    for filters in (4, 4, 8):
        x = layers.MaxPooling2D()(conv(x, filters))
        scores.append(layers.Conv2D(num_classes, 1)(x))
    x = conv(x, 8, 7)
    fused = layers.Conv2D(num_classes, 1)(layers.Dropout(0.0)(x))
    for score in reversed(scores[:-1]):
        fused = layers.Add()([up(fused, num_classes, 4), score])
    return keras.Model(image, up(fused, num_classes, 4))


def enet(*, image_shape: Shape, num_classes: int) -> keras.Model:
    """ENet (Paszke et al. 2016): a split stem, asymmetric and dilated bottlenecks, PReLU."""
    image = keras.Input(image_shape)
    x = joined(conv(image, 3, strides=2), layers.MaxPooling2D()(image))
    for options in ({"dilation_rate": 2}, {}):
        inner = layers.PReLU(shared_axes=[1, 2])(conv(x, 2, 1, activation=None))
        if options:
            inner = conv(inner, 2, **options)
        else:
            inner = layers.Conv2D(2, (5, 1), padding="same", use_bias=False)(inner)
            inner = layers.Conv2D(2, (1, 5), padding="same")(inner)
        x = layers.PReLU(shared_axes=[1, 2])(x + conv(inner, x.shape[-1], 1, activation=None))
    return ended(image, up(x, 4), num_classes)


def pspnet(*, image_shape: Shape, num_classes: int) -> keras.Model:
    """PSPNet (Zhao et al. 2017): means of regions of several sizes."""
    image = keras.Input(image_shape)
    x = conv(conv(image, 4), 8, strides=2)
    side, pyramid = x.shape[1], [x]
    for bins in (1, 2, 4):
        size = side // bins
        pooled = conv(layers.AveragePooling2D(size)(x), 2, 1)
        pyramid.append(layers.UpSampling2D(size, interpolation="bilinear")(pooled))
    x = layers.UpSampling2D(interpolation="bilinear")(conv(joined(*pyramid), 4))
    return ended(image, x, num_classes)


def deeplab(*, image_shape: Shape, num_classes: int) -> keras.Model:
    """DeepLab v3+ (Chen et al. 2018): dilated separable convolutions, and a mean of the image."""
    image = keras.Input(image_shape)
    low = conv(image, 4, strides=2)
    x = conv(low, 8, strides=2)
    branches = [conv(x, 4, 1)]
    for rate in (2, 3):
        separable = layers.SeparableConv2D(4, 3, dilation_rate=rate, padding="same")
        branches.append(layers.ReLU()(separable(x)))
    mean = conv(layers.GlobalAveragePooling2D(keepdims=True)(x), 4, 1)
    branches.append(layers.UpSampling2D(x.shape[1:3], interpolation="bilinear")(mean))
    x = layers.UpSampling2D(interpolation="bilinear")(conv(joined(*branches), 4, 1))
    x = conv(joined(x, conv(low, 2, 1)), 4)
    return ended(image, layers.UpSampling2D(interpolation="bilinear")(x), num_classes)


def fpn(*, image_shape: Shape, num_classes: int) -> keras.Model:
    """Panoptic FPN (Kirillov et al. 2019): a pyramid from the top, all levels added up."""
    image = keras.Input(image_shape)
    c1 = conv(image, 4, strides=2)
    c2 = conv(c1, 8, strides=2)
    p2 = conv(c2, 4, 1, activation=None)
    p1 = layers.Add()([conv(c1, 4, 1, activation=None), layers.UpSampling2D()(p2)])
    smooth = layers.Conv2D(4, 3, padding="same", name="smooth")
    x = layers.Add()([smooth(p1), layers.UpSampling2D(interpolation="bilinear")(smooth(p2))])
    return ended(image, layers.UpSampling2D(interpolation="bilinear")(x), num_classes)


def hrnet(*, image_shape: Shape, num_classes: int) -> keras.Model:
    """HRNet (Wang et al. 2020): two resolutions side by side, which exchange."""
    image = keras.Input(image_shape)
    high = conv(image, 4)
    low = conv(high, 8, strides=2)
    for _ in range(2):
        high, low = conv(high, 4), conv(low, 8)
        lifted = layers.UpSampling2D()(conv(low, 4, 1, activation=None))
        lowered = conv(high, 8, strides=2, activation=None)
        high, low = layers.ReLU()(high + lifted), layers.ReLU()(low + lowered)
    return ended(image, joined(high, layers.UpSampling2D()(low)), num_classes)


def tiramisu(*, image_shape: Shape, num_classes: int) -> keras.Model:
    """The One Hundred Layers Tiramisu (Jegou et al. 2017): dense blocks, pre-activation."""

    def dense(x: Any, filters: int) -> Any:
        for _ in range(2):
            normed = layers.ReLU()(layers.BatchNormalization(momentum=0.9)(x))
            x = joined(x, conv(normed, filters // 2, activation=None))
        return x

    return two_levels(image_shape, num_classes, dense)


def mobilenet(*, image_shape: Shape, num_classes: int) -> keras.Model:
    """MobileNetV2 (Sandler et al. 2018): inverted residuals of depthwise convolutions, ReLU6."""
    image = keras.Input(image_shape)
    x = conv(image, 4, strides=2)
    for _ in range(2):
        wide = conv(x, 8, 1, activation="relu6")
        wide = layers.DepthwiseConv2D(3, padding="same", activation="relu6")(wide)
        x = layers.Add()([x, conv(wide, 4, 1, activation=None)])
    return ended(image, layers.UpSampling2D()(x), num_classes)


def squeeze_excitation(*, image_shape: Shape, num_classes: int) -> keras.Model:
    """U-Net with squeeze and excitation (Hu et al. 2018): channels weighted by their means."""

    def block(x: Any, filters: int) -> Any:
        x = conv(x, filters)
        mean = layers.GlobalAveragePooling2D(keepdims=True)(x)
        weights = layers.Dense(filters, activation="sigmoid")(layers.Dense(2, "relu")(mean))
        return layers.Multiply()([x, weights])

    return two_levels(image_shape, num_classes, block)


def convnext(*, image_shape: Shape, num_classes: int) -> keras.Model:
    """ConvNeXt (Liu et al. 2022): depthwise 7 x 7, layer normalisation, GELU."""
    image = keras.Input(image_shape)
    x = layers.LayerNormalization()(conv(image, 4, 2, strides=2, activation=None))
    for _ in range(2):
        inner = layers.LayerNormalization()(layers.DepthwiseConv2D(7, padding="same")(x))
        inner = layers.Dense(4)(layers.Dense(8, activation="gelu")(inner))
        x = layers.Add()([x, inner])
    return ended(image, up(x, 4), num_classes)


def transformer(*, image_shape: Shape, num_classes: int) -> keras.Model:
    """SETR (Zheng et al. 2021): attention between patches of the image."""
    image = keras.Input(image_shape)
    x = conv(image, 8, 4, strides=4, activation=None)
    rows, columns, width = x.shape[1:]
    tokens = layers.Reshape((rows * columns, width))(x)
    normed = layers.LayerNormalization()(tokens)
    tokens = tokens + layers.MultiHeadAttention(2, 4)(normed, normed)
    tokens = tokens + layers.Dense(8)(layers.Dense(8, "gelu")(layers.LayerNormalization()(tokens)))
    x = layers.Reshape((rows, columns, width))(tokens)
    return ended(image, layers.UpSampling2D(4, interpolation="bilinear")(x), num_classes)


def spectral(*, image_shape: Shape, num_classes: int) -> keras.Model:
    """U-Net with spectral normalisation (Miyato et al. 2018): its layers keep a vector."""

    def block(x: Any, filters: int) -> Any:
        inner = layers.Conv2D(filters, 3, padding="same", activation="relu")
        return layers.SpectralNormalization(inner)(x)

    return two_levels(image_shape, num_classes, block)


def noisy(*, image_shape: Shape, num_classes: int) -> keras.Model:
    """Bayesian SegNet (Kendall et al. 2017): dropout in all blocks, and noise."""

    def block(x: Any, filters: int) -> Any:
        x = layers.Dropout(0.2, seed=1)(layers.GaussianNoise(0.1, seed=2)(conv(x, filters)))
        return layers.SpatialDropout2D(0.3, seed=3)(x)

    return two_levels(image_shape, num_classes, block)


def row_lstm(*, image_shape: Shape, num_classes: int) -> keras.Model:
    """ReNet (Visin et al. 2015): an LSTM goes over the rows."""
    image = keras.Input(image_shape)
    x = conv(image, 4, strides=4)
    rows, columns, width = x.shape[1:]
    x = layers.LSTM(columns * width, return_sequences=True)(
        layers.Reshape((rows, columns * width))(x)
    )
    x = layers.Reshape((rows, columns, width))(x)
    return ended(image, layers.UpSampling2D(4)(x), num_classes)


def shared_and_nested(*, image_shape: Shape, num_classes: int) -> keras.Model:
    """R2U-Net (Alom et al. 2018): layers that run again on their output, in a nested model."""
    image = keras.Input(image_shape)
    inside = keras.Input((*image_shape[:-1], 4))
    again, x = layers.Conv2D(4, 3, padding="same", activation="relu", name="again"), inside
    for _ in range(3):
        x = again(layers.Add()([inside, x]))
    recurrent = keras.Model(inside, x, name="recurrent")
    x = recurrent(recurrent(conv(image, 4, 1)))
    return ended(image, x, num_classes)


@keras.saving.register_keras_serializable("check_ways")
class Centred(layers.Layer):
    """Subtracts a moving mean of each channel, as centre loss has it (Wen et al. 2016)."""

    def build(self, shape: Shape) -> None:
        """Make the mean."""
        self.mean = self.add_weight(shape=shape[-1:], initializer="zeros", trainable=False)

    def call(self, inputs: Any, training: bool = False) -> Any:
        """Move the mean in training."""
        if training:
            now = keras.ops.mean(inputs, axis=tuple(range(inputs.shape.rank - 1)))
            self.mean.assign(0.9 * self.mean + 0.1 * now)
        return inputs - self.mean


def own_state(*, image_shape: Shape, num_classes: int) -> keras.Model:
    """U-Net with a layer of the user's own that keeps a moving mean."""
    return two_levels(image_shape, num_classes, lambda x, n: Centred()(conv(x, n)))


@keras.saving.register_keras_serializable("check_ways")
class Smooth(keras.Model):
    """Adds the total variation of the logits to the loss."""

    def compute_loss(
        self, x: Any = None, y: Any = None, y_pred: Any = None, *args: Any, **options: Any
    ) -> Any:
        """Return the loss with its own term."""
        loss = super().compute_loss(x, y, y_pred, *args, **options)
        variation = keras.ops.mean(keras.ops.abs(y_pred[:, 1:] - y_pred[:, :-1]))
        return loss + 0.1 * variation


def own_loss(*, image_shape: Shape, num_classes: int) -> keras.Model:
    """U-Net whose own loss wants smooth logits, with weight decay in its layers."""
    decay = keras.regularizers.L2(1e-3)
    inner = two_levels(image_shape, num_classes, lambda x, n: conv(x, n, kernel_regularizer=decay))
    return Smooth(inner.input, inner.output)


NETWORKS = (
    "unet",
    "unet_valid",
    "unet_batch_norm",
    "unet_synchronized",
    "unet_instance_norm",
    "resunet",
    "attention_unet",
    "unet_plus_plus",
    "segnet",
    "fcn8",
    "enet",
    "pspnet",
    "deeplab",
    "fpn",
    "hrnet",
    "tiramisu",
    "mobilenet",
    "squeeze_excitation",
    "convnext",
    "transformer",
    "spectral",
    "noisy",
    "row_lstm",
    "shared_and_nested",
    "own_state",
    "own_loss",
)
