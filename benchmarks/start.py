"""Seconds from a command to the end of its first step, beside a plain Keras script.

The script and `tfunet train` read the same images, train the same network with the same loss and
optimizer, and the same callback writes when the first step ended. Ways take turns; each is a fresh
process. `where` says what the seconds of a run went into, as `trace = true` records it, in a run
of its own.

    python benchmarks/start.py [--rounds 5] [--ways single horovod ...] [--where]
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import measure

from tfunet.timing.recorded import read_spans

WAYS = {
    "single": ["--backend", "single"],
    "mirrored x 2": ["--backend", "mirrored", "--num_replicas", "2"],
    "multiworker x 2": ["--backend", "multiworker", "--num_replicas", "2"],
    "horovod x 2": ["--backend", "horovod", "--num_replicas", "2"],
}
SCRIPT = "keras script"
BOUNDS = {"single": 1.1, "mirrored x 2": 1.3, "multiworker x 2": 1.3, "horovod x 2": 1.3}
IMAGES, SIZE, BATCH = 40, 96, 4
NETWORK = '''
import keras


def unet(image_shape, num_classes, filters=8, levels=3):
    """A U-Net of two convolutions a level (Ronneberger et al. 2015)."""

    def convolve(tensor, width):
        for _ in range(2):
            tensor = keras.layers.Conv2D(width, 3, padding="same", use_bias=False)(tensor)
            tensor = keras.layers.GroupNormalization(4)(tensor)
            tensor = keras.layers.Activation("relu")(tensor)
        return tensor

    image = tensor = keras.Input(image_shape)
    skips = []
    for level in range(levels):
        tensor = convolve(tensor, filters * 2**level)
        skips.append(tensor)
        tensor = keras.layers.MaxPooling2D()(tensor)
    tensor = convolve(tensor, filters * 2**levels)
    for level in reversed(range(levels)):
        width = filters * 2**level
        tensor = keras.layers.Conv2DTranspose(width, 2, strides=2)(tensor)
        tensor = convolve(keras.layers.Concatenate()([skips[level], tensor]), width)
    return keras.Model(image, keras.layers.Conv2D(num_classes, 1)(tensor))
'''
CLOCK = '''
import os
import time

import keras


class Clock(keras.callbacks.Callback):
    """Writes when the first step ended."""

    def on_train_batch_end(self, batch, logs=None):
        path = os.environ["FIRST_STEP"]
        if not os.path.exists(path):
            with open(path, "w") as file:
                file.write(repr(time.time()))
'''
PLAIN = f"""
import os
import sys
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
import keras
import tensorflow as tf

sys.path.insert(0, ".")
from clock import Clock
from network import unet

images = sorted(str(path) for path in Path("images").glob("*.png"))
masks = sorted(str(path) for path in Path("masks").glob("*.png"))


def load(image, mask):
    image = tf.io.decode_png(tf.io.read_file(image), 1)
    mask = tf.io.decode_png(tf.io.read_file(mask), 1)[..., 0]
    return tf.image.per_image_standardization(image), tf.cast(mask > 0, tf.int32)


data = tf.data.Dataset.from_tensor_slices((images, masks)).shuffle(len(images))
data = data.map(load, tf.data.AUTOTUNE).batch({BATCH}, drop_remainder=True).prefetch(1)
model = unet(({SIZE}, {SIZE}, 1), 2)
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(keras.optimizers.Adam(1e-3), loss)
model.fit(data, epochs=1, verbose=0, callbacks=[Clock()])
"""


def make_folder(folder):
    """Write images with masks, the network, and the script."""
    import numpy as np
    from PIL import Image

    rng = np.random.default_rng(0)
    for name in ("images", "masks"):
        (folder / name).mkdir()
    for index in range(IMAGES):
        mask = np.zeros((SIZE, SIZE), np.uint8)
        for row, column in rng.integers(8, SIZE - 8, (5, 2)):
            mask[row - 6 : row + 6, column - 6 : column + 6] = 255
        image = (mask * 0.5 + rng.normal(60, 20, mask.shape)).clip(0, 255).astype(np.uint8)
        Image.fromarray(image).save(folder / "images" / f"{index:02}.png")
        Image.fromarray(mask).save(folder / "masks" / f"{index:02}.png")
    (folder / "network.py").write_text(NETWORK)
    (folder / "clock.py").write_text(CLOCK)
    (folder / "script.py").write_text(PLAIN)
    (folder / "run.toml").write_text(
        f"""data = "folder"
model = "network.py:unet"
patch = [{SIZE}, {SIZE}]
global_batch = {BATCH}
loss = "crossentropy"
callbacks = [{{ name = "clock.py:Clock" }}]
[data_options]
root = "."
images = "images/{{case}}.png"
masks = "masks/{{case}}.png"
classes = {{ cell = 255 }}
"""
    )


def first_step(folder, command, number):
    """Return the seconds from a command to the end of its first step, and to its own end."""
    mark = folder / f"first-{number}"
    began = time.time()
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "FIRST_STEP": str(mark)},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    ended = time.time()
    if done.returncode or not mark.exists():
        raise SystemExit(f"{command}\n{done.stdout}{done.stderr}")
    return float(mark.read_text()) - began, ended - began


def command_of(way, out):
    if way == SCRIPT:
        return [sys.executable, "script.py"]
    words = ["train", "--config", "run.toml", "--epochs", "1", "--out", str(out), *WAYS[way]]
    return [sys.executable, "-m", "tfunet", *words]


def where(folder, way):
    """Return the seconds of each activity of a traced run until its first step ended, summed."""
    out = folder / f"where-{way}"
    began = time.time()
    first_step(folder, [*command_of(way, out), "--trace", "true"], f"where-{way}")
    spans = read_spans(out)[0]
    (first,) = (span for span in spans if span.name == "first step")
    end = first.begin_seconds + first.seconds
    found = {"until the process starts": spans[0].begin_seconds - began}
    for span in spans:
        if span.begin_seconds < end:
            found[span.name] = found.get(span.name, 0) + span.seconds
    return {name: round(seconds, 2) for name, seconds in found.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--ways", nargs="*", default=list(WAYS), choices=list(WAYS))
    parser.add_argument("--where", action="store_true", help="where the seconds go, once")
    options = parser.parse_args()
    found = {way: [] for way in (SCRIPT, *options.ways)}
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        make_folder(folder)
        for number in range(options.rounds + 1):  # The first round fills the file cache.
            for way in found:
                out = folder / f"{number}-{way.replace(' ', '')}"
                seconds, whole = first_step(folder, command_of(way, out), f"{number}-{way}")
                if number:
                    found[way].append(seconds)
                print(f"{number} {way}: {seconds:.2f} s, whole {whole:.2f} s", flush=True)
        if options.where:
            for way in options.ways:
                print(way, json.dumps(where(folder, way)))
    for way, seconds in found.items():
        print(f"{way}: {statistics.median(seconds):.2f} s ({min(seconds):.2f}-{max(seconds):.2f})")
    measure.show(
        [
            measure.verdict(
                f"first step of {way} over that of a Keras script",
                [ours / plain for ours, plain in zip(found[way], found[SCRIPT], strict=True)],
                bound=BOUNDS[way],
                most=True,
                samples={SCRIPT: found[SCRIPT], way: found[way]},
                peers=["keras", "tensorflow"],
            )
            for way in options.ways
        ]
    )


if __name__ == "__main__":
    main()
