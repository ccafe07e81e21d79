"""Proves before the first step of a run that its way to take a step gives the step of one device.

A small copy of the network takes one step on few real samples: by all processes, through their own
exchanges, and once more by the chief on one device. What differs ends the run.

    samples --> [the run's way, all processes] --> loss, gradients, states --+
       |                                                                     +--> compared
       +------> [one device, the chief] ---------> loss, gradients, states --+
"""

import json
import math
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any, final

import keras
import numpy as np
import psutil

from tfunet.config.run import RunConfig
from tfunet.exit_codes import CheckFailedError
from tfunet.inside.of_keras import set_unseeded_generator, unseeded_generator
from tfunet.machine.device import free_bytes
from tfunet.models.files import is_file
from tfunet.models.keras_errors import cause_line
from tfunet.proof import kept, small
from tfunet.proof.differences import Difference, worst
from tfunet.proof.left_out import in_words
from tfunet.proof.naming import look_again, message
from tfunet.proof.small_step import ProofTrial, finite
from tfunet.proof.step import Taken, in_precision
from tfunet.training import checkpoint
from tfunet.training.attempt import Attempt
from tfunet.training.network import Network
from tfunet.training.run_data import RunData
from tfunet.training.tiling import Tiles

# A difference that is larger is none of rounding.
BOUNDS = {"float64": 1e-6, "float32": 1e-3}
# In float32, rounding that is so many times as large as that of the last digit of all weights and
# images may explain a difference, as long as it is not larger than this.
ROUNDINGS = 10
COARSEST = 2e-2
# The share of the gradients that must tell something.
TELLING = 0.75
# The most of a small step, both ways: some seconds of one core. More are allowed in float32 where
# they are this share of a step of the run. In float64 an operation takes longer.
MOST_FLOPS = 1e11
MOST_DOUBLE_FLOPS = 2e10
SHARE = 1.0
# A GPU computes so many times as much in the time.
GPU = 50
# Copies of all weights that are held at once: gradients, states of the optimizer, and others.
COPIES = 12
# The share of the free memory that a proof may take.
MEMORY_SHARE = 0.5


def ways_of(config: RunConfig) -> list[str]:
    """Return the keys of a configuration that change how a step is computed."""
    changed = {
        "num_replicas": config.num_replicas > 1,
        "split": config.num_devices > config.num_replicas * config.stages,
        "stages": config.stages > 1,
        "tiling": config.num_tiles > 1,
        "accumulation": config.accumulation > 1,
    }
    return [key for key, is_changed in changed.items() if is_changed]


def prove(attempt: Attempt, data: RunData, network: Network) -> dict[str, Any] | None:
    """Return what result.json says of the proof; None for a run that steps as one device does.

    Called by all processes together. Raises CheckFailedError, which names what differs.
    """
    config = attempt.config
    ways = ways_of(config)
    if not ways:
        return None
    attempt.begin("proving the step")
    why_not = _reason_against(config)
    if why_not is None:
        found = _kept(attempt)
        if found is not None:
            _tell(attempt, found)
            return found
        since = time.perf_counter()
        with _own_random_numbers():
            made = _tried(attempt, data, network, ways)
        if isinstance(made, dict):
            made["seconds"] = time.perf_counter() - since
            if attempt.topology.is_chief:
                kept.keep(attempt.folder.path, kept.key_of(config), made)
            _tell(attempt, made)
            return made
        why_not = made
    attempt.say(f"warning: The step is not proved to be that of one device, because {why_not}.")
    return {"is_proved": False, "ways": ways, "why_not": why_not}


def _tell(attempt: Attempt, proof: Mapping[str, Any]) -> None:
    if proof["left_out"]:
        without = ", and that ".join(proof["left_out"])
        attempt.say(f"The step is proved to be that of one device, except that {without}.")


def _kept(attempt: Attempt) -> dict[str, Any] | None:
    """Return the proof of an earlier attempt, or of another trial; called by all together."""
    topology, path, text = attempt.topology, attempt.folder.path, b""
    if topology.is_chief and (found := kept.read(path, kept.key_of(attempt.config))):
        text = json.dumps({**found, "seconds": 0.0}).encode()
    content = np.frombuffer(text, np.uint8)
    shared = checkpoint.share_bytes(attempt.backend, topology, content)
    return json.loads(shared) if shared else None


