"""Models of many kinds, small, each with what it is trained on."""

from functools import partial
from unittest.mock import patch

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from tfunet.models.make import make_model

CLASSES = 3


def unet(shape=(16, 16, 1), **options):
    return make_model(
        "unet",
        image_shape=shape,
        num_classes=CLASSES,
        options={"filters": 4, "levels": 1} | options,
    )


def isensee():
    options = {"filters": 4, "depth": 3, "segmentation_levels": 2}
    return make_model("isensee", image_shape=(16, 16, 16, 1), num_classes=CLASSES, options=options)


def shared():
    """One convolution used three times."""
    image = keras.Input((16, 16, 4))
    convolution = layers.Conv2D(4, 3, padding="same", activation="relu")
    x = convolution(convolution(convolution(image)))
    return keras.Model(image, layers.Conv2D(CLASSES, 1)(x))


def nested():
    """A model in a model in a model."""
    inner = keras.Sequential([layers.Conv2D(4, 3, padding="same"), layers.ReLU()])
    middle = keras.Sequential([inner, layers.BatchNormalization()])
    image = keras.Input((16, 16, 1))
    return keras.Model(image, layers.Conv2D(CLASSES, 1)(middle(image)))


class Subclassed(keras.Model):
    def __init__(self):
        super().__init__()
        self.first = layers.Conv2D(4, 3, padding="same")
        self.norm = layers.GroupNormalization(2)
        self.last = layers.Conv2D(CLASSES, 1)

    def call(self, x):
        x = keras.ops.gelu(self.norm(self.first(x)))
        return self.last(keras.ops.concatenate([x, keras.ops.tanh(x)], axis=-1))


class OwnStep(keras.Model):
    """With a penalty on the gradient's size: a second derivative."""

    def __init__(self):
        super().__init__()
        self.first = layers.Conv2D(4, 3, padding="same", activation="softplus")
        self.last = layers.Conv2D(CLASSES, 1)

    def call(self, x):
        return self.last(self.first(x))

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            with tf.GradientTape() as inner:
                inner.watch(x)
                loss = self.compute_loss(y=y, y_pred=self(x, training=True))
            slope = inner.gradient(loss, x)
            total = loss + tf.reduce_mean(slope**2)
        self.optimizer.apply(
            tape.gradient(total, self.trainable_variables), self.trainable_variables
        )
        return {"loss": total}


@tf.custom_gradient
def clipped(x):
    """Tanh, with a gradient of our own that needs input and output."""
    y = tf.tanh(x)

    def grad(upstream):
        return tf.clip_by_value(upstream * (1 - y**2) + 0 * x, -1e-3, 1e-3)

    return y, grad


class Clipped(layers.Layer):
    def call(self, x):
        return clipped(x)


def custom_gradient():
    image = keras.Input((16, 16, 1))
    x = Clipped()(layers.Conv2D(4, 3, padding="same")(image))
    return keras.Model(image, layers.Conv2D(CLASSES, 1)(x))


def dropout():
    image = keras.Input((16, 16, 1))
    x = layers.Conv2D(8, 3, padding="same", activation="relu")(image)
    x = layers.SpatialDropout2D(0.3)(x)
    x = layers.GaussianNoise(0.1)(layers.Dropout(0.3)(x))
    return keras.Model(image, layers.Conv2D(CLASSES, 1)(x))


def two_outputs():
    image = keras.Input((16, 16, 1))
    x = layers.Conv2D(4, 3, padding="same", activation="elu")(image)
    return keras.Model(
        image, [layers.Conv2D(CLASSES, 1)(x), layers.Conv2D(CLASSES, 3, padding="same")(x)]
    )


def one_dimensional():
    image = keras.Input((64, 2))
    x = layers.Conv1D(8, 5, padding="same", activation="swish")(image)
    x = layers.UpSampling1D(2)(layers.AveragePooling1D(2)(x))
    return keras.Model(image, layers.Conv1D(CLASSES, 1)(x))


def separable():
    image = keras.Input((16, 16, 3))
    x = layers.SeparableConv2D(8, 3, padding="same")(image)
    x = layers.LayerNormalization()(x)
    x = layers.DepthwiseConv2D(3, padding="same", activation="leaky_relu")(x)
    return keras.Model(image, layers.Conv2D(CLASSES, 1)(x))


def gated():
    """Sums and products that TensorFlow makes anew, and may not: under other names, of terms that
    are read twice, of factors of one size."""
    image = keras.Input((16, 16, 1))
    x, y = (layers.Conv2D(8, 3, padding="same")(image) for _ in range(2))
    gate = keras.ops.silu(x) * 0.5
    z = ((y * 0.3) * gate) * keras.ops.sigmoid(x)
    both = (x + y) + (z + gate)
    return keras.Model(image, layers.Conv2D(CLASSES, 1)(keras.ops.tanh(both + both)))


