"""Shows how two runs compare: for a terminal, and as JSON."""

from dataclasses import asdict
from typing import Any

from tfunet.bench.analysis.two_runs import RunsCompared
from tfunet.process.terminal import columns

COMPARISON_VERSION = 1


def runs_text(compared: RunsCompared) -> str:
    """Return what differs, what is the same, and the verdict."""
    first, second = compared.folders
    lines = [f"{second} against {first}:", ""]
    if compared.rows:
        lines += columns([["what differs", "first", "second"], *map(list, compared.rows)])
    else:
        lines.append("No setting, version or score differs.")
    lines += ["", *(f"- {note}" for note in compared.notes), ""]
    return "\n".join([*lines, f"Answer: what the runs computed is {compared.verdict}."])


def runs_json(compared: RunsCompared) -> dict[str, Any]:
    """Return the comparison for JSON."""
    table = asdict(compared)
    return {"schema_version": COMPARISON_VERSION, **table, "exit_code": compared.exit_code}
