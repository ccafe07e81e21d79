"""Checks many configurations, each distinct one once. Imports no TensorFlow."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast, final

from tfunet.config.run import RunConfig


def first_reasons(
    configs: Mapping[str, RunConfig], checks: Iterable[Callable[[RunConfig], None]]
) -> dict[str, str]:
    """Return the first reason of each configuration that a check refuses, by its name."""
    made = [OnceForEach(check) for check in checks]
    reasons = {}
    for name, config in configs.items():
        reason = next(filter(None, (check.reason(config) for check in made)), None)
        if reason is not None:
            reasons[name] = reason
    return reasons


@final
@dataclass(frozen=True)
class OnceForEach:
    """A check of a configuration, which is not made again for one that is equal in all that the
    check looks at.
    """

    check: Callable[[RunConfig], None]
    # Keys that were looked at: their values to the reason, or None.
    _known: dict[tuple[str, ...], dict[str, str | None]] = field(default_factory=dict)

    def reason(self, config: RunConfig) -> str | None:
        """Return why the configuration is refused; None if it is not."""
        for keys, reasons in self._known.items():
            values = _values(config, keys)
            if values in reasons:
                return reasons[values]
        looked = _Looked(config)
        reason = None
        try:
            self.check(cast("RunConfig", looked))
        except (ValueError, OSError) as error:
            reason = str(error)
        keys = tuple(looked.keys)
        self._known.setdefault(keys, {})[_values(config, keys)] = reason
        return reason


def _values(config: RunConfig, keys: Iterable[str]) -> str:
    return repr([getattr(config, key) for key in keys])


@final
class _Looked:
    """A configuration that remembers what of it was looked at."""

    __slots__ = ("_config", "keys")  # So that vars(), which would remember nothing, fails.

    def __init__(self, config: RunConfig) -> None:
        self._config = config
        self.keys: dict[str, None] = {}

    def __getattr__(self, key: str) -> Any:
        self.keys[key] = None
        return getattr(self._config, key)
