"""TensorFlow has made its devices before distribute()."""

import tensorflow as tf

import tfunet

total = tf.reduce_sum(tf.ones((2, 2)))
tfunet.distribute()
print("trained")
