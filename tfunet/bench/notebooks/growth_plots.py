"""Draws which sizes train under a cap, their cost, and Dice by resolution. Needs matplotlib."""

from collections.abc import Sequence
from statistics import median
from typing import Any

from matplotlib.figure import Figure

from tfunet.bench.analysis.swapping import device_bytes
from tfunet.bench.notebooks.growth import WITHOUT, Growth, SampleSize
from tfunet.bench.notebooks.resolution import DataSetResolutions
from tfunet.bench.report import plot_style
from tfunet.config.amount import MIB, whole_mib

KEPT = "#4d4d4d"
GROWTH = (
    "What trains under the cap",
    "Memory is the peak of the allocator, evaluation included. Step time is relative to a step "
    "that keeps everything and has room for it. Lines: medians; dots: repeats; crosses: does not "
    "fit.",
)
BOXES = (
    "Dice of every case at two resolutions",
    "Box: quartiles and median of the cases; whiskers: last case within 1.5 times the quartile "
    "range. A case counts once, with its mean over the runs.",
)


def growth_figure(growth: Growth) -> Figure:
    """Draw memory and step time against the number of voxels, a line for each way."""
    figure, (left, right) = plot_style.make_panels(1, 2, 3.9)
    sizes = growth.sizes
    styles = dict(
        zip(
            growth.ways,
            zip(plot_style.OTHER_COLOURS, plot_style.OTHER_MARKERS, strict=True),
            strict=False,
        )
    )
    known = [size for size in sizes if device_bytes(size.kept)]
    left.plot(
        [size.voxels for size in known],
        [median(device_bytes(size.kept)) / MIB for size in known],
        color=KEPT,
        linestyle="--",
        marker=".",
        label="everything kept",
    )
    if growth.cap.endswith("B"):
        left.axhline(
            whole_mib(growth.cap), color="#000000", linestyle=":", label=f"cap, {growth.cap}"
        )
    right.axhline(1, color="#888888", linestyle="--", linewidth=1, zorder=1)
    for at, (way, (colour, marker)) in enumerate(styles.items()):
        trained = [size for size in sizes if size.trains(way)]
        line = {"color": colour, "marker": marker, "label": way}
        measured = [size for size in trained if device_bytes(size.ways[way])]
        left.plot(
            [size.voxels for size in measured],
            [median(device_bytes(size.ways[way])) / MIB for size in measured],
            **line,
        )
        _crosses(left, growth, way, colour, at)
        timed = [(size.voxels, over) for size in trained if (over := size.over_kept(way))]
        # Without support, the step under a cap is the same step.
        if way != WITHOUT and timed:
            right.plot([voxels for voxels, _ in timed], [over.median for _, over in timed], **line)
            for voxels, over in timed:
                plot_style.repeat_dots(right, [voxels] * len(over.values), over.values, colour)
        predicted = [(size.voxels, ratio) for size in trained if (ratio := size.predicted(way))]
        if way != WITHOUT and predicted:
            right.plot(
                [voxels for voxels, _ in predicted],
                [ratio.median for _, ratio in predicted],
                color=colour,
                linestyle=":",
                label=f"predicted, {way}",
            )
    _label(left, right, sizes)
    plot_style.legend_above(figure, left, right)
    return figure


def _label(left: Any, right: Any, sizes: Sequence[SampleSize]) -> None:
    left.set(ylabel="device memory (MiB)", title="Memory")
    left.set_ylim(bottom=0)
    right.set(ylabel="step / step with everything kept", title="Time of a step")
    right.set_ylim(bottom=0)
    for axes in (left, right):
        axes.set_xscale("log", base=2)
        axes.set_xticks([size.voxels for size in sizes], [_short(size.shape) for size in sizes])
        axes.minorticks_off()
        axes.set_xlim(0.8 * sizes[0].voxels, 1.25 * sizes[-1].voxels)
        axes.set_xlabel("size of a sample")


def _short(shape: Sequence[int]) -> str:
    """Return "48^3", or the lengths one below the other."""
    return f"{shape[0]}^{len(shape)}" if len(set(shape)) == 1 else "\n".join(map(str, shape))


def _crosses(axes: Any, growth: Growth, way: str, colour: str, at: int) -> None:
    """Mark the sizes that do not train, a row for each way below the lines."""
    missing = [size.voxels for size in growth.sizes if way in size.ways and not size.trains(way)]
    places = [0.05 + 0.05 * at] * len(missing)
    axes.plot(
        missing,
        places,
        color=colour,
        marker="x",
        linestyle="none",
        transform=axes.get_xaxis_transform(),
    )


def resolution_figure(compared: Sequence[DataSetResolutions]) -> Figure:
    """Draw the Dice of every case, a row for each data set and a panel for each of its regions."""
    columns = max(len(data_set.regions) for data_set in compared)
    height = sum(plot_style.bars_height(len(data_set.resolutions)) + 0.4 for data_set in compared)
    figure, panels = plot_style.make_panels(len(compared), columns, height)
    for row, data_set in enumerate(compared):
        for column in range(columns):
            axes = panels[row * columns + column]
            if column < len(data_set.regions):
                _boxes(axes, data_set, data_set.regions[column], is_first=column == 0)
            else:
                axes.set_visible(False)
    return figure


def _boxes(axes: Any, data_set: DataSetResolutions, region: str, *, is_first: bool) -> None:
    values = [list(resolution.case_dice(region).values()) for resolution in data_set.resolutions]
    plot_style.draw_boxes(axes, values, plot_style.OTHER_COLOURS)
    labels = [resolution.label for resolution in data_set.resolutions]
    axes.set_yticks(range(len(values)), labels if is_first else [""] * len(labels))
    axes.set_ylim(len(values) - 0.4, -0.6)
    axes.grid(visible=False, axis="y")
    axes.set(title=f"{data_set.data}, {region}", xlabel="Dice of a case")
