"""Proofs that are kept: a run that goes on, and trials of a sweep, do not prove the same again."""

import hashlib
import json
from importlib import metadata
from pathlib import Path
from typing import Any

from tfunet.config.kept_programs import hashes, named_programs
from tfunet.config.run import RunConfig
from tfunet.files.atomic import write_atomic, writing
from tfunet.files.typed import (
    Amount,
    FieldError,
    Positive,
    RecordError,
    check_known_fields,
    read_json,
)
from tfunet.machine.environment import code_hash

# In the folder of a run, and beside those of a sweep's trials.
FILE = "proof.json"
FOLDER = "proofs"
PLAN = "plan.json"
# What is kept of a proof, as result.json has it.
PROOF = {
    "is_proved": bool,
    "ways": list[str],
    "patch": list[Positive],
    "samples": Positive,
    "precision": str,
    "differences": dict[str, Amount],
    "left_out": list[str],
    "seconds": Amount,
}
# What a small step hangs on, beside the code.
KEYS = (
    *("model", "model_options", "loss", "loss_options", "outputs", "metrics"),
    *("optimizer", "optimizer_options", "scale_learning_rate", "batch_norm"),
    *("data", "data_options", "patch"),
    *("backend", "backend_options", "num_replicas", "processes", "accumulation"),
    "zero",
    *("split", "stages", "micro_batches", "schedule", "balance", "recompute", "tiling"),
)


def key_of(config: RunConfig) -> str:
    """Return what runs share whose small steps are the same."""
    values = config.values()
    known = {
        "config": {key: values.get(key) for key in KEYS},
        "programs": hashes(values, named_programs(values)),
        "versions": [metadata.version(name) for name in ("tensorflow", "keras", "numpy")],
        "code": code_hash(),
    }
    return hashlib.blake2b(json.dumps(known, sort_keys=True).encode(), digest_size=12).hexdigest()


def read(run: Path, key: str) -> dict[str, Any] | None:
    """Return the proof that a run, or another one of its sweep, has kept under a key."""
    for path in (run / FILE, run.parent / FOLDER / f"{key}.json"):
        try:
            table = read_json(path, dict[str, Any])
        except RecordError:
            continue  # It is made anew.
        if table is not None and table.get("key") == key and _is_proof(table.get("proved")):
            return dict(table["proved"])
    return None


def _is_proof(values: Any) -> bool:
    try:
        check_known_fields(values, PROOF)
    except FieldError:
        return False
    return set(values) == set(PROOF) and values["is_proved"]


def keep(run: Path, key: str, proved: dict[str, Any]) -> None:
    """Keep a proof for this run and, in a sweep, for others. Raises WriteError."""
    text = json.dumps({"key": key, "run": run.name, "proved": proved}, indent=1)
    write_atomic(run / FILE, text)
    if (run.parent / PLAN).is_file():
        folder = run.parent / FOLDER
        with writing(folder):
            folder.mkdir(exist_ok=True)
        write_atomic(folder / f"{key}.json", text)
