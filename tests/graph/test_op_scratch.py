"""The scratch of a convolution's gradients is the one that TensorFlow allocates, to the byte."""

import json
import os
import subprocess
import sys

import pytest
from paths import ROOT

# (dimensions, batch, side, kernel, channels in, channels out): fixed working set in 2D; in 3D that
# of the last cache, or nothing where it would be too large beside the tensors.
CASES = [
    (2, 4, 144, 1, 8, 2),
    (2, 1, 72, 3, 16, 16),
    (2, 8, 16, 3, 32, 32),
    (3, 1, 24, 3, 8, 8),
    (3, 2, 32, 1, 8, 2),
    (3, 4, 32, 3, 2, 32),
]
MEASURE = """
import json, sys
import tensorflow as tf
from tfunet.graph.op_times import OpKind, take
from tfunet.graph.unrolled import unrolled
rows = []
for rank, batch, side, kernel, channels, filters in json.loads(sys.argv[1]):
    kind = {2: "Conv2DBackprop{}", 3: "Conv3DBackprop{}V2"}[rank]
    image, upstream = ([batch, *[side] * rank, size] for size in (channels, filters))
    weights = [kernel] * rank + [channels, filters]
    strides = {"strides": [1] * (rank + 2), "padding": "SAME"}
    @tf.function(jit_compile=False, autograph=False)
    def gradients(image, weights, upstream):
        of = [kind.format(what) for what in ("Filter", "Input")]
        return (
            getattr(tf.raw_ops, of[0])(
                input=image, filter_sizes=weights.shape, out_backprop=upstream, **strides),
            getattr(tf.raw_ops, of[1])(
                input_sizes=image.shape, filter=weights, out_backprop=upstream, **strides))
    specs = map(tf.TensorSpec, (image, weights, upstream))
    operations = gradients.get_concrete_function(*specs).graph.get_operations()
    for op in (op for op in operations if "Backprop" in op.type):
        (taken,) = take([OpKind(op)])
        columns = unrolled(op)
        rows.append((taken.scratch_bytes, columns.num_bytes() if columns else 0))
print(json.dumps(rows))
"""


@pytest.mark.parametrize("onednn", ["0", "1"])
def test_known_scratch_is_what_the_op_takes(onednn):
    capped = {"TF_CPU_ALLOCATOR_USE_BFC": "true", "TF_CPU_BFC_MEM_LIMIT_IN_MB": "4000"}
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, json.dumps(CASES)],
        env={**os.environ, **capped, "TF_ENABLE_ONEDNN_OPTS": onednn, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    rows = json.loads(done.stdout.splitlines()[-1])
    assert [measured for measured, _ in rows] == [known for _, known in rows]
    assert any(known for _, known in rows) == (onednn == "0")