def _reason_against(config: RunConfig) -> str | None:
    if not config.prove:
        return "prove = false"
    for option in ("compression", "adasum"):
        if config.backend_options.get(option, "none") not in ("none", False):
            return f"backend_options.{option} changes the average of gradients"
    return None


@contextmanager
def _own_random_numbers() -> Iterator[None]:
    """Draw the same numbers in all processes in the block, and go on afterwards as before it."""
    state, of_numpy = random.getstate(), np.random.get_state()
    # What keras.random draws from without a seed; None before the first draw.
    generator = unseeded_generator()
    drawn = None if generator is None else keras.ops.convert_to_numpy(generator.state.value)
    random.seed(0)
    np.random.seed(0)
    try:
        yield
    finally:
        random.setstate(state)
        np.random.set_state(of_numpy)
        set_unseeded_generator(generator)
        if generator is not None:
            generator.state.assign(drawn)


def _tried(
    attempt: Attempt, data: RunData, network: Network, ways: Sequence[str]
) -> dict[str, Any] | str:
    """Return the record of the first proof that can be made, or why none can be.

    Raises CheckFailedError for a step that differs.
    """
    why_not = ""
    for size in _sizes(attempt, data, network):
        for dtype in _precisions(attempt, network, size):
            with in_precision(dtype):
                trial = _trial(attempt, data, network, size, dtype)
                found = _found(trial, ways, BOUNDS[dtype])
            if isinstance(found, str):
                why_not = found
                continue
            return {
                "is_proved": True,
                "ways": list(ways),
                "patch": list(trial.data.task.patch),
                "samples": trial.attempt.config.global_samples,
                "precision": dtype,
                "differences": worst(found),
                "left_out": in_words(network.model, trial.left_out),
            }
    return why_not or "a second copy of the network, or a step of it, is too large"


def _found(trial: ProofTrial, ways: Sequence[str], bound: float) -> list[Difference] | str:
    """Return how far the steps differ, within the bounds, or why they cannot be compared.

    A layer that differs because it draws random numbers in its own way is left out, and the rest
    compared again. Raises CheckFailedError for another difference.
    """
    while True:
        table = _compared(trial)
        if "why_not" in table:
            return str(table["why_not"])
        compared = _beyond_rounding(table, bound)
        if compared is None:
            return "rounding in float32 hides what differs in small samples"
        different = [one for one, most in compared if not one.share <= most]
        if not different:
            return [one for one, _ in compared]
        seen = look_again(trial, bound)
        if seen.layer is not None and trial.leave_out_too(seen.layer, is_random=seen.is_random):
            continue
        attempt = trial.attempt
        draws = attempt.topology.is_chief and trial.draws_anew(bound)
        if attempt.backend.sum(np.array([float(draws)]))[0]:
            return "it draws random numbers that no second step draws again"
        raise CheckFailedError(message(trial, ways, different, seen))


def _beyond_rounding(
    table: Mapping[str, Any], bound: float
) -> list[tuple[Difference, float]] | None:
    """Return the differences that tell something, with their bounds; None if too few do.

    A gradient that is all rounding, as that of a bias before a normalisation, tells nothing.
    """
    found = [Difference(**row) for row in table["differences"]]
    bounds = [max(bound, ROUNDINGS * share) for share in table["rounding"]]
    compared = [(one, limit) for one, limit in zip(found, bounds, strict=True) if limit <= COARSEST]
    kinds = Counter(one.kind for one in found)
    left = Counter(one.kind for one, _ in compared)
    tells = left["loss"] and left["gradients"] >= TELLING * kinds["gradients"]
    return compared if tells else None


@final
@dataclass(frozen=True, kw_only=True)
class Size:
    """The samples of a small step, and how much it takes as a share of a step of the run."""

    patch: tuple[int, ...]
    tiles: Tiles | None
    flops: float


