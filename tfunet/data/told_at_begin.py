"""What users should know of their settings when a run begins. Imports no TensorFlow."""

from collections.abc import Iterator, Sequence

from tfunet.config.run import RunConfig
from tfunet.data.source import DataSource
from tfunet.learning import LOSSES
from tfunet.learning.region_labels import region_labels
from tfunet.models import MODELS


def told_at_begin(config: RunConfig, source: DataSource) -> Iterator[str]:
    """Yield a line for each setting that may do something else than its user thinks."""
    options = config.model_options
    encoder = options.get("encoder") if config.model in MODELS else None
    if encoder and not options.get("encoder_weights") and config.initial_weights is None:
        yield (
            f"The encoder {encoder} begins with random weights. For pretrained ones, give their "
            "file as model_options.encoder_weights."
        )
    if config.has_regions:
        yield _written(source)
    weights = _class_weights(config)
    if weights and not source.has_background:
        named = zip(_classes(source), weights, strict=True)
        yield f"class_weights: {', '.join(f'{name} {weight:g}' for name, weight in named)}."


def _written(source: DataSource) -> str:
    """Return which label each region is written as, and which labels are never written."""
    names, written = source.label_names(), region_labels(source.regions)
    line = ", ".join(f"{region} as {names[label]}" for region, label in written.items())
    never = [name for label, name in names.items() if label not in written.values()]
    rest = f" Never written, since no region tells it apart: {', '.join(never)}." if never else ""
    return f"Regions are written into masks in this order: {line}.{rest}"


def check_class_weights(config: RunConfig, source: DataSource) -> None:
    """Raise ValueError for a list of class weights that is not one for each class."""
    weights = _class_weights(config)
    if not weights or source.targets or len(weights) == source.num_classes:
        return
    raise ValueError(
        f"class_weights has {len(weights)} numbers, and there are {source.num_classes} classes, "
        f"with background. Give one for each, in this order: {', '.join(_classes(source))}."
    )


def _class_weights(config: RunConfig) -> Sequence[float]:
    return config.loss_options.get("class_weights", ()) if config.loss in LOSSES else ()


def _classes(source: DataSource) -> list[str]:
    empty = "" if source.has_background else " (no pixel has it)"
    return [f"0 background{empty}", *source.label_names().values()]
