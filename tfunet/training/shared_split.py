"""The same split in every process of a run."""

import json
from collections.abc import Mapping

import numpy as np

from tfunet.backend import Backend, Topology
from tfunet.config.run import RunConfig
from tfunet.data.source import DataSource
from tfunet.data.split import Split, from_json, leave_out, left_out, split_of, to_table
from tfunet.record import RunFolder
from tfunet.training import checkpoint


def shared_split(
    config: RunConfig,
    source: DataSource,
    bad: Mapping[int, str],
    folder: RunFolder,
    backend: Backend,
    topology: Topology,
) -> tuple[Split, int]:
    """Return the chief's split, and how many cases it leaves out.

    A run that goes on keeps the split of split.json. `bad` says what is wrong with cases that
    cannot be used. Raises ValueError in a process that has other cases than the chief.
    """
    text = b""
    if topology.is_chief:
        table = folder.read_split() if checkpoint.exists(folder) else None
        if table is None:
            split = leave_out(split_of(config, source), source, bad)
            table = to_table(split, source, left_out(source, bad))
            folder.write_split(table)
        text = json.dumps(table).encode()
    shared = checkpoint.share_bytes(backend, topology, np.frombuffer(text, np.uint8)).decode()
    defects = json.loads(shared).get("left_out", [])
    if defects and topology.is_chief:
        print(f"{len(defects)} defects of {source.name} are left out: see split.json.", flush=True)
    case_ids = {defect["case_id"] for defect in defects if defect["case_id"]}
    return from_json(shared, source, bad), len(case_ids)
