"""Names a trial's folder: what varies in the study, the repeat, and a hash of the configuration."""

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any

from tfunet.config.keys import show
from tfunet.config.run import RunConfig

MAX_SLUG = 80


def trial_name(settings: Mapping[str, Any], config: RunConfig, repeat: int) -> str:
    """Return the name of a trial's folder, such as "horovod-2r-r1-7a445a"."""
    slug = _slug(settings)
    digest = hashlib.sha256(f"{settings_text(config)}{config.seed}".encode()).hexdigest()
    # A slug that was cut no longer tells cells apart: the longer hash does.
    return f"{slug}-r{repeat}-{digest[: 12 if len(slug) == MAX_SLUG else 6]}"


def settings_text(config: RunConfig) -> str:
    """Return the same text for equal configurations, the seed left out."""
    values = {key: value for key, value in vars(config).items() if key != "seed"}
    return json.dumps(values, sort_keys=True, default=str)


def _slug(settings: Mapping[str, Any]) -> str:
    parts = [_part(key, value) for key, value in settings.items() if value is not None]
    return "-".join(part for part in parts if part)[:MAX_SLUG]


def _part(key: str, value: Any) -> str:
    if key == "backend":
        return _plain(str(value).rpartition(":")[2] or str(value))
    if key == "num_replicas":
        return f"{value}r"
    words = key.rpartition(".")[2].split("_")
    if isinstance(value, bool):
        return _plain("".join(words)) if value else ""
    if isinstance(value, (str, dict)):
        return _plain(str(value))
    # b4 is the batch of a replica, g8 the global batch.
    name = {"replica_batch": "b", "global_batch": "g"}.get(key, "".join(word[:1] for word in words))
    return name + _plain(show(value))


def _plain(text: str) -> str:
    return re.sub(r"[^a-z0-9.]+", "_", text.lower()).strip("_.")
