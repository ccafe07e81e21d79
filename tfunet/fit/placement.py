"""Where the processes of a script run: `tfunet run` tells them by TFUNET_SCRIPT. No TensorFlow."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from tfunet.config.memory_keys import MemoryKeys
from tfunet.config.placement_keys import PlacementKeys
from tfunet.config.run_keys import ReliabilityKeys

VARIABLE = "TFUNET_SCRIPT"
SCRIPTS = Path("logs") / "scripts"
# The keys of a run that a script has, too. Its code says the rest.
KEYS = (
    *("backend", "backend_options", "num_replicas", "processes", "cores_per_replica"),
    *("share_cores", "gpu_memory", "cpu_memory", "hang_seconds"),
)


@final
@dataclass(frozen=True, kw_only=True)
class Placement(ReliabilityKeys, MemoryKeys, PlacementKeys):
    """The keys in KEYS. The others of these sections keep their defaults."""


def to_text(given: Mapping[str, Any]) -> str:
    """Return the value of TFUNET_SCRIPT for keys that were given."""
    return json.dumps(given)


def from_text(text: str) -> dict[str, Any]:
    """Return the keys in the value of TFUNET_SCRIPT; raise ValueError for what is none."""
    try:
        given = json.loads(text)
    except ValueError:
        given = None
    if not isinstance(given, dict) or not {*given} <= {*KEYS}:
        raise ValueError(
            f"{VARIABLE} is set by `tfunet run` for its processes, got {text!r:.80}. Unset it."
        )
    return given
