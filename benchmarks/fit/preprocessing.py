"""Rows of a table with numbers, words and categories; the layers that read them are adapted."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers
from recorded import arguments, record

import tfunet

tfunet.distribute()

keras.utils.set_random_seed(1)
options = arguments()

rng = np.random.default_rng(1)
age = rng.uniform(20, 80, size=140).astype("float32")
kind = rng.choice(["cat", "dog", "horse"], size=140)
visits = rng.choice([1, 2, 5, 9], size=140)
ill = ((age > 60) | ((kind == "dog") & (visits > 2))).astype("int32")
table = {"age": age[:, None], "kind": kind, "visits": visits[:, None]}

words = layers.StringLookup()
words.adapt(kind[:100])
normalized = layers.Normalization()
normalized.adapt(table["age"][:100])
numbers = layers.IntegerLookup(output_mode="one_hot")
numbers.adapt(visits[:100])


def looked_up(row, label):
    return {**row, "kind": words(row["kind"])[..., None]}, label


def dataset(rows):
    part = {name: values[rows] for name, values in table.items()}
    return tf.data.Dataset.from_tensor_slices((part, ill[rows]))


train = dataset(slice(100)).shuffle(100, seed=1).batch(12).map(looked_up)
test = dataset(slice(100, None)).batch(12).map(looked_up)

inputs = {
    "age": keras.Input((1,), name="age"),
    "kind": keras.Input((1,), name="kind", dtype="int64"),
    "visits": keras.Input((1,), name="visits", dtype="int64"),
}
x = layers.Concatenate()(
    [
        normalized(inputs["age"]),
        layers.CategoryEncoding(words.vocabulary_size(), "one_hot")(inputs["kind"]),
        numbers(inputs["visits"]),
        layers.Rescaling(1 / 10)(inputs["visits"]),
    ]
)
x = layers.Dense(12, activation="relu")(x)
model = keras.Model(inputs, layers.Dense(1, activation="sigmoid")(x))
model.compile(
    optimizer=keras.optimizers.SGD(0.1),
    loss="binary_crossentropy",
    metrics=["accuracy", keras.metrics.Precision(), keras.metrics.AUC()],
)
history = model.fit(train, epochs=3, validation_data=test, class_weight={0: 1.0, 1: 3.0})
record(
    options.out,
    model,
    history=history.history,
    evaluate=model.evaluate(test, return_dict=True),
    predict=model.predict(test),
)
