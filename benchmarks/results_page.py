"""Write docs/large-models-results.md from the records under logs/reference/.

    python benchmarks/results_page.py

large-models/sections.json there lists the sections, with machine, command, date and commit. A
section has its table in KEY.csv or in a sweep, and its single figures in figures.csv.
"""

import csv
import json
import statistics
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
REFERENCE = ROOT / "logs" / "reference"
RECORDS = REFERENCE / "large-models"
PAGE = ROOT / "docs" / "large-models-results.md"
HEAD = """\
# Large-model support: results

`python benchmarks/results_page.py` writes this page from the records in
[logs/reference](../logs/reference/README.md): change those, not this file.
[large-models-internals.md](large-models-internals.md) explains the terms. `[a, b]` is the lowest
and the highest value. All measurements are from CPUs ([gpus.md](gpus.md) has what ran on a GPU).
Nothing was timed with TensorFlow 2.21.
"""


def read_rows(name):
    """Return the rows of a record as dicts; none where there is no such file."""
    path = RECORDS / f"{name}.csv"
    return list(csv.DictReader(path.read_text().splitlines())) if path.exists() else []


def table(heads, rows):
    """Return a Markdown table."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def csv_table(section):
    """Return the table of a section's CSV file, its pairs of columns for each way joined."""
    columns, ways = section["columns"], section.get("ways", {})
    rows = [
        [row[column] for column in columns] + [cost_cell(row, way) for way in ways]
        for row in read_rows(section["key"])
    ]
    return table([*columns.values(), *ways.values()], rows)


def cost_cell(row, way):
    """Return memory and time of a step in one way."""
    memory, step = row[f"{way}_peak_mib"], row[f"{way}_step_over_kept"]
    if row[f"{way}_fits"] == "yes":
        return f"{memory} MiB, {step}"
    return f"does not fit ({memory} MiB{f', {step}' if step else ''})"


def sizes_table(folder):
    """Return which sizes trained in a sweep over sizes, and the predicted cost."""
    trials = {}
    for path in sorted(folder.glob("*/config.json")):
        config = json.loads(path.read_text())
        way = config["swap"] or ("without" if config["cpu_memory"] == "200MiB" else "kept")
        trials.setdefault((config["data_options"]["size"], way), []).append(path.parent)
    sizes, rows = sorted({size for size, _ in trials}), []
    for size in sizes:
        row = [f"{size}^3", f"{(size / 48) ** 3:.2f}"]
        for way in ("without", "auto", "0.5"):
            runs = trials.get((size, way), [])
            trained = sum((run / "result.json").exists() for run in runs)
            row.append(f"{trained} of {len(runs)}")
        rows.append([*row, predicted_cost(trials.get((size, "0.5"), []))])
    heads = ["volume", "times the voxels of 48^3", "without support", '`swap = "auto"`']
    return table([*heads, '`swap = "0.5"`', "predicted step / step with everything kept"], rows)


def predicted_cost(runs):
    """Return the median of the predicted step times over those with everything kept."""
    ratios = []
    for run in runs:
        if (run / "result.json").exists():
            plan = json.loads((run / "swap.json").read_text())["plans"][0]
            ratios.append(plan["step_seconds"] / plan["unlimited_step_seconds"])
    return f"{statistics.median(ratios):.2f}" if ratios else ""


def figure_line(figure, section):
    """Return a single figure as an item of a list."""
    spread = f" [{figure['lowest']}, {figure['highest']}]" if figure["lowest"] else ""
    remark = f" {figure['remark']}" if figure["remark"] else ""
    is_other = figure["recorded_in"] != section["recorded_in"]
    source = f" ({figure['date']}, {figure['recorded_in']})" if is_other else ""
    return f"- {figure['figure']}: **{figure['value']}**{spread}.{remark}{source}"


def section_text(section):
    """Return one section of the page."""
    command = f"`{section['command']}`; " if section["command"] else ""
    source = f"{command}{section['machine']}; recorded {section['date']}"
    parts = [f"## {section['title']}", section["text"]]
    if "sweep" in section:
        parts.append(sizes_table(REFERENCE / section["sweep"]))
    elif "columns" in section:
        parts.append(csv_table(section))
    figures = [row for row in read_rows("figures") if row["section"] == section["key"]]
    if figures:
        parts.append("\n".join(figure_line(figure, section) for figure in figures))
    parts.append(f"Source: {source}, commit {section['recorded_in']}.")
    return "\n\n".join(parts)


def page():
    """Return the whole page."""
    sections = json.loads((RECORDS / "sections.json").read_text())
    return "\n\n".join([HEAD.rstrip(), *map(section_text, sections)]) + "\n"


def between(values):
    """Return "low to high", as the values are written."""
    return f"{min(values, key=float)} to {max(values, key=float)}"


def headline():
    """Return the lines that docs/large-models.md begins its results with."""
    growth, cost, predictions = map(read_rows, ("growth", "cost", "predictions"))
    steps = {
        times: [
            row["planner_step_over_kept"]
            for row in cost
            if row["planner_fits"] == "yes" and round(float(row["times_the_voxels"])) == times
        ]
        for times in (2, 4, 8)
    }
    peaks = between([row["predicted_over_measured_peak"] for row in predictions])
    times = between([row["predicted_over_measured_step"] for row in predictions])
    return (
        f"- **Size**: {between([row['split_times'] for row in growth])} times the voxels, or "
        f"{between([row['batch'] for row in growth])} times the batch, in the same memory.\n"
        f"- **Time**: a step takes {between(steps[2])} times as long at 2.4 times the voxels, "
        f"{between(steps[4])} at 4 times, and {between(steps[8])} at 8 times, where it fits.\n"
        f"- **Predictions**: over {len(predictions)} combinations, the predicted peak is {peaks} "
        f"of the measured one, and the predicted time of a step {times}.\n"
    )


if __name__ == "__main__":
    PAGE.write_text(page())
    print(headline())