def attention():
    image = keras.Input((8, 8, 8))
    x = layers.Reshape((64, 8))(image)
    x = layers.Add()([x, layers.MultiHeadAttention(2, 4)(x, x)])
    return keras.Model(image, layers.Conv2D(CLASSES, 1)(layers.Reshape((8, 8, 8))(x)))


def recurrent():
    image = keras.Input((8, 16, 16, 1))
    x = layers.ConvLSTM2D(4, 3, padding="same", return_sequences=True)(image)
    return keras.Model(image, layers.Conv3D(CLASSES, 1)(x))


# The smallest network of each family, and up to which layer: what follows is more of the same, and
# takes long to trace.
APPLICATIONS = {
    "ConvNeXtTiny": "convnext_tiny_stage_1_block_0_identity",
    "DenseNet121": "conv2_block3_concat",
    "EfficientNetB0": "block2b_add",
    "EfficientNetV2B0": "block4a_project_bn",
    "InceptionResNetV2": "block35_1_ac",
    "InceptionV3": "mixed0",
    "MobileNet": "conv_pw_3_relu",
    "MobileNetV2": "block_4_add",
    "MobileNetV3Small": "expanded_conv_4_add",
    "NASNetMobile": "reduction_concat_stem_1",
    "ResNet50": "conv3_block1_out",
    "ResNet50V2": "conv2_block3_out",
    "VGG16": "block3_pool",
    "Xception": "block3_pool",
}
# The least that Keras takes, where 32 are too few.
SIDES = {"InceptionResNetV2": 75, "InceptionV3": 75, "Xception": 71}


class ReachedError(Exception):
    """The last layer that is wanted was made."""


def application(name):
    """One of keras.applications, with a class for each pixel."""
    side = SIDES.get(name, 32)
    image = keras.Input((side, side, 3))
    call = layers.Layer.__call__

    def watched(layer, *given, **options):
        output = call(layer, *given, **options)
        if layer.name == APPLICATIONS[name]:
            raise ReachedError(output)
        return output

    # The layers that follow are hundreds, and would be thrown away.
    with patch.object(layers.Layer, "__call__", watched), pytest.raises(ReachedError) as reached:
        getattr(keras.applications, name)(input_tensor=image, include_top=False, weights=None)
    (x,) = reached.value.args
    x = layers.Resizing(side, side, interpolation="nearest")(layers.Conv2D(CLASSES, 1)(x))
    return keras.Model(image, x)


KINDS = {
    "unet, residual, no normalization": lambda: unet(residual=True),
    "unet, batch": lambda: unet(normalization="batch", levels=2),
    "unet, group": lambda: unet(normalization="group", filters=8),
    "unet, instance, residual, dropout": lambda: unet(
        normalization="instance", residual=True, dropout=0.2
    ),
    "unet 3D": lambda: unet(shape=(16, 16, 16, 1), normalization="instance"),
    "unet, encoder": lambda: unet(
        (32, 32, 1), encoder="MobileNet", encoder_options={"alpha": 0.25}, filters=2
    ),
    "isensee": isensee,
    "shared layers": shared,
    "nested": nested,
    "subclassed": Subclassed,
    "own train_step": OwnStep,
    "custom gradient": custom_gradient,
    "dropout": dropout,
    "two outputs": two_outputs,
    "1D": one_dimensional,
    "separable": separable,
    "gated": gated,
    "attention": attention,
    "recurrent": recurrent,
    **{name: partial(application, name) for name in APPLICATIONS},
}
# One of each sort: make test trains these to the bit, and make contract all kinds.
OF_EACH_SORT = (
    *("unet, batch", "unet 3D", "own train_step", "attention", "dropout", "two outputs"),
    *("subclassed", "MobileNetV2"),
)
# One application for all: enough where no last bit is looked at. U-Nets differ in what they repeat.
MANY_LAYERS = {*APPLICATIONS, "unet, encoder"} - {"MobileNetV2"} | {
    *("isensee", "unet, residual, no normalization", "unet, instance, residual, dropout"),
    *("two outputs", "nested"),
}
FEW_KINDS = [kind for kind in KINDS if kind not in MANY_LAYERS]
SHAPES = {"subclassed": (16, 16, 1), "own train_step": (16, 16, 1)}


def batches(model, kind, num=3):
    """Return images and masks for as many steps, of 2 samples each."""
    dice = np.random.default_rng(0)
    shape = SHAPES.get(kind) or model.input_shape[1:]
    image = dice.normal(size=(2 * num, *shape)).astype("float32")
    mask = (image[..., 0] > 0.3).astype("int32") + (image[..., 0] > 1)
    outputs = 2 if kind == "two outputs" else 1
    return image, mask if outputs == 1 else [mask] * outputs
