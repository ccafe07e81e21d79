"""What every benchmark prints as its last line, and the machine that it ran on."""

import argparse
import json
import platform
import statistics
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any

from tfunet.machine.environment import environment


def quick_option(description: str | None) -> bool:
    """Return whether --quick was given: fewer repeats, for a look; not for a claim."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--quick", action="store_true", help="fewer repeats, for a look")
    return parser.parse_args().quick


def verdict(
    name: str,
    ratios: Sequence[float],
    *,
    bound: float,
    most: bool,
    samples: Mapping[str, Any],
    peers: Sequence[str],
) -> dict[str, Any]:
    """Return one claim: the median of paired ratios against its bound.

    Args:
        name: Name of the claim.
        ratios: One for each pair that was measured side by side.
        bound: What the median is held to.
        most: Whether the bound is the most, or else the least, that it may be.
        samples: Every paired measurement.
        peers: Packages compared with; their versions are added.
    """
    ratio = statistics.median(ratios)
    return {
        "name": name,
        "ratio": round(ratio, 4),
        "low": round(min(ratios), 4),
        "high": round(max(ratios), 4),
        "bound": bound,
        "holds": ratio <= bound if most else ratio >= bound,
        "samples": samples,
        "peers": {peer: version(peer) for peer in peers},
        "machine": machine(),
    }


def show(claims: Sequence[Mapping[str, Any]]) -> None:
    """Print a line for each claim, and all as one JSON object on the last line."""
    for claim in claims:
        word = "holds" if claim["holds"] else "DOES NOT HOLD"
        print(
            f"{claim['name']}: {claim['ratio']:.3f} ({claim['low']:.3f} to {claim['high']:.3f}), "
            f"bound {claim['bound']}: {word}"
        )
    first, *others = claims
    print(json.dumps({**first, "others": others}))


def machine() -> dict[str, Any]:
    """Return the processor, its cores that may be used, and the Python."""
    facts = environment()
    return {
        "cpu": facts.get("cpu_model", platform.processor()),
        "cores": facts.get("cores"),
        "python": platform.python_version(),
    }
