"""Compares the metrics of whole cases with MedPy, MONAI, panoptica and SimpleITK, on real masks.

Each region of each case of the three data sets of docs/example-data.md is compared with a copy of
it whose border was moved at random, of which parts were lost, and to which parts were added.

    python benchmarks/metric_peers.py

It needs the packages of benchmarks/requirements-metrics.txt, and takes two minutes of one core.
`--quick` compares every tenth case. It ends with code 1 if a metric differs: distances by
more than 1e-6 of their size, counts at all.
"""

import contextlib
import io
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import monai.metrics
import numpy as np
import panoptica
import SimpleITK
import torch
from measure import quick_option
from medpy.metric import binary
from scipy import ndimage

from tfunet.config.case_metrics import case_metrics
from tfunet.data.source import open_source
from tfunet.learning.case_metrics import measure

ROOT = Path(__file__).parents[1]
EXACT, CLOSE = 0.0, 1e-6
TOLERANCES = (1.0, 2.0)  # Normalised surface Dice's, in pixels.
SHARES = ("dice", "iou", "volume_difference", "lesion_precision", "lesion_recall")
DISTANCES = ("hd", "hd95", "assd", *(f"nsd@{tolerance:g}px" for tolerance in TOLERANCES))
OBJECTS = ("instance_precision", "instance_recall", "instance_f1", "panoptic_quality")


def pairs(step: int) -> Iterator[tuple[str, np.ndarray, np.ndarray, tuple[float, ...]]]:
    """Yield data set, predicted and true region, and pixel size, of every `step`-th case."""
    page = (ROOT / "docs/example-data.md").read_text()
    for text in re.findall(r"```toml\n(.*?)```", page, re.DOTALL):
        options = tomllib.loads(text).get("data_options", {})
        if "shared" not in str(options.get("root")):
            continue
        source = open_source("folder", options)
        for index in range(0, len(source.case_ids), step):
            _, mask = source.read_case(index)
            spacing = source.spacings[index] if source.spacings else None
            for number, labels in enumerate(source.regions.values()):
                truth = np.isin(mask, labels)
                predicted = changed(truth, np.random.default_rng([index, number]))
                yield source.name, predicted, truth, spacing or (1.0,) * truth.ndim


