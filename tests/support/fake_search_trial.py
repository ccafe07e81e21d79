"""Stands in for a training in a search: its score follows from its learning rate."""

import json
import os
import sys
import time
import tomllib
from pathlib import Path


def main(behaviour: str, folder: Path) -> None:
    config = tomllib.loads((folder / "config.toml").read_text())
    # Best at 0.3.
    score = 1 - abs(config["learning_rate"] - 0.3)
    if behaviour == "hangs":
        (folder.parent / "hangs").write_text(folder.name)
        time.sleep(600)
    columns = "epoch,steps,val_loss,dice_cell,training_seconds,evaluation_seconds,elapsed_seconds"
    with (folder / "epochs.csv").open("w") as table:
        table.write(f"{columns}\n")
        for epoch in range(1, 4):
            table.write(f"{epoch},{epoch},0.5,{score * epoch / 3},0.1,0.1,0.2\n")
            table.flush()
            if behaviour == "epochs":
                # A bad one takes long enough to be seen, on any machine: it is ended then.
                time.sleep(20 if score < 0.5 else 0)
    with (folder.parent / "starts.txt").open("a") as starts:
        starts.write(f"{os.getpid()} {folder.name}\n")
    result = {
        "schema_version": 1,
        "images_per_second": 10.0,
        "num_replicas": config["num_replicas"],
        "elapsed_seconds": 0.1,
        "dice": {"cell": score},
        "checks": {"weights": True},
    }
    (folder / "result.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
