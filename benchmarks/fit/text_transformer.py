"""A transformer reads padded sentences: one label a sentence, and one a word."""

import keras
import numpy as np
from keras import layers, ops
from recorded import arguments, record

import tfunet

tfunet.distribute()

keras.utils.set_random_seed(1)
options = arguments()
WORDS, LENGTH, WIDTH = 50, 12, 16

# A sentence is positive if most of its words are odd; 0 is padding.
rng = np.random.default_rng(1)
lengths = rng.integers(3, LENGTH + 1, size=125)
words = rng.integers(1, WORDS, size=(125, LENGTH))
words[np.arange(LENGTH) >= lengths[:, None]] = 0
tags = words % 2
positive = (tags.sum(axis=1) > lengths / 2).astype("int32")
targets = {"sentence": positive, "word": tags}


@keras.saving.register_keras_serializable()
class TokenAndPositionEmbedding(layers.Layer):
    """Embeds words and their places."""

    def __init__(self, **settings):
        super().__init__(**settings)
        self.supports_masking = True
        self.token = layers.Embedding(WORDS, WIDTH, mask_zero=True)
        self.position = layers.Embedding(LENGTH, WIDTH)

    def compute_mask(self, inputs, mask=None):
        return self.token.compute_mask(inputs)

    def call(self, inputs):
        return self.token(inputs) + self.position(ops.arange(LENGTH))


def block(x):
    attended = layers.MultiHeadAttention(2, WIDTH // 2, dropout=0.1)(x, x)
    x = layers.LayerNormalization()(x + layers.Dropout(0.1)(attended))
    inner = layers.Dense(WIDTH)(layers.Dense(32, activation="gelu")(x))
    return layers.LayerNormalization()(x + layers.Dropout(0.1)(inner))


inputs = keras.Input((LENGTH,), dtype="int32")
x = block(TokenAndPositionEmbedding()(inputs))
pooled = layers.Dropout(0.1)(layers.GlobalAveragePooling1D()(x))
model = keras.Model(
    inputs,
    {
        "sentence": layers.Dense(2, activation="softmax", name="sentence")(pooled),
        "word": layers.Dense(2, activation="softmax", name="word")(x),
    },
)
model.compile(
    optimizer=keras.optimizers.SGD(0.02, momentum=0.9),
    loss=dict.fromkeys(targets, "sparse_categorical_crossentropy"),
    loss_weights={"sentence": 1.0, "word": 0.5},
    metrics=dict.fromkeys(targets, "accuracy"),
)


def part(rows):
    return words[rows], {name: values[rows] for name, values in targets.items()}


test = part(slice(100, None))
history = model.fit(
    *part(slice(100)), batch_size=16, epochs=3, validation_data=test, validation_batch_size=10
)
record(
    options.out,
    model,
    history=history.history,
    evaluate=model.evaluate(*test, return_dict=True),
    predict=model.predict(test[0]),
)
