"""Sequences of tokens with a label each, and a network for them, as a user's own file has them."""

import numpy as np
from keras import Input, Model, layers


def sequences():
    tokens = np.random.default_rng(0).integers(1, 20, (47, 6))
    # Seven validation samples: two processes cannot share them equally.
    return (tokens[:40], tokens[:40] % 3), (tokens[40:], tokens[40:] % 3)


def drawn_anew():
    tokens = np.random.default_rng().integers(1, 20, (47, 6))
    return tokens, tokens % 3


def tagger(*, image_shape, num_classes):
    tokens = Input(image_shape, dtype="int32")
    return Model(tokens, layers.Dense(num_classes)(layers.Embedding(20, 4)(tokens)))
