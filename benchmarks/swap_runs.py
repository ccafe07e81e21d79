"""Starts benchmarks/swap_step.py, each time in a fresh process."""

import json
import os
import subprocess
import sys
from pathlib import Path

STEP = Path(__file__).with_name("swap_step.py")
PEERS = ["tensorflow", "keras"]
LIMIT_SECONDS = 900


def train(cap_mib=None, **settings):
    """Return what one fresh process found; None where it ended without a word."""
    environment = {**os.environ}
    if cap_mib is not None:
        environment["TF_CPU_BFC_MEM_LIMIT_IN_MB"] = str(int(cap_mib))
    try:
        done = subprocess.run(
            [sys.executable, str(STEP), json.dumps(settings)],
            capture_output=True,
            text=True,
            timeout=LIMIT_SECONDS,
            check=False,
            env=environment,
        )
    except subprocess.TimeoutExpired:
        if cap_mib is None:
            raise
        # What takes so long to begin with nobody waits for.
        return None
    if done.returncode and cap_mib is None:
        raise SystemExit(f"{settings}: exit code {done.returncode}\n{done.stderr[-2000:]}")
    # In a capped arena oneDNN ends the process where its own scratch does not fit.
    return None if done.returncode else json.loads(done.stdout.splitlines()[-1])


def losses_apart(run, other):
    return max(abs(a - b) for a, b in zip(run["losses"], other["losses"], strict=True))


def show(row):
    """Print a row while the rest is measured."""
    print(json.dumps({k: round(v, 3) if isinstance(v, float) else v for k, v in row.items()}))
    sys.stdout.flush()


def rank(model):
    return 2 if model.endswith("2d") else 3
