"""The line that says why a call of a model failed."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfunet.models.keras_errors import cause_line


class Raising(keras.layers.Layer):
    """Raises an error, in the call of real values or already in that of shapes."""

    def __init__(self, error, *, on_shapes=False):
        super().__init__()
        self.error, self.on_shapes = error, on_shapes

    def call(self, inputs):
        if isinstance(inputs, keras.KerasTensor) and not self.on_shapes:
            return inputs
        raise self.error

    def compute_output_spec(self, inputs):
        return self.call(inputs) if self.on_shapes else keras.KerasTensor(inputs.shape)


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ValueError("rows 3 and 4 differ.\nMore of it"), "rows 3 and 4 differ."),
        (RuntimeError("no reason: given"), "no reason: given"),
        (KeyError("gate"), "KeyError: gate"),
        (NotImplementedError(), "NotImplementedError"),
        (IndexError("list index out of range"), "list index out of range"),
    ],
    ids=lambda value: type(value).__name__,
)
@pytest.mark.parametrize("autograph", [False, True])
def test_the_cause_of_an_error_inside_nested_models_is_found(error, line, autograph):
    image = keras.Input((4, 4, 1))
    inner = keras.Sequential([keras.layers.ReLU(), Raising(error)])
    model = keras.Model(image, keras.layers.ReLU()(inner(image)))
    call = tf.function(lambda one: model(one), autograph=autograph)
    with pytest.raises(Exception, match=r"Exception encountered when calling|.") as caught:
        call(np.zeros((1, 4, 4, 1), "float32"))
    assert cause_line(caught.value) == line


def test_the_cause_of_an_error_on_shapes_is_found():
    with pytest.raises(Exception, match="wrong width") as caught:
        Raising(ValueError("wrong width"), on_shapes=True)(keras.Input((4, 4, 1)))
    assert cause_line(caught.value) == "wrong width"


@pytest.mark.parametrize("text", ["", "\n", "plain"])
def test_an_error_of_others_stays_as_it_is(text):
    assert cause_line(ValueError(text)) == (text.strip() or "ValueError")
