"""Small models, layers and losses of a user's own, on which steps are proved."""

import keras
import tensorflow as tf
from keras import layers


def simple(image_shape, num_classes, middle=(), kind=keras.Model, **options):
    """Return two convolutions with these layers between them."""
    image = keras.Input(image_shape)
    x = layers.Conv2D(4, 3, padding="same", activation="tanh", name="first", **options)(image)
    for layer in middle:
        x = layer(x)
    return kind(image, layers.Conv2D(num_classes, 3, padding="same", name="last")(x))


def plain(*, image_shape, num_classes):
    return simple(image_shape, num_classes)


def over_space(*, image_shape, num_classes):
    return simple(image_shape, num_classes, [layers.Softmax(axis=(1, 2), name="over_space")])


class MovingMean(layers.Layer):
    """Keeps a moving mean of what it sees, and gives it back as it came."""

    def build(self, shape):
        self.mean = self.add_weight(shape=(shape[-1],), trainable=False, name="mean")

    def call(self, inputs, training=False):
        if training:
            seen = keras.ops.mean(inputs, axis=(0, 1, 2))
            self.mean.assign(0.9 * self.mean + 0.1 * seen)
        return inputs


def moving_mean(*, image_shape, num_classes):
    return simple(image_shape, num_classes, [MovingMean(name="moving")])


def penalized(*, image_shape, num_classes):
    return simple(image_shape, num_classes, activity_regularizer="l2")


class Borders(keras.Loss):
    """Compares each pixel with its neighbours, too."""

    def call(self, y_true, y_pred):
        mask = keras.ops.cast(y_true, y_pred.dtype)[..., None]
        gap = tf.square(mask - y_pred)
        return tf.reduce_mean(tf.nn.avg_pool2d(gap, 3, 1, "SAME"), axis=-1) ** 2


def dropped(*, image_shape, num_classes):
    return simple(image_shape, num_classes, [layers.Dropout(0.3)])


def slow(*, image_shape, num_classes):
    return simple(image_shape, num_classes, [layers.BatchNormalization(momentum=0.999)])


class WithoutConfig(layers.Layer):
    """Takes what no configuration of it would have."""

    def __init__(self, factor):
        super().__init__()
        self.factor = factor

    def get_config(self):
        raise NotImplementedError

    def call(self, inputs):
        return self.factor * inputs


def without_config(*, image_shape, num_classes):
    return simple(image_shape, num_classes, [WithoutConfig(2.0)])


def normalized(*, image_shape, num_classes):
    return simple(image_shape, num_classes, [layers.BatchNormalization(name="norm")])


class OnlyFloat32(layers.Layer):
    def call(self, inputs):
        if inputs.dtype != "float32":
            raise TypeError("This layer is for float32.")
        return 2 * inputs


def only_float32(*, image_shape, num_classes):
    return simple(image_shape, num_classes, [OnlyFloat32()])


def of_one_size(*, image_shape, num_classes, least=32):
    if min(image_shape[:-1]) < least:
        raise ValueError(f"The image must have {least} pixels.")
    return simple(image_shape, num_classes)


def flat(*, image_shape, num_classes):
    image = keras.Input(image_shape)
    x = layers.Flatten()(layers.Conv2D(1, 3, strides=8, padding="same")(image))
    pixels = image_shape[0] * image_shape[1] * num_classes
    return keras.Model(
        image, layers.Reshape((*image_shape[:-1], num_classes))(layers.Dense(pixels)(x))
    )


class Noisy(keras.Model):
    """Trains on images with noise of its own."""

    def train_step(self, data):
        x, y = data
        return super().train_step((x + keras.random.normal(tf.shape(x), stddev=0.1), y))


def noisy(*, image_shape, num_classes):
    keras.random.uniform((1,))  # A step of several passes cannot make the state of all draws.
    return simple(image_shape, num_classes, kind=Noisy)


class Noise(layers.Layer):
    """Adds numbers that TensorFlow draws, of which Keras knows nothing."""

    def call(self, inputs):
        return inputs + tf.random.normal(tf.shape(inputs), dtype=inputs.dtype)


def with_noise(*, image_shape, num_classes):
    return simple(image_shape, num_classes, [Noise()])


class Around(layers.Layer):
    """Adds numbers to what another layer makes."""

    def __init__(self, **options):
        super().__init__(**options)
        self.inner, self.seeds = layers.Conv2D(4, 1), keras.random.SeedGenerator(3)

    def call(self, inputs):
        made = self.inner(inputs)
        return made + keras.random.normal(tf.shape(made), seed=self.seeds, dtype=made.dtype)


def with_own_noise(*, image_shape, num_classes):
    return simple(image_shape, num_classes, [Around()])


class Mirrored(keras.Model):
    """Compares an image with the output for its mirror image."""

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            output = tf.reverse(self(tf.reverse(x, [1]), training=True), [1])
            loss = self.compute_loss(x, y, output)
        weights = self.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        self._loss_tracker.update_state(loss, sample_weight=tf.shape(x)[0])
        return {"loss": self._loss_tracker.result()}


def mirrored(*, image_shape, num_classes):
    return simple(image_shape, num_classes, kind=Mirrored)


def number(*, image_shape, num_classes):
    image = keras.Input(image_shape)
    x = layers.Conv3D(4, 3, padding="same", activation="tanh", name="first")(image)
    return keras.Model(image, layers.Dense(num_classes)(layers.GlobalAveragePooling3D()(x)))
