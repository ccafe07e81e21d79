"""Predicts the balance of torchgpipe's U-Net and of the four networks of Seal et al. 2020.

Writes the table of docs/pipeline.md: the exact cuts beside the published ones, which are given in
torchgpipe's layers. Its networks have a layer more than ours for each skip, before the pooling.

    python benchmarks/stage_balance.py
"""

from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

from tfunet.performance.devices import DEVICES
from tfunet.performance.layer_costs import layer_costs, symbolic_model
from tfunet.performance.stages import plan_stages
from tfunet.pipeline.balance import v_balance
from tfunet.pipeline.chain import Chain
from tfunet.pipeline.network import read_network
from tfunet.pipeline.simulation import Link
from tfunet.swap.plan.costs import COPY_START_SECONDS

PAGE = Path(__file__).parents[1] / "docs/pipeline.md"
BEGIN, END = "<!-- stage_balance.py -->\n", "<!-- end -->\n"
DEVICE = "v100-nvlink2"
STAGES = (2, 4, 6, 8)
HEAD = (
    *("network, images", "stages", "exact", "with `v`", "largest layer"),
    *("published cut", "its layers", "its time", "micro-batches", "predicted speed-up"),
    "published",
)


@dataclass(frozen=True)
class Published:
    """A published cut, in torchgpipe's layers.

    Args:
        speed_up: As measured by its authors, on their devices.
    """

    layers: tuple[int, ...]
    micro_batches: int | None = None
    speed_up: str = ""


@dataclass(frozen=True)
class Row:
    """A network, and what was published about it, by number of stages."""

    model: str
    shape: tuple[int, int, int]
    published: dict[int, Published]


ROWS = (
    Row(
        "summit_5_5",
        (192, 192, 3),
        {
            2: Published((104, 137), 32, "1.25"),
            4: Published((30, 66, 84, 61), 16, "2.35"),
            8: Published((16, 27, 31, 44, 22, 57, 27, 17), 40, "3.11"),
        },
    ),
    Row("summit_5_2", (512, 512, 4), {6: Published((14, 24, 30, 22, 12, 7), None, "1.97")}),
    Row("summit_5_5", (512, 512, 4), {}),
    Row("summit_6_2", (512, 512, 4), {6: Published((16, 26, 38, 26, 12, 11), None, "2.01")}),
    Row("summit_7_2", (512, 512, 4), {6: Published((18, 30, 44, 30, 14, 13))}),
)


def costs(row: Row) -> Chain:
    """Return the predicted costs of a network's layers for one sample."""
    model = symbolic_model(row.model, image_shape=row.shape, num_classes=1, options={})
    return layer_costs(read_network(model), 1, DEVICES[DEVICE])


def own_cuts(chain: Chain, layers: tuple[int, ...]) -> list[int]:
    """Return the published cuts as positions in our chain, which has no layer for a skip."""
    positions, names = [0], [layer.name for layer in chain.layers]
    for at, name in enumerate(names):
        is_skip = name.endswith("_pooling")
        positions += [at, at + 1] if is_skip else [at + 1]
    if sum(layers) != len(positions) - 1:
        raise ValueError(f"The network has {len(positions) - 1} layers, the cut {sum(layers)}.")
    return [positions[count] for count in (0, *accumulate(layers))]


def imbalance(chain: Chain, cuts: list[int]) -> float:
    """Return the slowest stage as a multiple of the mean."""
    seconds = [stage.seconds for stage in chain.stages(cuts)]
    return max(seconds) * len(seconds) / sum(seconds)


def table_rows(row: Row, num_stages: int, chain: Chain) -> tuple[str, ...]:
    """Return the cells of a line of the table."""
    published = row.published.get(num_stages)
    micro_batches = (published.micro_batches if published else None) or 4 * num_stages
    link = Link(bytes_per_second=DEVICES[DEVICE].link_bytes_per_second, seconds=COPY_START_SECONDS)
    straight, two_chunks = (
        plan_stages(chain, num_stages, schedule=schedule, micro_batches=micro_batches, link=link)
        for schedule in ("1f1b", "v")
    )
    faster = [
        micro_batches * chain.seconds / plan.step.step_seconds for plan in (straight, two_chunks)
    ]
    largest = max(layer.seconds for layer in chain.layers) * num_stages / chain.seconds
    shape = " x ".join(map(str, row.shape))
    mean = sum(published.layers) / num_stages if published else 0
    return (
        f"`{row.model}`, {shape}",
        str(num_stages),
        f"{straight.balance.imbalance:.3f}",
        f"{v_balance(chain, num_stages).imbalance:.3f}",
        f"{largest:.2f}",
        ", ".join(map(str, published.layers)) if published else "",
        f"{max(published.layers) / mean:.2f}" if published else "",
        f"{imbalance(chain, own_cuts(chain, published.layers)):.2f}" if published else "",
        str(micro_batches),
        f"{faster[0]:.2f}, with `v` {faster[1]:.2f}",
        published.speed_up if published else "",
    )


def table(rows: tuple[Row, ...] = ROWS, stages: tuple[int, ...] = STAGES) -> str:
    """Return the table in Markdown."""
    lines = [HEAD, ("---", *("--:" for _ in HEAD[1:]))]
    for row in rows:
        chain = costs(row)
        lines += [table_rows(row, num_stages, chain) for num_stages in stages]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def main() -> None:
    """Write the table into its page."""
    before, _, rest = PAGE.read_text().partition(BEGIN)
    after = rest.partition(END)[2]
    PAGE.write_text(f"{before}{BEGIN}{table()}{END}{after}")


if __name__ == "__main__":
    main()