def _sizes(attempt: Attempt, data: RunData, network: Network) -> list[Size]:
    """Return the sizes of samples to try: the smallest that the network is thought to take, and
    those of the run. Sizes that take too long are left out."""
    config, patch = attempt.config, data.task.patch
    steps = small.pooling_steps(network.model, len(patch))
    parts = config.split or (1,) * len(patch)
    found: list[tuple[tuple[int, ...], Tiles | None]] = [(patch, data.tiles)]
    if data.tiles is not None:
        tiles = small.small_tiles(data.tiles, patch, steps)
        found.insert(0, (tiles.grid.image, tiles))
    elif not is_file(config.model) and data.cases.samples is None:
        found.insert(0, (small.small_patch(patch, steps, parts), None))
    window = math.prod(data.input_shape[:-1])
    of_voxel = small.step_flops(network.model, len(patch)) / window
    of_run = of_voxel * math.prod(patch) * config.replica_samples / math.prod(parts)
    most = max(MOST_FLOPS * (GPU if attempt.has_gpus else 1), SHARE * of_run)
    sizes = []
    for sample, cut in dict(found).items():
        own = small.small_config(config, sample, cut)
        redundancy = 1.0 if cut is None else cut.grid.even_redundancy
        flops = of_voxel * math.prod(sample) * own.global_samples * (1 + redundancy)
        if flops <= most:
            sizes.append(Size(patch=sample, tiles=cut, flops=flops))
    return sizes


def _precisions(attempt: Attempt, network: Network, size: Size) -> list[str]:
    """Return the precisions to try, the more exact one first; called by all processes together.

    float64 is for steps that are not long. What does not fit into memory is left out.
    """
    limit = MOST_DOUBLE_FLOPS * (GPU if attempt.has_gpus else 1)
    given = ["float64"] if size.flops <= limit else []
    backend, parameters = attempt.backend, network.preflight.parameters
    room = psutil.virtual_memory().available / attempt.topology.process_count
    own, free = parameters * COPIES, free_bytes()
    possible = []
    for dtype in [*given, "float32"]:
        needed = own * np.dtype(dtype).itemsize
        fits = needed <= MEMORY_SHARE * room and (free is None or needed <= MEMORY_SHARE * free)
        if not backend.sum(np.array([float(not fits)]))[0]:
            possible.append(dtype)
    return possible


def _trial(attempt: Attempt, data: RunData, network: Network, size: Size, dtype: str) -> ProofTrial:
    own = small.small_config(attempt.config, size.patch, size.tiles)
    task = replace(data.task, config=own, patch=size.patch)
    return ProofTrial(
        replace(attempt, config=own, support=None, spans=None, is_quiet=True),
        replace(data, task=task, tiles=size.tiles),
        network,
        dtype,
    )


def _error_of(call: Callable[[], Any]) -> str:
    """Return why a call fails; "" if it does not."""
    try:
        call()
    except Exception as error:
        return cause_line(error).rstrip(".")
    return ""


def _compared(trial: ProofTrial) -> dict[str, Any]:
    """Return how far the steps differ, or why they cannot be taken; all processes together."""
    backend, topology = trial.attempt.backend, trial.attempt.topology
    before, parts, failed = [], None, ""
    if trial.network.stages is not None and topology.process_count > 1:
        # What cannot be computed in this precision would fail in one stage, and others would wait.
        if topology.is_chief:
            failed = _error_of(lambda: trial.take_whole(trial.whole(), Taken()))
        if backend.sum(np.array([float(bool(failed))]))[0]:
            return {"why_not": failed}
    try:
        network = trial.in_parts()
        before = trial.values(network)
        parts = trial.take_in_parts(network)
        del network
    except Exception as error:
        failed = cause_line(error).rstrip(".")
    # Without stages all processes fail alike, before they wait for one another.
    if backend.sum(np.array([float(parts is None)]))[0]:
        return {"why_not": failed or "another process cannot compute it"}
    table: dict[str, Any] = {}
    if topology.is_chief and parts is not None:
        try:
            alone = trial.whole(before)
            whole = trial.take_whole(alone, parts)
            found = trial.differences(alone, before, parts, whole)
            trial.compared = before, whole
            del alone
            table = {
                "differences": [asdict(one) for one in found],
                "rounding": trial.rounding(before, whole, found),
            }
            if not finite(whole.losses):
                table = {"why_not": "the loss of small samples is not finite"}
        except Exception as error:
            table = {"why_not": cause_line(error).rstrip(".")}
    text = json.dumps(table).encode() if topology.is_chief else b""
    content = np.frombuffer(text, np.uint8)
    shared: dict[str, Any] = json.loads(checkpoint.share_bytes(backend, topology, content))
    return shared
