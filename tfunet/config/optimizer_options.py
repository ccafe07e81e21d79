"""Types of the options of Keras's optimizers, checked before Keras is loaded."""

import math
from collections.abc import Mapping
from typing import Any

FLAGS = ("nesterov", "amsgrad", "centered", "use_ema", "relative_step", "exclude_embeddings")
WHOLE = ("ema_overwrite_frequency", "gradient_accumulation_steps", "ns_steps", "warmup_steps")
# By all optimizers of Keras 3, or by those that have them.
NUMBERS = (
    *("weight_decay", "clipnorm", "clipvalue", "global_clipnorm", "ema_momentum"),
    *("loss_scale_factor", "momentum", "beta_1", "beta_2", "beta", "rho", "epsilon", "epsilon_1"),
    *("epsilon_2", "beta_2_decay", "clip_threshold", "initial_accumulator_value"),
    *("learning_rate_power", "l1_regularization_strength", "l2_regularization_strength"),
    *("l2_shrinkage_regularization_strength", "adam_beta_1", "adam_beta_2", "adam_weight_decay"),
    *("muon_a", "muon_b", "muon_c", "adam_lr_ratio", "rms_rate"),
)
# None and false mean that they are off. TOML can write only false.
MAY_BE_OFF = (
    *("weight_decay", "clipnorm", "clipvalue", "global_clipnorm", "ema_overwrite_frequency"),
    "gradient_accumulation_steps",
)
MAY_BE_NONE = (*MAY_BE_OFF, *FLAGS, "loss_scale_factor", "rms_rate", "name")
# Keras takes false for 0, which is off for these; a loss scale of 0 would train nothing.
MAY_BE_FALSE = (
    *(*MAY_BE_OFF, "momentum", "adam_weight_decay", "l1_regularization_strength"),
    *("l2_regularization_strength", "l2_shrinkage_regularization_strength"),
)


def check_optimizer_options(optimizer: str, options: Mapping[str, Any]) -> None:
    """Raise ValueError for an option of the wrong type; Keras says what it does not know.

    The options of an optimizer of a user's own may mean something else. Runs are checked when they
    start, and not in `RunConfig`: a record of a version that took more must be readable.
    """
    if ":" in optimizer:
        return
    for name, value in options.items():
        if (value is None and name in MAY_BE_NONE) or (value is False and name in MAY_BE_FALSE):
            continue
        allowed = _allowed(name, value)
        if allowed:
            raise ValueError(
                f"optimizer_options.{name} must be {allowed}, got {value!r:.80}. See the optimizer "
                f"{optimizer!r} at https://keras.io/api/optimizers."
            )


def _allowed(name: str, value: Any) -> str:
    """Return in words what an option may be; empty if it is that, or unknown here."""
    if name in NUMBERS:
        return "" if _is_number(value) else "a number"
    if name in WHOLE:
        return "" if _is_number(value) and float(value).is_integer() else "a whole number"
    if name in FLAGS:
        # Configurations may have 0 and 1, which Keras takes.
        return "" if isinstance(value, bool) or value in (0, 1) else "true or false"
    if name == "name":
        return "" if isinstance(value, str) else "a text"
    return ""


def _is_number(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return not math.isnan(value)
    except OverflowError:  # It has more than 308 digits.
        return False
