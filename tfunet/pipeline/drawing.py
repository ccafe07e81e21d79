"""Draws the schedule of a step, as text and as a picture. Imports no TensorFlow."""

from pathlib import Path
from string import ascii_lowercase, digits

from tfunet.files.atomic import replacing
from tfunet.pipeline.schedules import StagePass
from tfunet.pipeline.simulation import Simulation

COLUMNS = 96
LEGEND = (
    "digits: forward passes of micro-batches 0, 1, ...; letters: their backward passes; .: waits"
)
# Okabe and Ito 2008: colour-blind people can tell these colours apart.
FORWARD, FORWARD_LATER = "#0072B2", "#56B4E9"
BACKWARD, BACKWARD_LATER = "#D55E00", "#E69F00"


def drawn(step: Simulation, columns: int = COLUMNS) -> list[str]:
    """Return a line for each device, in which each character stands for as much time."""
    rows = [["."] * columns for _ in step.busy_seconds]
    for event in step.events:
        begin, end = (
            round(seconds / step.step_seconds * columns) for seconds in (event.begin, event.end)
        )
        for at in range(begin, max(end, begin + 1) if begin < columns else begin):
            rows[event.device][at] = _letter(event.action)
    return [f"{device + 1:>3}  {''.join(row)}" for device, row in enumerate(rows)]


def _letter(action: StagePass) -> str:
    letters = digits if action.kind == "forward" else ascii_lowercase
    return letters[action.micro_batch % 10]


def draw(step: Simulation, title: str, path: Path) -> None:
    """Draw when each device does which pass.

    Raises ValueError without matplotlib, WriteError if the file cannot be written.
    """
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
        from matplotlib.patches import Patch
    except ModuleNotFoundError as error:
        raise ValueError("A picture needs matplotlib: pip install 'tfunet[report]'.") from error

    devices = range(len(step.busy_seconds))
    chunks = [{event.action.chunk for event in step.events if event.device == at} for at in devices]
    with mpl.rc_context({"font.size": 9.5, "svg.fonttype": "none", "svg.hashsalt": "tfunet"}):
        figure = Figure(figsize=(9, 1.4 + 0.35 * len(devices)), layout="constrained")
        axes = figure.subplots()
        for event in step.events:
            is_later = event.action.chunk > min(chunks[event.device])
            is_forward = event.action.kind == "forward"
            first, second = (FORWARD, FORWARD_LATER) if is_forward else (BACKWARD, BACKWARD_LATER)
            milliseconds = 1e3 * (event.end - event.begin)
            axes.barh(
                *(event.device + 1, milliseconds, 0.8, 1e3 * event.begin),
                color=second if is_later else first,
                edgecolor="white",
                linewidth=0.5,
            )
            if event.end - event.begin > step.step_seconds / 60:
                axes.text(
                    *(1e3 * (event.begin + event.end) / 2, event.device + 1),
                    str(event.action.micro_batch),
                    color="white",
                    ha="center",
                    va="center",
                    fontsize=7,
                )
        named = [(FORWARD, "forward"), (BACKWARD, "backward")]
        if any(len(own) > 1 for own in chunks):
            named += [(FORWARD_LATER, "forward, second chunk")]
            named += [(BACKWARD_LATER, "backward, second chunk")]
        axes.legend(
            handles=[Patch(color=colour, label=label) for colour, label in named],
            frameon=False,
            loc="upper left",
            bbox_to_anchor=(1, 1),
        )
        axes.set_yticks([device + 1 for device in devices])
        axes.invert_yaxis()
        axes.set_xlim(0, 1e3 * step.step_seconds)
        axes.set_xlabel("time in the step (ms)")
        axes.set_ylabel("device")
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
        axes.set_title(title, loc="left", parse_math=False)  # It has the name of the model.
        with replacing(path) as partial:
            metadata = {"Date": None} if path.suffix == ".svg" else None
            figure.savefig(partial, dpi=120, metadata=metadata)
