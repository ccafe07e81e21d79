"""Starts the processes of a peer on PyTorch, a core for each."""

import json
import socket
import subprocess
import sys
from pathlib import Path


def on_torch(worker, before, processes, after, cores):
    """Return what each process of a worker prints, as JSON; None for one that prints nothing.

    Its arguments are `before`, its rank, the number of processes, a free port, and `after`.
    """
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    program = [sys.executable, Path(__file__).with_name(worker)]
    started = [
        subprocess.Popen(
            ["taskset", "--cpu-list", str(cores[rank]), *program]
            + [str(value) for value in (*before, rank, processes, port, *after)],
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(processes)
    ]
    said = [process.communicate(timeout=900)[0] for process in started]
    if any(process.returncode for process in started):
        raise SystemExit(f"{worker} ended with an error; see above.")
    return [json.loads(text) if text else None for text in said]
