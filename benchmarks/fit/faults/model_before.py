"""The model is made before distribute()."""

import keras
import numpy as np

import tfunet

model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
tfunet.distribute()
model.compile("sgd", "mse")
model.fit(np.ones((8, 3)), np.ones(8))
print("trained")
