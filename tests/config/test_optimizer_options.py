"""Options of optimizers of a wrong type are refused before TensorFlow is loaded."""

import inspect
import subprocess
import sys

import keras
import pytest

from tfunet.config import optimizer_options as known
from tfunet.config.run import RunConfig


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("momentum", "a", "a number, got 'a'"),
        ("momentum", True, "a number, got True"),
        ("clipnorm", [1], r"a number, got \[1\]"),
        ("weight_decay", {}, "a number, got {}"),
        ("weight_decay", float("nan"), "a number, got nan"),
        ("beta_1", None, "a number, got None"),
        ("epsilon", "1e-7", "a number, got '1e-7'"),
        ("global_clipnorm", "1.0", "a number"),
        ("ema_overwrite_frequency", 2.5, "a whole number, got 2.5"),
        ("ema_overwrite_frequency", float("inf"), "a whole number, got inf"),
        ("nesterov", "yes", "true or false, got 'yes'"),
        ("use_ema", [], r"true or false, got \[\]"),
        ("name", 3, "a text, got 3"),
    ],
)
def test_an_option_of_the_wrong_type_is_refused(name, value, allowed):
    with pytest.raises(ValueError, match=f"optimizer_options.{name} must be {allowed}"):
        RunConfig(optimizer="sgd", optimizer_options={name: value})


def test_what_keras_takes_is_taken():
    options = {"momentum": 1, "nesterov": 1, "clipnorm": None, "weight_decay": 1e-4, "name": "x"}
    assert RunConfig(optimizer="sgd", optimizer_options=options).optimizer_options == options
    # Of an optimizer of one's own, options may mean something else.
    RunConfig(optimizer="mine.py:Lookahead", optimizer_options={"momentum": "a", "clipnorm": [1]})
    RunConfig(optimizer="sgd", optimizer_options={"unknown": []})


def test_each_option_of_kerass_optimizers_has_a_type():
    # These two hold others.
    holders = (keras.optimizers.LossScaleOptimizer, getattr(keras.optimizers, "MultiOptimizer", 0))
    classes = [value for value in vars(keras.optimizers).values() if inspect.isclass(value)]
    kinds = {bool: known.FLAGS, float: known.NUMBERS, str: ("name",)}
    for kind in (one for one in classes if one not in holders):
        for name, parameter in inspect.signature(kind.__init__).parameters.items():
            default = parameter.default
            if type(default) in kinds and name != "learning_rate":
                assert name in kinds[type(default)], (kind, name)


def test_the_command_refuses_it_without_tensorflow():
    code = (
        "import sys\n"
        "from tfunet.cli import main\n"
        "code = main(['train', '--optimizer', 'sgd', '--optimizer_options.momentum', 'a'])\n"
        "assert 'tensorflow' not in sys.modules and 'keras' not in sys.modules\n"
        "sys.exit(code)\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
    )
    assert ended.returncode == 2, ended.stderr
    assert "error: optimizer_options.momentum must be a number, got 'a'" in ended.stderr
