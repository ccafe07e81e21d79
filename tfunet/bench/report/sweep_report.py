"""Writes the report of a sweep: one HTML file without links to the web, Markdown, CSV, figures."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

from tfunet.bench.analysis.dice_target import DiceTarget, read_dice_target
from tfunet.bench.analysis.populations import Population, compare, read_populations
from tfunet.bench.analysis.swapping import swap_fault
from tfunet.bench.analysis.sweep_summary import Family, Summary, summarise
from tfunet.bench.records.run_tables import table_faults
from tfunet.bench.records.shown_cases import shown_fault
from tfunet.bench.records.sweep_record import read_sweep
from tfunet.bench.report.answer import answer
from tfunet.bench.report.configuration_table import configuration_facts, configuration_section
from tfunet.bench.report.ensemble_section import (
    ensemble_facts,
    ensemble_figures,
    ensemble_sentences,
    ensemble_tables,
    values_text,
)
from tfunet.bench.report.findings import Targets, doubts, findings
from tfunet.bench.report.lone_run import (
    MOST_PRINTED,
    heading,
    score_blocks,
    score_tables,
    shown_rows,
)
from tfunet.bench.report.number_text import csv_text, markdown_line, markdown_text, plain_text
from tfunet.bench.report.population_facts import tournament_facts
from tfunet.bench.report.population_tables import population_answer, tournament_section
from tfunet.bench.report.swapping_tables import swapping_facts, swapping_section
from tfunet.bench.report.tables import (
    cell_facts,
    comparison_facts,
    cost_rows,
    family_metrics,
    lost_rows,
    metric_rows,
    skipped_rows,
    summary_rows,
    trial_facts,
    trial_row,
)
from tfunet.bench.report.terms import explained, terms_of
from tfunet.bench.study.machine_noise import was_quiet
from tfunet.config.keys import show, show_setting
from tfunet.files.atomic import write_atomic
from tfunet.record import RunFolder

SUMMARY_VERSION = 1
FACTS = {
    "host": "host",
    "cpu": "CPU",
    "machine_cores": "CPU cores",
    "packages.tensorflow": "TensorFlow",
    "packages.keras": "Keras",
    "packages.horovod": "Horovod",
}


@dataclass(frozen=True, kw_only=True)
class ReportFiles:
    """The files of a report; `html` works without the others."""

    html: Path
    markdown: Path
    cells: Path
    trials: Path
    configurations: Path | None
    figures: tuple[Path, ...]
    cases: tuple[Path, ...]


def write_report(
    folder: str | Path, out: str | Path | None = None, target_dice: float | None = None
) -> ReportFiles:
    """Write the report of a sweep, of a run, or of a folder of runs, by default into
    `folder`/report.

    `target_dice` is the Dice whose cost is reported; by default the highest that all trials
    reached. Raises ValueError without records, or if matplotlib or jinja2 is missing.
    """
    summary = _summary(folder)
    render, plots, case_sheets, draw_populations = _needs()
    targets = _read_targets(summary, target_dice)
    target = Path(out) if out is not None else Path(folder) / "report"
    figures = target / "figures"
    for part in (target, figures):
        folder_of_part = RunFolder(part)
        folder_of_part.create() if out is not None else folder_of_part.create_inside()
    drawings = plots.draw_all(summary)
    if summary.ensemble is not None:
        drawings += [plots.drawn(*figure) for figure in ensemble_figures(summary.ensemble)]
    populations = read_populations(summary.sweep)
    drawings += draw_populations(populations)
    for drawing in drawings:
        write_atomic(figures / f"{drawing.name}.svg", drawing.svg)
    sheets = case_sheets.draw_sheets(summary)
    for sheet in sheets:
        write_atomic(figures / f"{sheet.name}.webp", sheet.webp)
    values = {
        **_values(summary, target, targets),
        "tournaments": tournament_section(populations, target_dice),
        "drawings": drawings,
        "sheets": sheets,
        "max_families": plots.MAX_FAMILIES,
        "max_sheets": case_sheets.MAX_SHEETS,
    }
    compared = configuration_facts(summary.families)
    report = ReportFiles(
        html=target / "report.html",
        markdown=target / "report.md",
        cells=target / "cells.csv",
        trials=target / "trials.csv",
        configurations=target / "configurations.csv" if compared else None,
        figures=tuple(figures / f"{drawing.name}.svg" for drawing in drawings),
        cases=tuple(figures / f"{sheet.name}.webp" for sheet in sheets),
    )
    texts = {
        report.cells: csv_text(_cells(targets)),
        report.trials: csv_text([trial_facts(trial) for trial in summary.sweep.trials]),
        report.markdown: render("report.md.j2", values),
        report.html: render("report.html.j2", values),
    }
    if report.configurations is not None:
        texts[report.configurations] = csv_text(compared)
    for path, text in texts.items():
        # The names of folders may have bytes that are not UTF-8.
        write_atomic(path, text.encode(errors="backslashreplace"))
    return report


def summary_table(folder: str | Path, target_dice: float | None = None) -> str:
    """Return the summary of a sweep for a terminal: tables, findings, the answer and doubts."""
    summary = _summary(folder)
    said = _answer(summary)
    blocks = score_blocks(summary)
    targets = _read_targets(summary, target_dice)
    for family, target in targets:
        above = list(filter(None, [heading(summary, family)]))
        rows = plain_text(shown_rows(summary, summary_rows(family)))
        blocks.append("\n".join([*above, *rows]))
        if costs := shown_rows(summary, cost_rows(family, target)):
            blocks.append("\n".join(plain_text(costs)))
        if measured := metric_rows(family):
            blocks.append("\n".join(plain_text(measured)))
        if parts := lost_rows(family):
            blocks.append("\n".join(plain_text(parts)))
    for compared in configuration_section(summary.families, said):
        lines = [f"Configurations compared: {compared['heading']}", *plain_text(compared["rows"])]
        if compared["sentence"]:
            lines.append(f"- {compared['sentence']}")
        blocks.append("\n".join(lines))
    if summary.ensemble is not None:
        ensemble = summary.ensemble
        blocks += ["\n".join(plain_text(rows)) for rows in ensemble_tables(ensemble)]
        blocks.append("\n".join(f"- {line}" for line in ensemble_sentences(ensemble)))
    if swapping := swapping_section(summary.sweep):
        blocks.append("Large-model support")
        blocks += ["\n".join(plain_text(rows)) for rows in swapping["tables"]]
        blocks[-1] += "".join(f"\n- {sentence}" for sentence in swapping["sentences"])
    if tournaments := tournament_section(read_populations(summary.sweep), target_dice):
        blocks.append("Tournaments")
        blocks += ["\n".join(plain_text(rows)) for rows in tournaments["tables"]]
        blocks[-1] += "".join(f"\n- {sentence}" for sentence in tournaments["sentences"])
    by_heading = findings(summary, targets)
    for topic, sentences in by_heading.items():
        if not topic.startswith("Scaling"):
            blocks.append("\n".join([topic, *(f"- {sentence}" for sentence in sentences)]))
    blocks.append(f"Answer: {said}")
    warnings = doubts(summary)
    if warnings:
        blocks.append(
            "\n".join(["Before you rely on this:", *(f"- {warning}" for warning in warnings)])
        )
    return "\n\n".join(blocks)


def summary_json(folder: str | Path, target_dice: float | None = None) -> dict[str, Any]:
    """Return the summary of a sweep with unrounded numbers, for JSON."""
    summary = _summary(folder)
    populations = read_populations(summary.sweep)
    targets = _read_targets(summary, target_dice)
    return {
        "schema_version": SUMMARY_VERSION,
        "study": summary.sweep.name,
        "trials": len(summary.sweep.trials),
        "trials_done": len(summary.sweep.trials) - len(summary.not_done),
        "answer": _answer(summary),
        "cells": _cells(targets),
        "comparisons": [
            comparison_facts(family, comparison)
            for family in summary.families
            for comparison in family.comparisons
        ],
        "configurations": configuration_facts(summary.families),
        "swapping": swapping_facts(summary.sweep),
        "machine_was_quiet": was_quiet(summary.sweep.noise),
        "findings": findings(summary, targets, has_caution=False),
        "doubts": doubts(summary),
        **({"ensemble": ensemble_facts(summary.ensemble)} if summary.ensemble else {}),
        **({"tournaments": tournament_facts(populations, target_dice)} if populations else {}),
    }


def _summary(folder: str | Path) -> Summary:
    """Return the summary of a sweep, with what is wrong in the files of its finished trials."""
    sweep = read_sweep(folder)
    faults = [
        f"{trial.id}: {fault}"
        for trial in sweep.trials
        if trial.result is not None
        for fault in (
            *table_faults(trial.folder),
            swap_fault(trial),
            shown_fault(trial.folder),
        )
        if fault
    ]
    return summarise(replace(sweep, faults=(*sweep.faults, *faults)))


def _read_targets(summary: Summary, dice: float | None) -> Targets:
    return [(family, read_dice_target(family.cells, dice)) for family in summary.families]


def _cells(targets: Targets) -> list[dict[str, Any]]:
    return [cell_facts(family, cell, target) for family, target in targets for cell in family.cells]


def _values(summary: Summary, folder: Path, targets: Targets) -> dict[str, Any]:
    """Return what the templates show in a report in `folder`."""
    sweep = summary.sweep
    done = sum(trial.result is not None for trial in sweep.trials)
    return {
        "is_lone": summary.lone_run is not None,
        "of_arrays": bool(summary.array_score),
        **score_tables(summary),
        "most_printed": MOST_PRINTED,
        "name": sweep.name,
        "num_trials": len(sweep.trials),
        "num_done": done,
        "headline": _headline(summary),
        "answer": _answer(summary),
        "explained": explained,
        "terms": terms_of(_columns(summary, targets)),
        "findings": findings(summary, targets),
        "doubts": doubts(summary),
        "families": [_family_values(summary, *each) for each in targets],
        "configurations": configuration_section(summary.families, _answer(summary)),
        "swapping": swapping_section(summary.sweep),
        "ensemble": None
        if summary.ensemble is None
        else {
            "sentences": ensemble_sentences(summary.ensemble),
            "tables": ensemble_tables(summary.ensemble),
        },
        "varying": {key: _values_text(summary, values) for key, values in summary.varying.items()},
        "fixed": {key: show_setting(key, value) for key, value in summary.fixed.items()},
        "num_comparisons": summary.num_comparisons,
        "repeats": max((trial.repeat for trial in sweep.trials), default=0),
        "environment": {key: show(value) for key, value in summary.environment.items()},
        "differences": {
            key: "; ".join(f"{value} ({count} trials)" for value, count in counts.items())
            for key, counts in summary.environment_differences.items()
        },
        "noise": [_noise(measurement) for measurement in sweep.noise],
        "trials": [
            {
                "row": trial_row(trial, summary.array_score),
                "link": os.path.relpath(trial.folder, folder) if trial.folder.is_dir() else None,
            }
            for trial in sweep.trials
        ],
        "skipped": skipped_rows(summary),
        "checks": sorted(
            {
                check
                for family in summary.families
                for cell in family.cells
                for result in cell.results
                for check in result.checks
            }
        ),
        "markdown": markdown_text,
    }


def _family_values(summary: Summary, family: Family, target: DiceTarget) -> dict[str, Any]:
    return {
        "heading": heading(summary, family),
        "rows": shown_rows(summary, summary_rows(family)),
        "costs": shown_rows(summary, cost_rows(family, target)),
        "lost": lost_rows(family),
        "metrics": metric_rows(family),
        "has_energy": any(cell.energy_joules for cell in family.cells),
    }


def _columns(summary: Summary, targets: Targets) -> Iterator[str]:
    """Yield the names of the columns of all tables."""
    for family, target in targets:
        tables = (
            summary_rows(family),
            cost_rows(family, target),
            metric_rows(family),
            lost_rows(family),
        )
        yield from (name for rows in tables if rows for name in rows[0])
        yield from family_metrics(family)
    for rows in (
        score_tables(summary)["regions"],
        *(compared["rows"] for compared in configuration_section(summary.families)),
    ):
        yield from (name for row in rows[:1] for name in row)
    for trial in summary.sweep.trials[:1]:
        yield from trial_row(trial, summary.array_score)


def _answer(summary: Summary) -> str:
    if summary.ensemble is not None:
        return ensemble_sentences(summary.ensemble)[0]
    return population_answer(compare(read_populations(summary.sweep))) or answer(summary)


def _values_text(summary: Summary, values: Sequence[str]) -> str:
    return ", ".join(values) if summary.ensemble is None else values_text(values)


def _headline(summary: Summary) -> str:
    facts = {name: summary.environment.get(key) for key, name in FACTS.items()}
    return ", ".join(f"{name} {value}" for name, value in facts.items() if value is not None)


def _noise(measured: Mapping[str, Any]) -> dict[str, str]:
    return {
        "when": str(measured.get("when", "")),
        "median (ms)": f"{1000 * float(measured.get('median_seconds', 0)):.2f}",
        "spread": f"{float(measured.get('spread', 0)):.1%}",
        "cores": str(measured.get("cores", "")),
    }


def _needs() -> tuple[
    Callable[[str, Mapping[str, Any]], str],
    ModuleType,
    ModuleType,
    Callable[[Sequence[Population]], list[Any]],
]:
    """Return a function that fills templates, and what draws; they need packages."""
    try:
        import jinja2

        from tfunet.bench.report import case_sheets, plots
        from tfunet.bench.report.pedigree_plots import population_drawings
    except ModuleNotFoundError as error:
        if error.name not in ("jinja2", "matplotlib"):
            raise
        raise ValueError(
            f"A report needs {error.name}, which is not installed. To install it: "
            "pip install 'tfunet[report]'"
        ) from error
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("tfunet.bench.report", "."),
        autoescape=jinja2.select_autoescape(["html.j2"]),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    # HTML is escaped, and knows no lines; in Markdown a newline would begin a heading or a list.
    environment.filters["line"] = markdown_line

    def render(template: str, values: Mapping[str, Any]) -> str:
        return environment.get_template(template).render(**values)

    return render, plots, case_sheets, population_drawings
