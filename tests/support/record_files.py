"""TFRecord files as TensorFlow writes them."""

import io

import numpy as np
import tensorflow as tf
from PIL import Image


def write_records(path, records):
    """Write a file of records: feature names to texts, bytes, floats or whole numbers."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tf.io.TFRecordWriter(str(path)) as writer:
        for record in records:
            features = {name: _feature(values) for name, values in record.items()}
            example = tf.train.Example(features=tf.train.Features(feature=features))
            writer.write(example.SerializeToString())


def _feature(values):
    if isinstance(values, bytes | str):
        raw = values if isinstance(values, bytes) else values.encode()
        return tf.train.Feature(bytes_list=tf.train.BytesList(value=[raw]))
    values = np.ravel(values)
    if values.dtype.kind == "f":
        return tf.train.Feature(float_list=tf.train.FloatList(value=values))
    return tf.train.Feature(int64_list=tf.train.Int64List(value=values))


def encoded(pixels, kind="png", **options):
    """Return an image as a file of this kind holds it."""
    content = io.BytesIO()
    Image.fromarray(pixels).save(content, kind, **options)
    return content.getvalue()
