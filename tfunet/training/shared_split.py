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
    """Return the split of the chief, the written one where the run goes on, and what it lacks.

    Args:
        config: Of the run.
        source: The data set.
        bad: Case index to what is wrong with it, for those that cannot be used.
        folder: Of the run; the chief writes the split there.
        backend: Started.
        topology: As it said.

    Raises ValueError in a process that has other cases than the chief.
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
    left = json.loads(shared).get("left_out", [])
    if left and topology.is_chief:
        print(f"{len(left)} defects of {source.name} are left out: see split.json.", flush=True)
    num_cases = len({one["case_id"] for one in left if one["case_id"]})
    return from_json(shared, source, bad), num_cases
