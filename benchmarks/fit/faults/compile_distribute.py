"""compile() is given a strategy, as Keras once took it."""

import keras
import numpy as np
import tensorflow as tf

import tfunet

tfunet.distribute()

model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
model.compile("sgd", "mse", distribute=tf.distribute.MirroredStrategy())
model.fit(np.ones((8, 3)), np.ones(8))
print("trained")
