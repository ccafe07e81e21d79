"""A generator and a discriminator, each with its own optimizer."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops
from recorded import arguments, record

import tfunet

tfunet.distribute()

keras.utils.set_random_seed(1)
options = arguments()
LATENT = 8


class GAN(keras.Model):
    """Draws images that the discriminator takes for real ones."""

    def __init__(self, discriminator, generator):
        super().__init__()
        self.discriminator, self.generator = discriminator, generator
        self.seed_generator = keras.random.SeedGenerator(7)
        self.d_loss_metric = keras.metrics.Mean(name="d_loss")
        self.g_loss_metric = keras.metrics.Mean(name="g_loss")

    def compile(self, d_optimizer, g_optimizer, loss_fn):
        super().compile()
        self.d_optimizer, self.g_optimizer, self.loss_fn = d_optimizer, g_optimizer, loss_fn

    @property
    def metrics(self):
        return [self.d_loss_metric, self.g_loss_metric]

    def call(self, inputs):
        return self.generator(inputs)

    def train_step(self, real_images):
        batch_size = ops.shape(real_images)[0]
        latent = keras.random.normal((batch_size, LATENT), seed=self.seed_generator)
        images = ops.concatenate([self.generator(latent), real_images], axis=0)
        labels = ops.concatenate([ops.ones((batch_size, 1)), ops.zeros((batch_size, 1))], axis=0)
        with tf.GradientTape() as tape:
            d_loss = self.loss_fn(labels, self.discriminator(images))
        weights = self.discriminator.trainable_weights
        self.d_optimizer.apply_gradients(zip(tape.gradient(d_loss, weights), weights, strict=True))

        latent = keras.random.normal((batch_size, LATENT), seed=self.seed_generator)
        misleading = ops.zeros((batch_size, 1))
        with tf.GradientTape() as tape:
            g_loss = self.loss_fn(misleading, self.discriminator(self.generator(latent)))
        weights = self.generator.trainable_weights
        self.g_optimizer.apply_gradients(zip(tape.gradient(g_loss, weights), weights, strict=True))

        self.d_loss_metric.update_state(d_loss)
        self.g_loss_metric.update_state(g_loss)
        return {"d_loss": self.d_loss_metric.result(), "g_loss": self.g_loss_metric.result()}


discriminator = keras.Sequential(
    [
        keras.Input((12, 12, 1)),
        layers.Conv2D(8, 3, strides=2, padding="same"),
        layers.LeakyReLU(negative_slope=0.2),
        layers.Conv2D(16, 3, strides=2, padding="same"),
        layers.LeakyReLU(negative_slope=0.2),
        layers.GlobalMaxPooling2D(),
        layers.Dense(1),
    ]
)
generator = keras.Sequential(
    [
        keras.Input((LATENT,)),
        layers.Dense(6 * 6 * 8),
        layers.LeakyReLU(negative_slope=0.2),
        layers.Reshape((6, 6, 8)),
        layers.Conv2DTranspose(8, 4, strides=2, padding="same"),
        layers.LeakyReLU(negative_slope=0.2),
        layers.Conv2D(1, 5, padding="same", activation="sigmoid"),
    ]
)

rng = np.random.default_rng(1)
rows, columns = np.mgrid[:12, :12]
centres = rng.uniform(2, 10, size=(2, 86, 1, 1))
images = np.exp(-((rows - centres[0]) ** 2 + (columns - centres[1]) ** 2) / 6)[..., None]
train = tf.data.Dataset.from_tensor_slices(images.astype("float32"))
train = train.shuffle(86, seed=1).batch(16).prefetch(tf.data.AUTOTUNE)

model = GAN(discriminator, generator)
model.compile(
    d_optimizer=keras.optimizers.SGD(0.02),
    g_optimizer=keras.optimizers.SGD(0.02, momentum=0.5),
    loss_fn=keras.losses.BinaryCrossentropy(from_logits=True),
)
history = model.fit(train, epochs=2)
latent = rng.normal(size=(11, LATENT)).astype("float32")
record(options.out, model, history=history.history, predict=model.predict(latent))
