"""Predicts what others published of networks at their own size: the tables of docs/published.md.

    python benchmarks/published.py

The runs are in benchmarks/published.toml. The model is that of `tfunet plan`; no published figure
goes into it.
"""

import math
import sys
import tomllib
from collections.abc import Sequence
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any

import keras
from stage_balance import own_cuts

from tfunet.config.amount import GIB, MIB
from tfunet.performance.layer_costs import layer_costs, symbolic_model
from tfunet.performance.stages import planned
from tfunet.pipeline.balance import Balance
from tfunet.pipeline.chain import Chain
from tfunet.pipeline.network import read_network
from tfunet.pipeline.simulation import Link
from tfunet.plan.facts import RunFacts, Update
from tfunet.plan.gather import update_seconds
from tfunet.plan.layout import Layout
from tfunet.plan.machine import Machine, described
from tfunet.plan.predict import Predictor

# Keras walks through a network of 2,000 layers one call in the other.
sys.setrecursionlimit(50_000)
FOLDER = Path(__file__).parent
PAGE = FOLDER.parent / "docs/published.md"
BEGIN, END = "<!-- published.py -->\n", "<!-- end -->\n"
HEAD = (
    *("run", "published", "predicted", "factor"),
    *("against the first: published", "predicted", "factor", "cause"),
)
MOST_WRONG = 1.3


def groups() -> list[dict[str, Any]]:
    """Return the groups of runs, each run with what its group says of all."""
    read = tomllib.loads((FOLDER / "published.toml").read_text())["group"]
    return [{**group, "runs": [{**group, **run} for run in group["runs"]]} for group in read]


def model_of(run: dict[str, Any]) -> keras.Model:
    """Return the network of a run, without values."""
    options = tuple(run.get("options", {}).items())
    bits = run.get("precision", "float32")
    return _model(run["model"], tuple(run["image"]), run["classes"], options, bits)


@cache
def _model(name: str, image: tuple[int, ...], classes: int, options: Any, bits: str) -> Any:
    return symbolic_model(
        name, image_shape=image, num_classes=classes, options=dict(options), precision=bits
    )


@cache
def _chain(model: Any, samples: int, device: Any) -> Chain:
    return layer_costs(read_network(model), samples, device)


def facts_of(run: dict[str, Any], machine: Machine, samples: Any) -> RunFacts:
    """Return what the planner knows of a run whose steps have so many samples."""
    model, device, slots = model_of(run), machine.device, run.get("slots", 2)
    traced = run.get("traced", [run.get("batch", 1)])
    return RunFacts(
        model=run["model"],
        patch=tuple(run["image"][:-1]),
        sample_bytes=4 * math.prod(run["image"]),
        num_samples=run.get("samples", samples),
        global_samples=samples,
        costs={0: [(count, _chain(model, count, device)) for count in traced]},
        update=Update(slots, update_seconds(model, slots, device)),
    )


def in_stages(run: dict[str, Any], machine: Machine) -> tuple[float, float]:
    """Return the seconds of a step in the published stages, and the bytes of all devices."""
    count, samples = run["micro_batches"], run.get("samples", run["micro_batches"])
    facts = facts_of(run, machine, samples)
    chain = facts.chain(samples / count)
    cuts = tuple(own_cuts(chain, tuple(run["cut"])))
    begin, end = (machine.exchange_seconds(size, 2, "mirrored") for size in (0, MIB))
    plan = planned(
        chain,
        Balance(cuts=cuts, devices=tuple(range(len(cuts) - 1)), seconds=()),
        schedule="gpipe",
        micro_batches=count,
        link=Link(bytes_per_second=MIB / (end - begin), seconds=begin),
        recompute=True,
    )
    share = max(chunk.weight_bytes for chunk in plan.chunks) / facts.variable_bytes
    seconds = plan.step.step_seconds + facts.update.seconds * min(1.0, share)
    return seconds, sum(plan.memory_bytes) + samples * facts.sample_bytes


def copied(run: dict[str, Any], machine: Machine) -> float:
    """Return the seconds of an epoch in which a given number of bytes is copied in each step."""
    seconds, computing, given = run["given"]
    link = described(given).device.link_bytes_per_second
    step = seconds / run["samples"]
    num_bytes = (1 - computing) * step / 2 * link
    other = computing * step
    longer = machine.copies_seconds(num_bytes, machine.num_devices, other, hidden=0.0)
    return run["samples"] * (other + longer)