def changed(truth: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return a region with another border, with parts lost and parts added."""
    noise = ndimage.gaussian_filter(rng.normal(size=truth.shape), 2)
    moved = ndimage.gaussian_filter(truth.astype(float), 1.5) + 0.3 * noise / noise.std() > 0.5
    numbers, count = ndimage.label(moved)
    lost = rng.random(count + 1) < 0.1
    return moved & ~lost[numbers]


def peers(
    predicted: np.ndarray, truth: np.ndarray, spacing: tuple[float, ...]
) -> Iterator[tuple[str, str, float, float]]:
    """Yield metric, library, its value, and the relative difference that is allowed."""
    yield "dice", "MedPy", binary.dc(predicted, truth), 1e-12
    yield "iou", "MedPy", binary.jc(predicted, truth), 1e-12
    first, second = (as_tensor(region) for region in (predicted, truth))
    true_positive, false_positive, _, false_negative = monai.metrics.get_confusion_matrix(
        first, second
    )[0, 0].tolist()
    total = 2 * true_positive + false_positive + false_negative
    yield "dice", "MONAI", 2 * true_positive / total, EXACT
    volume = (false_positive - false_negative) * float(np.prod(spacing))
    yield "volume_difference", "MONAI", volume, 1e-12
    parts = [components(region) for region in (predicted, truth)]
    for name, part in zip(("lesion_precision", "lesion_recall"), parts, strict=True):
        touching = np.unique(part[predicted & truth])
        yield name, "SimpleITK", len(touching) / part.max(), EXACT
    yield from surfaces(predicted, truth, spacing)
    yield from objects(*parts)


def surfaces(
    predicted: np.ndarray, truth: np.ndarray, spacing: tuple[float, ...]
) -> Iterator[tuple[str, str, float, float]]:
    apart = vars(binary)["__surface_distances"]
    there, back = apart(predicted, truth, spacing), apart(truth, predicted, spacing)
    yield "hd", "MedPy", binary.hd(predicted, truth, spacing), CLOSE
    yield "hd95", "MedPy", max(np.percentile(there, 95), np.percentile(back, 95)), CLOSE
    yield "assd", "MedPy", np.concatenate([there, back]).mean(), CLOSE
    in_pixels = [*apart(predicted, truth), *apart(truth, predicted)]
    first, second = (as_tensor(region) for region in (predicted, truth))
    value = monai.metrics.compute_hausdorff_distance(
        first, second, include_background=True, spacing=spacing
    )
    yield "hd", "MONAI", float(value), CLOSE
    # Its distances: torch computes the place of a percentile in 32 bits, which is 2e-6 off.
    edges = monai.metrics.get_mask_edges(predicted, truth)
    there, back = (
        monai.metrics.get_surface_distance(*pair, spacing=spacing) for pair in (edges, edges[::-1])
    )
    percentiles = [np.percentile(np.asarray(side, np.float64), 95) for side in (there, back)]
    yield "hd95", "MONAI", max(percentiles), CLOSE
    value = monai.metrics.compute_average_surface_distance(
        first, second, include_background=True, symmetric=True, spacing=spacing
    )
    yield "assd", "MONAI", float(value), CLOSE
    for tolerance in TOLERANCES:
        name = f"nsd@{tolerance:g}px"
        yield name, "MedPy", float(np.mean(np.array(in_pixels) <= tolerance)), 1e-12
        value = monai.metrics.compute_surface_dice(
            first, second, [tolerance], include_background=True
        )
        yield name, "MONAI", float(value), CLOSE


def objects(predicted: np.ndarray, truth: np.ndarray) -> Iterator[tuple[str, str, float, float]]:
    evaluator = panoptica.Panoptica_Evaluator(
        expected_input=panoptica.InputType.UNMATCHED_INSTANCE,
        # It takes an IoU of exactly the limit, too.
        instance_matcher=panoptica.NaiveThresholdMatching(matching_threshold=0.5 + 1e-12),
    )
    with contextlib.redirect_stdout(io.StringIO()):
        result = evaluator.evaluate(predicted, truth, verbose=False)
    found = next(iter(result.values())) if isinstance(result, dict) else result
    yield "instance_precision", "panoptica", found.tp / found.n_pred_instances, EXACT
    yield "instance_recall", "panoptica", found.tp / found.n_ref_instances, EXACT
    yield "instance_f1", "panoptica", found.rq, 1e-12
    yield "panoptic_quality", "panoptica", found.pq if found.tp else 0.0, 1e-12


def components(region: np.ndarray) -> np.ndarray:
    """Return the number of each voxel's component; corners connect."""
    image = SimpleITK.GetImageFromArray(region.astype(np.uint8))
    return SimpleITK.GetArrayFromImage(SimpleITK.ConnectedComponent(image, True))


def as_tensor(region: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(region[np.newaxis, np.newaxis].astype(np.float32))


def main() -> int:
    step = 10 if quick_option(__doc__) else 1
    metrics = case_metrics((*SHARES, *DISTANCES, *OBJECTS))
    largest: dict[tuple[str, str], float] = {}
    counted: dict[str, int] = {}
    differing = 0
    for name, predicted, truth, spacing in pairs(step):
        if not predicted.any() or not truth.any():
            continue  # The libraries differ in what they give; docs/metrics.md has ours.
        values = measure(metrics, predicted, truth, spacing)
        ours = {metric.name: value for metric, value in zip(metrics, values, strict=True)}
        for metric, library, theirs, allowed in peers(predicted, truth, spacing):
            apart = (
                abs(ours[metric] - theirs) / max(abs(theirs), 1e-300) if theirs else ours[metric]
            )
            largest[metric, library] = max(largest.get((metric, library), 0.0), abs(apart))
            if not abs(apart) <= allowed:
                differing += 1
                print(f"{name}: {metric} is {ours[metric]!r}, of {library} {theirs!r}")
        counted[name] = counted.get(name, 0) + 1
    for (metric, library), apart in largest.items():
        print(f"{metric:18} {library:10} largest relative difference {apart:.1e}")
    regions = ", ".join(f"{count} of {name}" for name, count in counted.items())
    print(f"{sum(counted.values())} regions ({regions}); {differing} values differ.")
    return 1 if differing or not counted else 0


if __name__ == "__main__":
    sys.exit(main())
