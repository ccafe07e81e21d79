"""Small programs in which TensorFlow, Horovod and others do a little of their real work.

Each runs in a process of its own, so that a crash or a hang harms nothing else, and prints one JSON
object last. This module itself imports no TensorFlow.
"""

import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

PROBE_SECONDS = 180.0
# Imports are faster so, and nothing else takes a probe's time.
WITHOUT_COLLECTIONS = "import gc; gc.disable()\n"
HIDE_GPUS = {"CUDA_VISIBLE_DEVICES": ""}
# Both are needed: a Horovod with MPI would otherwise start MPI for its operations, without mpirun.
OVER_GLOO = {"HOROVOD_CONTROLLER": "gloo", "HOROVOD_CPU_OPERATIONS": "gloo"}
TENSORFLOW_PROBE = """
import json
import tensorflow as tf
import keras
facts = {"tensorflow": tf.__version__, "keras": keras.__version__,
         "keras_backend": keras.backend.backend(),
         "gpus": len(tf.config.list_physical_devices("GPU"))}
with tf.GradientTape() as tape:
    loss = tf.reduce_sum(keras.layers.Dense(1)(tf.ones([2, 3])) ** 2)
facts["single"] = bool(tf.math.is_finite(loss))
print(json.dumps(facts))
"""
_SUM = """
def step():
    context = tf.distribute.get_replica_context()
    return context.all_reduce(tf.distribute.ReduceOp.SUM, tf.constant(1.0))
total = float(strategy.experimental_local_results(strategy.run(tf.function(step)))[0])
"""
MIRRORED_PROBE = (
    """
import json
import tensorflow as tf
devices = [f"GPU:{i}" for i in range(len(tf.config.list_physical_devices("GPU")))]
if len(devices) < 2:
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    devices = ["CPU:0", "CPU:1"]
strategy = tf.distribute.MirroredStrategy(devices)"""
    + _SUM
    + """if total != len(devices):
    raise ValueError(f"the sum of 1 over {devices} is {total}")
print(json.dumps({"devices": devices}))
"""
)
MULTIWORKER_PROBE = (
    """
import json
import tensorflow as tf
strategy = tf.distribute.MultiWorkerMirroredStrategy()"""
    + _SUM
    + """if total != 1:
    raise ValueError(f"the sum of 1 over one worker is {total}")
print(json.dumps({"workers": 1}))
"""
)
HOROVOD_PROBE = """
import importlib.metadata
import json
import socket
import tensorflow as tf
import horovod.tensorflow as horovod
name = socket.gethostname()
try:
    socket.gethostbyname(name)
except OSError:
    raise OSError(f"this host's name, {name}, has no address, and Horovod looks it up. Put into "
                  f"/etc/hosts: 127.0.0.1 {name}") from None
horovod.init()
total = float(horovod.allreduce(tf.constant(1.0), op=horovod.Sum, name="doctor"))
if total != 1:
    raise ValueError(f"the sum of 1 over one process is {total}")
print(json.dumps({"version": importlib.metadata.version("horovod"),
                  "gloo": bool(horovod.gloo_built()), "mpi": bool(horovod.mpi_built()),
                  "nccl": bool(horovod.nccl_built())}))
"""
# An operation, because on TensorFlow 2.17 and later the import succeeds and all operations fail.
TENSORFLOW_IO_PROBE = """
import json
import tensorflow as tf
import tensorflow_io as tfio
encoded = tfio.image.encode_bmp(tf.zeros([1, 1, 3], tf.uint8))
print(json.dumps({"version": tfio.__version__, "bytes": len(encoded.numpy()),
                  "schemes": tf.io.gfile.get_registered_schemes()}))
"""
# A file is decoded and turned round, because the import alone proves little. It needs no GPU.
DALI_PROBE = """
import io
import json
import nvidia.dali
import numpy as np
from nvidia.dali import fn, pipeline_def, types
from PIL import Image
@pipeline_def(batch_size=1, num_threads=1, device_id=None, prefetch_queue_depth=1)
def turned():
    decoded = fn.decoders.image(fn.external_source(name="file"), output_type=types.GRAY)
    return fn.flip(decoded, horizontal=1)
file = io.BytesIO()
Image.fromarray(np.array([[0, 9]], np.uint8)).save(file, "PNG")
found = np.array(turned().run(file=[np.frombuffer(file.getvalue(), np.uint8)])[0][0]).ravel()
if found.tolist() != [9, 0]:
    raise ValueError(f"a line of 0 and 9, turned round, is {found}")
print(json.dumps({"version": nvidia.dali.__version__}))
"""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The JSON that a probe printed, or one line that says how it failed."""

    facts: Mapping[str, Any] = field(default_factory=dict)
    error: str = ""


def ask(script: str, variables: Mapping[str, str], seconds: float = PROBE_SECONDS) -> Answer:
    """Run a script that prints one JSON object last; return that, or why there is none."""
    # With variables of a launcher or an earlier run, a probe would take part in that run.
    inherited = {
        name: value
        for name, value in os.environ.items()
        if name != "TF_CONFIG" and not name.startswith("HOROVOD_")
    }
    quiet = {"TF_CPP_MIN_LOG_LEVEL": "3", "TF_FORCE_GPU_ALLOW_GROWTH": "true"}
    try:
        process = subprocess.run(
            [sys.executable, "-c", WITHOUT_COLLECTIONS + script],
            env={**inherited, **quiet, **variables},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=seconds,
        )
    except subprocess.TimeoutExpired:
        return Answer(error=f"no answer within {seconds:g} s")
    last = process.stdout.strip().rpartition("\n")[2]
    if process.returncode == 0 and last.startswith("{"):
        return Answer(facts=json.loads(last))
    messages = process.stderr.strip().splitlines() or [f"ended with {process.returncode}"]
    errors = [line for line in messages if re.match(r"[\w.]*(Error|Exception)\b", line)]
    return Answer(error=(errors or messages)[-1].strip())


def one_worker() -> str:
    """Return a TF_CONFIG for a cluster of one, on a port that is free now."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        address = f"localhost:{free.getsockname()[1]}"
    return json.dumps({"cluster": {"worker": [address]}, "task": {"type": "worker", "index": 0}})
