"""Train steps of the user's own: all that they apply is averaged, all that they use is kept."""

import adversary
import keras
import numpy as np
import pytest
import tensorflow as tf

from tfunet.backend import Launch
from tfunet.learning.averaging import Averaging
from tfunet.learning.losses import CrossEntropy
from tfunet.single_device import SingleDevice
from tfunet.training.train_step import Used, check_trains_model, look_at_step

SHAPE = (2, 8, 8, 1)


def compiled(model, rate=0.5):
    model.compile(optimizer=keras.optimizers.SGD(rate), loss=CrossEntropy(), jit_compile=False)
    model.optimizer.build(model.trainable_variables)
    return model


def adversarial(*, rate=0.5, **options):
    keras.utils.set_random_seed(0)
    model = adversary.build(image_shape=SHAPE[1:], num_classes=2, rate=rate / 5, **options)
    return compiled(model, rate)


def look(model, accumulation=1, num_replicas=1):
    return look_at_step(
        model,
        SingleDevice(Launch()),
        image=SHAPE,
        truth=tf.TensorSpec(SHAPE[1:-1], tf.uint8),
        accumulation=accumulation,
        num_replicas=num_replicas,
    )


def trained(model, used, average):
    """All weights after two steps."""
    image = np.random.default_rng(0).normal(size=SHAPE).astype("float32")
    averaging = Averaging(average=average, optimizers=used.optimizers)

    @tf.function(autograph=False)
    def step():
        with averaging.traced():
            return model.train_step((tf.constant(image), tf.constant(image[..., 0] > 0, tf.uint8)))

    for _ in range(2):
        step()
    return [variable.numpy() for variable in (*model.variables, *used.trained)]


@pytest.mark.parametrize("how", adversary.HOW)
def test_every_optimizer_is_averaged_however_it_is_held(how):
    # Half of each gradient is as good as half of each rate.
    model = adversarial(how=how)
    halved = trained(model, look(model), lambda gradients: [gradient / 2 for gradient in gradients])
    slow = adversarial(how=how, rate=0.25)
    for one, other in zip(halved, trained(slow, look(slow), list), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)


def test_networks_and_optimizers_beside_the_model_are_kept():
    plain = look(adversarial())
    assert plain.trained == []
    # Momentum of the adversary's six trained weights, iterations and learning rate.
    assert len(plain.others) == 8
    hidden = look(adversarial(hidden=True))
    assert len(hidden.trained) == 6
    # Beside those, the moving statistics of its normalisation.
    assert len(hidden.others) == 10


class Counting(keras.Model):
    """Counts its steps in a variable of TensorFlow's, which Keras does not track."""

    def __init__(self, **options):
        super().__init__(**options)
        self.steps_made = tf.Variable(0)

    def train_step(self, data):
        self.steps_made.assign(self.steps_made + 1)
        return super().train_step(data)


def test_variables_of_tensorflow_are_kept():
    image = keras.Input(SHAPE[1:])
    model = compiled(Counting(inputs=image, outputs=keras.layers.Conv2D(2, 1)(image)))
    (kept,) = look(model).others
    kept.assign(np.array(7))
    assert int(model.steps_made) == 7
    assert keras.ops.convert_to_numpy(kept.value) == 7


def test_keras_train_step_is_not_looked_at():
    image = keras.Input(SHAPE[1:])
    model = compiled(keras.Model(image, keras.layers.Conv2D(2, 1)(image)))
    assert look(model).optimizers == (model.optimizer,)


@pytest.mark.parametrize(("how", "num_replicas"), [("anew", 1), ("anew", 2), ("lazy", 2)])
def test_optimizer_that_a_step_makes_is_refused(how, num_replicas):
    with pytest.raises(ValueError, match=r"makes an optimizer itself.* keep it as an attribute"):
        look(adversarial(how=how), num_replicas=num_replicas)


def test_optimizer_that_appears_later_is_refused():
    model = adversarial()
    used = look(model)
    model.second = keras.optimizers.SGD(0.1)
    model.second.build(model.adversary.trainable_variables)
    with pytest.raises(ValueError, match=r"makes the optimizer 'sgd.* keep it as an attribute"):
        trained(model, used, list)


def test_accumulation_is_for_one_optimizer():
    with pytest.raises(ValueError, match=r"applies 2, up to 1 times.* Leave out accumulation"):
        look(adversarial(), accumulation=2)


class Wrong(keras.Model):
    """Its step does what `deed` does."""

    def train_step(self, data):
        return self.deed()


def failing():
    raise RuntimeError("not today")


@pytest.mark.parametrize(
    ("deed", "words"),
    [
        (lambda: None, "must return a dict with 'loss', got NoneType. Return"),
        (lambda: {"acc": tf.zeros(())}, r"must return a dict with 'loss', got \['acc'\]. Return"),
        (lambda: {"loss": "small"}, "returns 'loss': 'small', which is no number. Return"),
        (lambda: {"loss": 1.0, "all": {"a": 2.0}}, "returns 'all': {'a': 2.0}, which is no number"),
        (failing, r"raised RuntimeError: not today, in test_train_step\.py, line \d+: raise Runt"),
        (lambda: 1 / 0, "raised ZeroDivisionError: division by zero, in test_train_step"),
    ],
)
def test_a_train_step_that_cannot_be_traced_is_explained(deed, words):
    image = keras.Input(SHAPE[1:])
    model = Wrong(image, keras.layers.Conv2D(2, 1)(image))
    model.deed = deed
    with pytest.raises(ValueError, match=words):
        look(compiled(model))


def test_a_model_without_gradients_is_refused():
    image = keras.Input(SHAPE[1:])
    logits = keras.ops.stop_gradient(keras.layers.Conv2D(2, 1)(image))
    model = compiled(keras.Model(image, logits))
    with pytest.raises(ValueError, match="No gradient reaches any weight"):
        trained(model, look(model), lambda gradients: gradients)


def test_an_optimizer_of_another_network_is_found():
    first, second, other = (keras.Variable([0.0]) for _ in range(3))

    def used(*trained):
        optimizers = [keras.optimizers.SGD(name=f"sgd{at}") for at in range(len(trained))]
        for optimizer, variables in zip(optimizers, trained, strict=True):
            optimizer.build(variables)
        return Used(optimizers=optimizers)

    for trained in ([[first, second, other]], [[first], [second, other]], [[other]]):
        check_trains_model(used(*trained), [first, second])
    with pytest.raises(ValueError, match=r"applies 2 optimizers, of which 'sgd1' trains another"):
        check_trains_model(used([first, second], [other]), [first, second])
