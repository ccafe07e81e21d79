"""Compares the scores of configurations: models, losses and other settings of training. Pure but
for reading cases.csv.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tfunet.bench.analysis.case_dice import truth_by_case
from tfunet.bench.analysis.case_metric_means import metric_names
from tfunet.bench.analysis.configuration_scores import (
    DATASET_IOU,
    SPEED,
    Score,
    judged,
    main_score,
    mean_by_repeat,
    mode_of_score,
    rank_key,
    scores_of_cells,
    values_by_repeat,
)
from tfunet.bench.analysis.study_cell import Cell
from tfunet.bench.analysis.sweep_summary import Family, differing_keys
from tfunet.config.keys import MAY_CHANGE, WAY, describe, flat, show

# Settings that change neither the network nor its training; ways of training have a name of their
# own.
NEUTRAL = frozenset((*MAY_CHANGE, *WAY, "swap", "metrics", "seed", "fold"))
# Settings that change no score, and whose speed a study may compare.
OF_SPEED = ("swap", "swap_host", "swap_disk", "cpu_memory", "gpu_memory", "cores_per_replica")


@dataclass(frozen=True, kw_only=True)
class Configuration:
    """The runs of one configuration.

    Args:
        settings: Where it differs from the others; none if only the way of training does.
        scores: First the one by which it is ranked.
    """

    settings: Mapping[str, Any]
    cell: Cell
    scores: tuple[Score, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Ranking:
    """Two or more configurations that were validated on the same masks, the best first.

    Args:
        shared: Settings that tell them from the configurations of other rankings.
        label: Way and number of replicas of all of them; empty if they differ in these.
        num_cases: Validation cases of the best.
        setting: What varies, where all else is equal; empty for whole configurations.
    """

    shared: Mapping[str, Any]
    configurations: tuple[Configuration, ...]
    label: str
    num_cases: int
    setting: str = ""

    def name_of(self, configuration: Configuration) -> str:
        """Return a configuration in words."""
        settings = configuration.settings.get("run") or describe(configuration.settings)
        if self.label:
            return settings
        return " with ".join(filter(None, (configuration.cell.label, settings)))


def rankings(families: Sequence[Family]) -> tuple[tuple[Ranking, ...], bool]:
    """Return the rankings of the configurations of a report, and whether there are several
    configurations at all.

    Where every family has a cell of one way and number of replicas, these cells are compared: the
    first such cells, which are those of the baseline. A tournament compares its populations itself.
    """
    chosen = list(_chosen(families))
    settings = _differing([_settings(family, cell) for family, cell in chosen])
    labels = {cell.label for _, cell in chosen}
    groups: list[tuple[dict[int, Any], list[Configuration]]] = []
    for (_, cell), its in zip(chosen, settings, strict=True):
        masks = {trial.repeat: truth_by_case(trial.folder) for trial in cell.done}
        alike = (members for other, members in groups if _have_same_masks(masks, other))
        members = next(alike, None)
        if members is None:
            groups.append((masks, members := []))
        members.append(Configuration(settings=its, cell=cell))
    found = [
        _rank(masks, members, next(iter(labels)) if len(labels) == 1 else "")
        for masks, members in groups
        if len(members) > 1
    ]
    return tuple(found), len(chosen) > 1


def by_setting(ranking: Ranking) -> list[Ranking]:
    """Return a ranking of the values of each setting, where several vary.

    A value has the mean over the configurations that occur with all values of the setting.
    """
    configurations = ranking.configurations
    main = configurations[0].scores[0]
    found: list[tuple[str, list[tuple[Configuration, dict[int, float]]]]] = []
    together = changing_together([each.settings for each in configurations])
    for keys in together if len(together) > 1 else ():
        blocks: dict[str, dict[str, Configuration]] = {}
        for each in configurations:
            own = {key: value for key, value in each.settings.items() if key in keys}
            rest = {key: value for key, value in each.settings.items() if key not in keys}
            block = blocks.setdefault(f"{each.cell.label} {describe(rest)}", {})
            block[describe(own)] = replace(each, settings=own)
        values = dict.fromkeys(value for block in blocks.values() for value in block)
        complete = [block for block in blocks.values() if len(block) == len(values)]
        if complete:
            levels = [
                (
                    complete[0][value],
                    mean_by_repeat(
                        [
                            values_by_repeat(block[value].cell, main.metric, main.region)
                            for block in complete
                        ]
                    ),
                )
                for value in values
            ]
            if all(repeats for _, repeats in levels):
                levels.sort(key=lambda level: rank_key(main.mode, level[1]))
                found.append((" and ".join(keys), levels))
    compared = judged([[repeats for _, repeats in levels] for _, levels in found])
    return [
        Ranking(
            shared=ranking.shared,
            configurations=tuple(
                replace(
                    each,
                    scores=(
                        replace(score, metric=main.metric, region=main.region, mode=main.mode),
                    ),
                )
                for (each, _), score in zip(levels, scores, strict=True)
                if score is not None
            ),
            label=ranking.label or "all",
            num_cases=ranking.num_cases,
            setting=setting,
        )
        for (setting, levels), scores in zip(found, compared, strict=True)
    ]


def speed_ranking(families: Sequence[Family]) -> Ranking | None:
    """Return a ranking by speed of the settings that change no score; None if none varies."""
    groups: dict[str, tuple[dict[str, Any], dict[str, Configuration]]] = {}
    for family in families if not any(family.runs for family in families) else ():
        own = {k: v for k, v in family.settings.items() if k.partition(".")[0] in OF_SPEED}
        rest = {k: v for k, v in family.settings.items() if k not in own}
        for cell in family.cells:
            if cell.results:
                _, group = groups.setdefault(f"{cell.label} {describe(rest)}", (rest, {}))
                group.setdefault(describe(own), Configuration(settings=own, cell=cell))
    # The first in which most of them vary, all else equal.
    shared, chosen = max(groups.values(), key=lambda group: len(group[1]), default=({}, {}))
    if len(chosen) < 2:
        return None
    members = sorted(chosen.values(), key=lambda each: rank_key("max", each.cell.speeds))
    (scores,) = judged([[each.cell.speeds for each in members]])
    return Ranking(
        shared=shared,
        configurations=tuple(
            replace(each, scores=(replace(score, metric=SPEED),))
            for each, score in zip(members, scores, strict=True)
            if score is not None
        ),
        label="all",
        num_cases=0,
    )


def changing_together(rows: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """Return the keys of settings; those that change together, such as both batches, are one."""
    keys: dict[tuple[int, ...], list[str]] = {}
    for key in rows[0] if rows else ():
        shown = [show(row.get(key)) for row in rows]
        keys.setdefault(tuple(map(shown.index, shown)), []).append(key)
    return list(keys.values())


def _chosen(families: Sequence[Family]) -> Iterator[tuple[Family, Cell]]:
    """Yield one cell of each configuration that has a score, if this can be, of the same label."""
    scored = {
        number: cells
        for number, family in enumerate(families)
        if (cells := [cell for cell in family.cells if cell.main_score is not None or cell.targets])
        and not any(trial.config.tournament for cell in cells for trial in cell.trials)
    }
    labels = [[cell.label for cell in cells] for cells in scored.values()]
    common = [label for label in labels[0] if all(label in its for its in labels)] if labels else []
    seen = set()
    for number, cells in scored.items():
        for cell in cells:
            if len(scored) > 1 and common and cell.label != common[0]:
                continue
            # Settings that change no score make no configuration, nor does a second family.
            key = (cell.label, repr(_settings(families[number], cell)))
            if key not in seen:
                seen.add(key)
                yield families[number], cell


def _settings(family: Family, cell: Cell) -> dict[str, Any]:
    settings = flat(vars(cell.trials[0].config))
    kept = {k: value for k, value in settings.items() if k.partition(".")[0] not in NEUTRAL}
    return {"run": family.title, **kept} if family.runs else kept


def _differing(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return of each row what is not the same in all; of runs that no study planned, the names."""
    keys = differing_keys(rows)
    keys = ["run"] if "run" in keys else keys
    return [{key: row.get(key) for key in keys} for row in rows]


