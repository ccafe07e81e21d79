"""Where samples are cut out of their cases."""

import tensorflow as tf

from tfunet.data.augmentation.random_streams import CROP_STREAM, stream_seed
from tfunet.data.crop import crop_start


def test_crops_reach_every_start_and_never_leave_the_case():
    shape, patch, epoch = (7, 4, 6), (4, 4, 5), tf.constant(2, tf.int64)
    seeds = [
        stream_seed(5, epoch, tf.constant(sample, tf.int64), CROP_STREAM) for sample in range(120)
    ]
    starts = {tuple(crop_start(tf.constant(shape), patch, seed).numpy()) for seed in seeds}
    assert starts == {(a, 0, b) for a in range(4) for b in range(2)}
