"""Stands in for a training in benchmarks/engines.py: a result from the settings alone."""

import hashlib
import json
import sys
import tomllib
from pathlib import Path


def main(folder: Path) -> None:
    """Write the result of the trial in a folder."""
    text = (folder / "config.toml").read_text()
    config = tomllib.loads(text)
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    loss = 1 / (1 + config["learning_rate"]) + int(digest[:4], 16) / 3
    result = {
        "schema_version": 1,
        "images_per_second": 10.0,
        "elapsed_seconds": 0.01,
        "num_replicas": 1,
        "loss": loss,
        "dice": {"cell": 1 / (1 + loss)},
        "weights_hash": digest,
        "checks": {"weights": True},
    }
    partial = folder / ".partial-result"
    partial.write_text(json.dumps(result))
    partial.rename(folder / "result.json")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
