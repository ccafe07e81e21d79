"""On which hosts SLURM placed the tasks of a step, by its variables. Pure; no TensorFlow."""

import re
import sys
from collections.abc import Mapping, Sequence

# Tasks that a host gets at a time; None for the number that --distribution=plane=N names.
LAYOUTS = {"block": sys.maxsize, "cyclic": 1, "plane": None}


def hosts_of_step(environment: Mapping[str, str]) -> tuple[tuple[str, ...], str]:
    """Return the host of every task of a step, or why they are not known."""
    hosts = expand_hostlist(environment["SLURM_STEP_NODELIST"])
    counts = expand_counts(environment["SLURM_STEP_TASKS_PER_NODE"])
    distribution = environment.get("SLURM_DISTRIBUTION", "block")
    plane = environment.get("SLURM_DIST_PLANESIZE", "")
    is_heterogeneous = int(environment.get("SLURM_HET_SIZE") or 1) > 1
    what = f"--distribution={distribution}"
    if is_heterogeneous:
        what += " and components of a heterogeneous job"
    # The components of a step lie one after the other, whatever SLURM_DISTRIBUTION says.
    for layout in (distribution, "block") if is_heterogeneous else (distribution,):
        kind = layout.partition(":")[0]
        if len(hosts) > 1 and (kind not in LAYOUTS or (kind == "plane" and not plane.isdecimal())):
            continue
        placed = place_tasks(hosts, counts, layout, int(plane or 1))
        own = environment.get("SLURM_GTIDS")
        node = environment.get("SLURMD_NODENAME")
        there = [str(index) for index, name in enumerate(placed) if name == node]
        if own is None or own.split(",") == there:
            return tuple(placed), ""
    return (), (
        f"tfunet cannot tell on which hosts SLURM placed the tasks of a step with {what}. Use "
        "srun --distribution=block, cyclic or plane=N."
    )


def expand_hostlist(text: str) -> list[str]:
    """Return the hosts of SLURM's short form, in its order: "n[2,10-11]" is n2, n10, n11."""
    hosts: list[str] = []
    for part in re.findall(r"(?:[^,\[\]]|\[[^\]]*\])+", text):
        hosts += _expand(part)
    return hosts


def expand_counts(text: str) -> list[int]:
    """Return SLURM's counts for each node: "2(x3),1" is 2, 2, 2, 1."""
    counts: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part)
        if not match:
            raise ValueError(f"SLURM_STEP_TASKS_PER_NODE must look like '2(x3),1', got {text!r}.")
        counts += [int(match[1])] * int(match[2] or 1)
    return counts


def place_tasks(
    hosts: Sequence[str], counts: Sequence[int], distribution: str, plane: int = 1
) -> list[str]:
    """Return the host of every task as srun places them.

    Blocks by default; with "cyclic" one at a time in turn; with "plane" so many at a time.
    """
    kind = distribution.partition(":")[0]
    turn = LAYOUTS.get(kind) or plane
    rounds = range(-(-max(counts, default=0) // turn))
    return [
        host
        for number in rounds
        for host, count in zip(hosts, counts, strict=True)
        for _ in range(min(turn, count - number * turn))
    ]


def _expand(part: str) -> list[str]:
    head, bracket, rest = part.partition("[")
    if not bracket:
        return [part]
    inside, _, tail = rest.partition("]")
    numbers: list[str] = []
    for span in inside.split(","):
        first, dash, last = span.partition("-")
        if dash:
            # n[08-10] is n08, n09, n10.
            numbers += [f"{n:0{len(first)}d}" for n in range(int(first), int(last) + 1)]
        else:
            numbers.append(span)
    return [f"{head}{number}{end}" for number in numbers for end in _expand(tail)]