def _have_same_masks(one: Mapping[int, Any], other: Mapping[int, Any]) -> bool:
    common = one.keys() & other.keys()
    return bool(common) and all(one[repeat] == other[repeat] for repeat in common)


def _rank(
    masks: Mapping[int, Mapping[str, Any]], members: Sequence[Configuration], label: str
) -> Ranking:
    of_arrays = members[0].cell.scores
    regions = members[0].cell.regions or members[0].cell.targets or ("",)
    main = first, _ = main_score([each.cell for each in members])
    mode = mode_of_score(first, [each.cell for each in members])
    members = sorted(members, key=lambda each: rank_key(mode, values_by_repeat(each.cell, *main)))
    # In what all agree is said once, above them.
    own = _differing([each.settings for each in members])
    metrics = dict.fromkeys(
        name for each in members for trial in each.cell.done for name in metric_names(trial.folder)
    )
    others = [
        (metric, region)
        for metric in dict.fromkeys(
            (first, *of_arrays, *(("Dice",) if first == DATASET_IOU else ()), *metrics)
        )
        for region in regions
        if (metric, region) != main
    ]
    scores: list[list[Score]] = [[] for _ in members]
    # That by which they are ranked, and all else, answer different questions.
    for questions in ([main], others):
        for several, row in zip(
            scores_of_cells([m.cell for m in members], questions), scores, strict=True
        ):
            row += several
    return Ranking(
        shared={k: v for k, v in members[0].settings.items() if k not in own[0]},
        configurations=tuple(
            Configuration(settings=settings, cell=each.cell, scores=tuple(row))
            for settings, each, row in zip(own, members, scores, strict=True)
        ),
        label=label,
        num_cases=len({case for truth in masks.values() for case in truth}),
    )
