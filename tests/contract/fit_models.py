"""Small models with a train_step of their own, as scripts of other people have them."""

import keras
import tensorflow as tf
from keras import layers, ops


class Autoencoder(keras.Model):
    """A variational autoencoder: random numbers within its step, and logs that are no metrics."""

    def __init__(self):
        super().__init__()
        self.encoder = keras.Sequential([keras.Input((6,)), layers.Dense(4)])
        self.decoder = keras.Sequential([keras.Input((2,)), layers.Dense(6)])
        self.seed = keras.random.SeedGenerator(3)
        self.total = keras.metrics.Mean("total")

    @property
    def metrics(self):
        return [self.total]

    def train_step(self, data):
        with tf.GradientTape() as tape:
            mean, spread = ops.split(self.encoder(data), 2, axis=-1)
            noise = keras.random.normal(ops.shape(mean), seed=self.seed)
            decoded = self.decoder(mean + ops.exp(0.5 * spread) * noise)
            error = ops.mean(ops.sum((data - decoded) ** 2, -1))
            divergence = ops.mean(ops.sum(mean**2 + ops.exp(spread) - 1 - spread, -1))
            loss = error + 0.5 * divergence
        weights = self.trainable_weights
        self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        self.total.update_state(loss)
        return {"loss": self.total.result(), "error": error}


class Adversaries(keras.Model):
    """Two networks, each with an optimizer; both see false and true samples in one batch."""

    def __init__(self):
        super().__init__()
        judge = [keras.Input((4,)), layers.Dense(4, "tanh"), layers.Dropout(0.3), layers.Dense(1)]
        self.judge = keras.Sequential(judge)
        self.maker = keras.Sequential([keras.Input((3,)), layers.Dense(4)])
        self.seed = keras.random.SeedGenerator(5)
        self.loss_of_judge = keras.metrics.Mean("judge")
        self.loss_of_maker = keras.metrics.Mean("maker")

    def compile(self):
        super().compile()
        self.optimizers = [keras.optimizers.SGD(0.1), keras.optimizers.SGD(0.05)]
        self.error = keras.losses.BinaryCrossentropy(from_logits=True)

    @property
    def metrics(self):
        return [self.loss_of_judge, self.loss_of_maker]

    def train_step(self, data):
        rows = ops.shape(data)[0]
        made = self.maker(keras.random.normal((rows, 3), seed=self.seed))
        samples = ops.concatenate([made, data], 0)
        labels = ops.concatenate([ops.ones((rows, 1)), ops.zeros((rows, 1))], 0)
        labels += 0.05 * keras.random.uniform(ops.shape(labels), seed=self.seed)
        with tf.GradientTape() as tape:
            of_judge = self.error(labels, self.judge(samples, training=True))
        self._learn(0, tape, of_judge, self.judge)
        noise = keras.random.normal((rows, 3), seed=self.seed)
        with tf.GradientTape() as tape:
            judged = self.judge(self.maker(noise), training=True)
            of_maker = self.error(ops.zeros((rows, 1)), judged)
        self._learn(1, tape, of_maker, self.maker)
        self.loss_of_judge.update_state(of_judge)
        self.loss_of_maker.update_state(of_maker)
        return {metric.name: metric.result() for metric in self.metrics}

    def _learn(self, index, tape, loss, network):
        weights = network.trainable_weights
        self.optimizers[index].apply(tape.gradient(loss, weights), weights)
