"""A variational autoencoder with a train_step of its own."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops
from recorded import arguments, record

import tfunet

tfunet.distribute()

keras.utils.set_random_seed(1)
options = arguments()
LATENT = 2


class Sampling(layers.Layer):
    """Draws a point from the distribution that the encoder describes."""

    def __init__(self, **settings):
        super().__init__(**settings)
        self.seed_generator = keras.random.SeedGenerator(7)

    def call(self, inputs):
        mean, log_variance = inputs
        noise = keras.random.normal(ops.shape(mean), seed=self.seed_generator)
        return mean + ops.exp(0.5 * log_variance) * noise


class VAE(keras.Model):
    """Reconstructs an image from a point near its code."""

    def __init__(self, encoder, decoder, **settings):
        super().__init__(**settings)
        self.encoder, self.decoder, self.sampling = encoder, decoder, Sampling()
        self.total_tracker = keras.metrics.Mean(name="loss")
        self.reconstruction_tracker = keras.metrics.Mean(name="reconstruction_loss")
        self.kl_tracker = keras.metrics.Mean(name="kl_loss")

    @property
    def metrics(self):
        return [self.total_tracker, self.reconstruction_tracker, self.kl_tracker]

    def call(self, inputs):
        mean, _ = self.encoder(inputs)
        return self.decoder(mean)

    def train_step(self, data):
        with tf.GradientTape() as tape:
            mean, log_variance = self.encoder(data)
            image = self.decoder(self.sampling([mean, log_variance]))
            errors = keras.losses.binary_crossentropy(data, image)
            reconstruction = ops.mean(ops.sum(errors, axis=(1, 2)))
            divergence = -0.5 * (1 + log_variance - ops.square(mean) - ops.exp(log_variance))
            kl = ops.mean(ops.sum(divergence, axis=1))
            total = reconstruction + kl
        gradients = tape.gradient(total, self.trainable_weights)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_weights, strict=True))
        self.total_tracker.update_state(total)
        self.reconstruction_tracker.update_state(reconstruction)
        self.kl_tracker.update_state(kl)
        return {metric.name: metric.result() for metric in self.metrics}


image = keras.Input((12, 12, 1))
x = layers.Conv2D(8, 3, strides=2, activation="relu", padding="same")(image)
x = layers.Dense(16, activation="relu")(layers.Flatten()(x))
encoder = keras.Model(image, [layers.Dense(LATENT)(x), layers.Dense(LATENT)(x)])

code = keras.Input((LATENT,))
x = layers.Reshape((6, 6, 8))(layers.Dense(6 * 6 * 8, activation="relu")(code))
x = layers.Conv2DTranspose(8, 3, strides=2, activation="relu", padding="same")(x)
decoder = keras.Model(code, layers.Conv2D(1, 3, activation="sigmoid", padding="same")(x))

rng = np.random.default_rng(1)
rows, columns = np.mgrid[:12, :12]
centres = rng.uniform(2, 10, size=(2, 103, 1, 1))
images = np.exp(-((rows - centres[0]) ** 2 + (columns - centres[1]) ** 2) / 6)[..., None]
images = images.astype("float32")

model = VAE(encoder, decoder)
model.compile(optimizer=keras.optimizers.SGD(0.001))
history = model.fit(images, epochs=3, batch_size=16)
record(options.out, model, history=history.history, predict=model.predict(images[:21]))
