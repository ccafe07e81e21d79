"""A network and its adversary: a train_step that applies two optimizers."""

import keras
import tensorflow as tf

HOW = ("attribute", "list", "dict", "object", "global", "lazy")
GLOBAL = {}


class Held:
    """Something that Keras does not look into."""


def network(channels, num_classes, name):
    image = keras.Input((None, None, channels))
    x = keras.layers.Conv2D(4, 3, padding="same")(image)
    x = keras.layers.BatchNormalization(synchronized=True)(x)
    return keras.Model(image, keras.layers.Conv2D(num_classes, 1)(x), name=name)


class Adversarial(keras.Model):
    """Segments; its adversary tells masks from segmentations."""

    def __init__(self, channels, num_classes, how, hidden, rate):
        super().__init__()
        self.num_classes, self.how = num_classes, how
        self.segment = network(channels, num_classes, "segment")
        adversary = network(channels + num_classes, 1, "adversary")
        self.other = Held()
        if hidden:
            self.other.adversary = adversary
        else:
            self.adversary = adversary
        self.rate = rate
        second = keras.optimizers.SGD(rate, momentum=0.5)
        if how == "attribute":
            self.second = second
        elif how == "list":
            self.several = [second]
        elif how == "dict":
            self.named = {"of": {"adversary": second}}
        elif how == "object":
            self.other.second = second
        elif how == "global":
            GLOBAL["second"] = second
        elif how == "TensorFlow 1":
            self.second = tf.compat.v1.train.GradientDescentOptimizer(0.1)
        self.lazy = None

    def second_optimizer(self):
        if self.how == "list":
            return self.several[0]
        if self.how == "dict":
            return self.named["of"]["adversary"]
        if self.how == "object":
            return self.other.second
        if self.how == "global":
            return GLOBAL["second"]
        if self.how == "anew":
            return keras.optimizers.SGD(self.rate)
        if self.how == "lazy":
            self.lazy = self.lazy or keras.optimizers.SGD(self.rate, momentum=0.5)
            return self.lazy
        return self.second

    def call(self, image, training=False):
        return self.segment(image, training=training)

    def train_step(self, data):
        image, mask = data
        adversary = self.other.adversary if hasattr(self.other, "adversary") else self.adversary
        true = tf.one_hot(tf.cast(mask, tf.int32), self.num_classes)
        entropy = tf.nn.sigmoid_cross_entropy_with_logits
        with tf.GradientTape() as tape:
            made = tf.nn.softmax(self.segment(image, training=True))
            of_true = adversary(tf.concat([image, true], -1), training=True)
            of_made = adversary(tf.concat([image, made], -1), training=True)
            other_loss = tf.reduce_mean(entropy(tf.ones_like(of_true), of_true))
            other_loss += tf.reduce_mean(entropy(tf.zeros_like(of_made), of_made))
        variables = adversary.trainable_variables
        if self.how == "TensorFlow 1":
            variables = [variable.value for variable in variables]
        gradients = tape.gradient(other_loss, variables)
        self.second_optimizer().apply_gradients(zip(gradients, variables, strict=True))
        with tf.GradientTape() as tape:
            logits = self.segment(image, training=True)
            of_made = adversary(tf.concat([image, tf.nn.softmax(logits)], -1), training=True)
            loss = self.compute_loss(image, mask, logits)
            loss += 0.1 * tf.reduce_mean(entropy(tf.ones_like(of_made), of_made))
        variables = self.segment.trainable_variables
        self.optimizer.apply(tape.gradient(loss, variables), variables)
        self._loss_tracker.update_state(loss, sample_weight=tf.shape(image)[0])
        return {"loss": self._loss_tracker.result()}


def build(*, image_shape, num_classes, how="attribute", hidden=False, rate=0.1):
    model = Adversarial(image_shape[-1], num_classes, how, hidden, rate)
    model.build((None, *image_shape))
    return model
