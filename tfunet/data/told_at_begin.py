"""What users should know of their settings when a run begins. Imports no TensorFlow."""

from collections.abc import Iterator, Sequence

from tfunet.config.run import RunConfig
from tfunet.data.class_weights import weights_line
from tfunet.data.source import DataSource
from tfunet.learning.region_labels import region_labels
from tfunet.models import MODELS


def told_at_begin(config: RunConfig, source: DataSource, weights: Sequence[float]) -> Iterator[str]:
    """Yield a line for each setting that may do something else than its user thinks.

    `weights` are those of the classes in the loss.
    """
    options = config.model_options
    encoder = options.get("encoder") if config.model in MODELS else None
    if encoder and not options.get("encoder_weights") and config.initial_weights is None:
        yield (
            f"The encoder {encoder} begins with random weights. For pretrained ones, give their "
            "file as model_options.encoder_weights."
        )
    if config.has_regions:
        yield _written(source)
    if weights:
        yield weights_line(config, source, weights)


def _written(source: DataSource) -> str:
    """Return which label each region is written as, and which labels are never written."""
    names, written = source.label_names(), region_labels(source.regions)
    line = ", ".join(f"{region} as {names[label]}" for region, label in written.items())
    never = [name for label, name in names.items() if label not in written.values()]
    rest = f" Never written, since no region tells it apart: {', '.join(never)}." if never else ""
    return f"Regions are written into masks in this order: {line}.{rest}"
