"""What a run must prove before its result counts."""

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfunet.backend import Backend, Topology
from tfunet.exit_codes import CheckFailedError
from tfunet.graph.traced import traced


def make_fingerprint(backend: Backend, variables: Sequence[Any]) -> Any:
    """Return a function that gives (local replicas, variables, 8) bytes of the values' hashes.

    It reads the copy of every replica, so it also sees copies that drifted apart within a process.
    """

    def replica_fingerprint() -> tf.Tensor:
        hashes: list[tf.Tensor] = []
        for variable in variables:
            # One after the other: those that are off the device come to it.
            with tf.control_dependencies(hashes[-1:]):
                value = tf.convert_to_tensor(variable.value)
            with tf.device("CPU"):
                hashes.append(tf.fingerprint(tf.reshape(value, [1, -1]))[0])
        # A stage may have no variable.
        return tf.reshape(tf.convert_to_tensor(hashes, tf.uint8), [-1, 8])

    return traced(lambda: backend.run(replica_fingerprint))


def weights_hash(backend: Backend, topology: Topology, fingerprints: np.ndarray) -> str:
    """Return the hash that all replicas share, from what `make_fingerprint` returns.

    Raises CheckFailedError, which names the replicas, where hashes differ.
    """
    table = np.zeros((topology.num_replicas, 4))
    for replica, rows in zip(topology.local_replicas, fingerprints, strict=True):
        digest = hashlib.blake2b(rows.tobytes(), digest_size=8).digest()
        table[replica] = np.frombuffer(digest, np.uint16)
    table = backend.sum(table)
    hashes = [row.astype(np.uint16).tobytes().hex() for row in table]
    different = [index for index, value in enumerate(hashes) if value != hashes[0]]
    if different:
        raise CheckFailedError(
            f"The weights of replicas {different} differ from those of replica 0: gradients are "
            "not averaged, a random or non-deterministic operation updates a weight, or a callback "
            "changes weights in some processes only."
        )
    return hashes[0]


def uses_of_samples(tile_uses: np.ndarray, num_tiles: int) -> np.ndarray:
    """Return what `samples_hash` takes, from the same of the tiles of all samples.

    Raises CheckFailedError where a step used some tiles of a sample and not the others.
    """
    by_sample = tile_uses.reshape(2, -1, num_tiles)
    uneven = np.flatnonzero((by_sample != by_sample[..., :1]).any(axis=(0, 2)))
    if uneven.size:
        raise CheckFailedError(
            f"Samples {uneven[:5].tolist()} were not used whole: their tiles were used in "
            "different steps, or some of them not at all."
        )
    return by_sample[..., 0]


def samples_hash(sample_uses: np.ndarray, *, steps: int, global_batch: int) -> str:
    """Return a hash of the samples that each step of an epoch used, over all replicas.

    Args:
        sample_uses: (2, samples): how often each sample was used in the epoch, and the sum of the
            steps (from 1) that used it, over all processes.

    Raises CheckFailedError where a sample was used twice, or the batches were not full.
    """
    used, step = sample_uses
    if used.max(initial=0) > 1:
        twice = np.flatnonzero(used > 1)
        raise CheckFailedError(
            f"Samples {twice[:5].tolist()} were used more than once in one epoch."
        )
    if used.sum() != steps * global_batch:
        raise CheckFailedError(
            f"{int(used.sum())} samples were used in {steps} steps of {global_batch}."
        )
    return hashlib.blake2b(step.astype(np.int64).tobytes(), digest_size=8).hexdigest()


def dropped_samples(sample_uses: np.ndarray) -> list[int]:
    """Return the samples that no step of an epoch used; takes what `samples_hash` takes."""
    return np.flatnonzero(sample_uses[0] == 0).tolist()


def every_voxel_once(counted: np.ndarray, expected: Sequence[int], cases: Sequence[str]) -> None:
    """Raise CheckFailedError unless the voxels of each case were counted exactly once."""
    wrong = np.flatnonzero(counted != np.asarray(expected))
    if wrong.size:
        first = int(wrong[0])
        raise CheckFailedError(
            f"{wrong.size} cases were not counted exactly once. The first is {cases[first]}: "
            f"{int(counted[first])} voxels were counted, and it has {int(expected[first])}."
        )