def coarsest_tiles(run: dict[str, Any], machine: Machine) -> int:
    """Return the tiles along a side of the coarsest grid of which a device holds a window."""
    for tiles in (2**power for power in range(7)):
        window = (run["side"] / tiles + 2 * run["halo"]) / run["image"][0]
        facts = facts_of(run, machine, window**2)
        if Predictor(facts, machine).predict(Layout()).fits:
            return tiles
    raise ValueError(f"{run['run']}: no grid fits.")


def predicted(run: dict[str, Any]) -> float:
    """Return the value of a run that the planner's model predicts."""
    machine = described(run["machine"])
    if run["value"] == "copies":
        return copied(run, machine)
    if run["value"] == "tiles":
        return coarsest_tiles(run, machine)
    replicas, batch = run.get("replicas", 1), run.get("batch", 1)
    samples = replicas * batch
    if "cut" in run:
        seconds, num_bytes = in_stages(run, machine)
        samples = run.get("samples", run["micro_batches"])
    else:
        alike = run.get("alike", replicas)
        if run["value"] in ("rate", "memory") and "samples" in run:
            samples = run["samples"]
        backend = run.get("backend", "horovod") if alike > 1 else "single"
        # Runs beside each other share a host as replicas do, without an average worth the name.
        facts = facts_of(run, machine, samples * alike // replicas)
        layout = Layout(backend=backend, num_replicas=alike, swap=run.get("swap"))
        found = Predictor(facts, machine).predict(layout)
        seconds, num_bytes = found.seconds, found.num_bytes
    if run["value"] == "memory":
        return num_bytes / GIB
    if run["value"] == "epoch":
        return math.ceil(run["samples"] / samples) * seconds
    rate = samples / seconds
    if run["value"] == "rate":
        return rate
    facts = facts_of(run, machine, batch)
    return rate * Predictor(facts, machine).predict(Layout()).seconds / batch


def factor(value: float, published: float) -> float:
    """Return how far a prediction is off: 1 or more."""
    return max(value / published, published / value)


def is_miss(values: Sequence[float]) -> bool:
    """Whether a run's numbers, as in a line of the table, are off by more than they should be."""
    published, value, first_published, first_value = values
    return (
        max(factor(value, published), factor(value / first_value, published / first_published))
        > MOST_WRONG
    )


def pairs_in_order(values: Sequence[Sequence[float]]) -> tuple[int, int]:
    """Return how many pairs of (published, predicted) are in the right order, and their number."""
    pairs = list(combinations(values, 2))
    right = sum((a[0] - b[0]) * (a[1] - b[1]) >= 0 for a, b in pairs)
    return right, len(pairs)


def group_table(group: dict[str, Any]) -> str:
    """Return a group of runs in Markdown; ValueError for a miss without a cause."""
    values = [(run["published"], predicted(run)) for run in group["runs"]]
    first = values[0]
    lines = [HEAD, ("---", *["--:"] * (len(HEAD) - 2), "---")]
    for run, (published, value) in zip(group["runs"], values, strict=True):
        cause = run.get("why", "")
        if is_miss((published, value, *first)) != bool(cause):
            raise ValueError(
                f"{group['name']}, {run['run']}: {published:g} published, {value:.4g} predicted, "
                f"cause {cause!r}: a miss needs a cause, others have none."
            )
        ratios = (published / first[0], value / first[1])
        lines.append(
            (
                run["run"],
                *_cells(published, value),
                *(("", "", "") if run is group["runs"][0] else _cells(*ratios)),
                cause,
            )
        )
    right, count = pairs_in_order(values)
    causes = group.get("causes", {})
    if (right < count) != ("order" in causes):
        raise ValueError(f"{group['name']}: {right} of {count} pairs in order, causes: {causes}.")
    text = f"## {group['name']}\n\n{group['what']}. Source: {group['source']}.\n\n"
    text += "".join(f"| {' | '.join(line)} |\n" for line in lines)
    found = [f"- Pairs of runs in the right order: **{right} of {count}**"] if count else []
    found += [f"- **{key}**: {cause}" for key, cause in causes.items()]
    return text + "".join(f"\n{line}" for line in found) + "\n"


def _cells(published: float, value: float) -> tuple[str, str, str]:
    return _number(published), _number(value), f"{factor(value, published):.2f}"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def main() -> None:
    """Print the tables, and write them into their page."""
    tables = []
    for group in groups():
        tables.append(group_table(group))
        print(tables[-1], flush=True)
    before, _, rest = PAGE.read_text().partition(BEGIN)
    after = rest.partition(END)[2]
    PAGE.write_text(f"{before}{BEGIN}{chr(10).join(tables)}{END}{after}")


if __name__ == "__main__":
    main()
