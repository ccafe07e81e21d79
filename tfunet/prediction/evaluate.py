"""Scores a run's predictions of images with given masks: `tfunet evaluate`."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from tfunet.config.case_metrics import CaseMetric, case_metrics, check_case_metrics, has_lengths
from tfunet.data.formats.units import converted
from tfunet.data.source import DataSource, RawCase
from tfunet.files.atomic import write_atomic, writing
from tfunet.learning import scores
from tfunet.learning.case_metrics import check_library, measure, of_objects, tolerances
from tfunet.learning.confusion import (
    BACKGROUND,
    CONFUSION,
    accuracies,
    confusion_csv,
    count_pairs,
    region_counts,
    region_table,
)
from tfunet.learning.dataset_scores import (
    COUNTS,
    RegionScores,
    absent_line,
    mean_of,
    region_scores,
    score_rows,
    score_text,
)
from tfunet.learning.own_metric import load_own, of_cases
from tfunet.prediction.case_pictures import NUM_PICTURES, Cases, now_and_then
from tfunet.prediction.code_images import write_image
from tfunet.prediction.ensemble import Member
from tfunet.prediction.network import TrainedNetwork
from tfunet.prediction.options import Options
from tfunet.prediction.overlay_picture import NO_DRAWING, drawing, write_confusion
from tfunet.prediction.run import followed, predict, written_values
from tfunet.prediction.score_tables import (
    ALWAYS,
    group_facts,
    group_rows,
    json_text,
    region_facts,
    spread_rows,
    table_csv,
    table_lines,
)
from tfunet.prediction.scored_data import chosen_cases, opened
from tfunet.process.terminal import counted, lines_of
from tfunet.record import RunFolder

COLUMNS = ("case", "group", "region", *COUNTS, "dice", "iou")
# What the name of a file cannot hold, and a table may have in the name of a case.
UNFIT = re.compile(r"^\.+|[/\\\x00-\x1f\x7f]")


@dataclass(frozen=True, kw_only=True)
class Scored:
    """The scores of a data set: rows of scores.csv, and where they are.

    Attributes:
        regions: Means over cases, and scores of the data set, of each region.
        confusion: The voxels of each true label (rows) and each predicted one.
    """

    rows: tuple[dict[str, Any], ...]
    metrics: tuple[str, ...]
    path: Path
    cases: Cases
    confusion: np.ndarray

    @property
    def regions(self) -> dict[str, RegionScores]:
        return region_scores(self.rows)

    def region_rows(self) -> list[dict[str, Any]]:
        """Return the rows of region_scores.csv: scores of each region and their spread."""
        facts = region_facts(self.rows, self.metrics)
        return [{"region": region, **its} for region, its in facts.items()]

    def table(self) -> str:
        """Return the scores of each region, their means and spread, and the means of groups."""
        found = self.regions
        miou, dice = (mean_of(found, name) for name in ("dataset_iou", "dice"))
        of_pixels, of_classes = accuracies(self.confusion)
        lines = [
            *table_lines(score_rows(found)),
            f"mIoU {score_text(miou)} (dataset IoU), mean Dice {score_text(dice)} (over cases); "
            f"{counted(len(found), 'region')}.",
            f"Accuracy of pixels {score_text(of_pixels)}, of classes {score_text(of_classes)}; "
            f"{counted(int(self.confusion.any(axis=1).sum()), 'class')} in the masks.",
        ]
        absent = absent_line(found)
        lines += [absent] if absent else []
        for rows in (spread_rows(self.rows, self.metrics), group_rows(self.rows, self.metrics)):
            lines += ["", *table_lines(rows)] if rows else []
        return "\n".join(lines)


def evaluate(
    run: Path,
    data: str,
    out: Path,
    options: Options,
    *,
    metrics: Sequence[str] | None = None,
    with_training_cases: bool = False,
    skip_bad: bool = False,
) -> Scored:
    """Predict the cases of a data set with a run's network, and score them against their masks.

    Scores are those of the images as they are stored, with their own pixel sizes.

    Args:
        run: Folder of a finished run.
        data: A configuration or a description of a data set (.toml), or a folder, which is read as
            the run read its own.
        out: Folder for predictions and scores.csv; predictions that are there are not made again.
        options: How to predict.
        metrics: Names of metrics of whole cases; by default those of the run.
        with_training_cases: Whether to score cases that the run was trained on, too.
        skip_bad: Whether to leave out cases with defects, with a warning for each cause.

    Raises ValueError for what does not fit, DefectsError for defects of the data set.
    """
    members, _ = followed(run, options)
    network = members[0].network
    wanted = _wanted(members[0], metrics)
    source = opened(data, network, skip_bad=skip_bad)
    chosen, cases = chosen_cases(
        source, members, with_training_cases=with_training_cases, skip_bad=skip_bad
    )
    has_spacing = all(case.spacing is not None for case in cases)
    in_units = tolerances(wanted, source.unit, has_spacing=has_spacing)
    if not has_spacing and has_lengths(wanted):
        print("Distances and volumes of metrics are in pixels: no pixel size is known.")
    stems = [UNFIT.sub("_", source.case_ids[index]) for index in chosen]
    # Instead of labels alone, pictures show the errors, too.
    plain = replace(options, overlay=False)
    scored_cases = Cases(
        source=source,
        indices=chosen,
        stems=stems,
        written=written_values(network, options),
        predictions=_predicted(run, source, chosen, stems, cases, network, out, plain),
    )
    rows, confusion = _all_rows(scored_cases, in_units, has_spacing=has_spacing)
    extra = tuple(metric.name for metric in wanted if metric.name not in ALWAYS)
    result = Scored(
        rows=tuple(rows),
        metrics=extra,
        path=out / "scores.csv",
        cases=scored_cases,
        confusion=confusion,
    )
    _write_tables(result)
    return result


def _write_tables(scored: Scored) -> None:
    rows, out = scored.rows, scored.path.parent
    names = [name for name in (*COLUMNS, *scored.metrics) if name in rows[0]]
    _write(scored.path, table_csv(rows, names))
    classes = scored.cases.source.label_names().values()
    _write(out / CONFUSION, confusion_csv(scored.confusion, classes))
    _write(out / "region_scores.csv", table_csv(scored.region_rows()))
    if groups := group_facts(rows, scored.metrics):
        _write(out / "group_scores.csv", table_csv(groups))


def _wanted(member: Member, metrics: Sequence[str] | None) -> Sequence[CaseMetric]:
    """Return the metrics of whole cases: those that are asked for, or those of the run."""
    if metrics is None:
        RunFolder(member.run).check_programs(member.network.config, ["metrics"])
        wanted = of_cases(member.network.config.metrics)
    else:
        check_case_metrics(metrics)
        wanted = case_metrics(metrics)
    check_library(wanted)
    load_own(wanted)
    return wanted


def _all_rows(
    cases: Cases, metrics: Sequence[CaseMetric], *, has_spacing: bool
) -> tuple[list[dict[str, Any]], np.ndarray]:
    """Return the rows of scores.csv, and the voxels of each true and each predicted label."""
    source, rows = cases.source, []
    has_groups = tuple(source.groups) != tuple(source.case_ids)
    confusion = np.zeros((source.num_classes,) * 2, np.int64)
    for at in now_and_then(range(len(cases.indices)), "Scored"):
        name, raw, labels = cases.read(at)
        try:
            pairs = count_pairs(raw.mask, labels, source.num_classes)
        except ValueError as error:
            raise ValueError(f"{cases.predictions[at]}: {error}. Remove the file.") from error
        index = cases.indices[at]
        objects = source.objects(index, raw.mask.shape) if of_objects(metrics) else None
        names = {"case": name} | ({"group": source.groups[index]} if has_groups else {})
        by_region = _rows(raw, labels, pairs, source, metrics, objects, has_spacing=has_spacing)
        rows += [{**names, **row} for row in by_region]
        confusion += pairs
    return rows, confusion


def _write(path: Path, text: str) -> None:
    with writing(path):
        write_atomic(path, text)


def _predicted(
    run: Path,
    source: DataSource,
    indices: Sequence[int],
    names: Sequence[str],
    cases: Sequence[RawCase],
    network: TrainedNetwork,
    out: Path,
    options: Options,
) -> list[Path]:
    """Predict the cases, those with the same pixel size together.

    Images that are made in code are written first.
    """
    prepared = network.preparation or {}
    by_size: dict[tuple[float, ...] | None, list[int]] = {}
    for at, raw in enumerate(cases):
        size = None
        if prepared.get("target_pixel_size") is not None and raw.spacing is not None:
            unit = prepared.get("unit", "")
            size = tuple(converted(length, source.unit, unit) for length in raw.spacing)
        by_size.setdefault(size, []).append(at)
    files: dict[int, Path] = {}
    for size, members in by_size.items():
        images = []
        for at in members:
            paths = [source.root / file for file in cases[at].image_files]
            if not paths:
                image, _ = source.read_case(indices[at])  # As training saw it.
                paths = [write_image(image, out / "images", names[at])]
            images.append(",".join(map(str, paths)))
        sized = replace(options, pixel_size=size) if size is not None else options
        made = predict(
            run,
            images,
            out / "predictions",
            sized,
            names=[names[at] for at in members],
            is_prepared=not any(cases[at].image_files for at in members),
        )
        files.update(zip(members, made, strict=True))
    return [files[at] for at in range(len(cases))]


def _rows(
    raw: RawCase,
    labels: np.ndarray,
    pairs: np.ndarray,
    source: DataSource,
    metrics: Sequence[CaseMetric],
    objects: np.ndarray | None,
    *,
    has_spacing: bool,
) -> list[dict[str, Any]]:
    rows = []
    by_region = region_counts(pairs, region_table(source.num_classes, source.regions)).astype(int)
    for (region, members), counts in zip(source.regions.items(), by_region, strict=True):
        predicted, truth = np.isin(labels, members), np.isin(raw.mask, members)
        values = measure(metrics, predicted, truth, raw.spacing if has_spacing else None, objects)
        rows.append(
            {
                "region": region,
                **dict(zip(COUNTS, counts.tolist(), strict=True)),
                **dict(zip((metric.name for metric in metrics), values, strict=True)),
                "dice": float(scores.dice(counts)),
                "iou": float(scores.iou(counts)),
            }
        )
    return rows


def draw_errors(scored: Scored, *, every: bool) -> None:
    """Draw the confusion matrix, and cases with their errors, every one or some."""
    if drawing() is None:
        print(NO_DRAWING)
        return
    names = (BACKGROUND, *scored.cases.source.label_names().values())
    write_confusion(scored.path.with_name("confusion.png"), names, scored.confusion)
    most = len(scored.cases.indices) if every else NUM_PICTURES
    scored.cases.draw(scored.rows, scored.path.parent / "errors", most=most)


def as_json(scored: Scored) -> str:
    """Return all scores as JSON; null where one is not defined."""
    return json_text(scored.rows, scored.metrics, scored.confusion)


def summary(scored: Scored) -> str:
    """Return the table for a terminal."""
    return lines_of(f"{scored.table()}\nScores: {scored.path}")
