"""What users should know of their settings when a run begins. Imports no TensorFlow."""

from collections.abc import Iterator, Sequence

from tfunet.config.run import RunConfig
from tfunet.data.class_weights import weights_line
from tfunet.data.source import DataSource
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
    if weights:
        yield weights_line(config, source, weights)
