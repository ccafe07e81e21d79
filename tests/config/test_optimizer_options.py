"""Options of optimizers of a wrong type are refused before TensorFlow is loaded."""

import inspect
import json
import subprocess
import sys

import keras
import pytest

from tfunet.arguments import check_names
from tfunet.config import optimizer_options as known
from tfunet.config.run import RunConfig, config_of_record


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
        # False is 0 to Keras: this is off for none of them.
        ("loss_scale_factor", False, "a number, got False"),
        ("rms_rate", False, "a number, got False"),
        ("epsilon", False, "a number, got False"),
        ("clipnorm", True, "a number, got True"),
        ("name", False, "a text, got False"),
        # No float can hold it.
        pytest.param("momentum", 10**400, "a number, got 1000", id="momentum-huge"),
        pytest.param("ns_steps", 10**400, "a whole number, got 1000", id="ns_steps-huge"),
    ],
)
def test_an_option_of_the_wrong_type_is_refused(name, value, allowed):
    config = RunConfig(optimizer="sgd", optimizer_options={name: value})
    with pytest.raises(ValueError, match=f"optimizer_options.{name} must be {allowed}"):
        check_names(config)
    # An earlier version may have trained with it.
    assert config_of_record({"optimizer": "sgd", "optimizer_options": {name: value}}) == config


def test_what_keras_takes_is_taken():
    options = {"momentum": 1, "nesterov": 1, "clipnorm": None, "weight_decay": 1e-4, "name": "x"}
    known.check_optimizer_options("sgd", options)
    # A user's own optimizer may give options another meaning.
    known.check_optimizer_options("mine.py:Lookahead", {"momentum": "a", "clipnorm": [1]})
    known.check_optimizer_options("sgd", {"unknown": []})


OFF = ("clipnorm", "global_clipnorm", "clipvalue", "weight_decay", "ema_overwrite_frequency")


@pytest.mark.parametrize("name", [*OFF, "gradient_accumulation_steps"])
@pytest.mark.parametrize("value", [None, False, 0])
def test_an_option_can_be_switched_off(name, value):
    config = RunConfig(optimizer="sgd", optimizer_options={name: value})
    check_names(config)
    assert config_of_record(json.loads(config.to_json())) == config
    # As it is, for Keras.
    assert config.optimizer_options[name] is value


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *((name, None) for name in known.FLAGS),
        *((name, None) for name in ("loss_scale_factor", "rms_rate", "name")),
        *((name, False) for name in ("momentum", "l2_regularization_strength")),
    ],
)
def test_other_words_for_off_are_taken(name, value):
    check_names(RunConfig(optimizer_options={name: value}))


def test_each_option_of_kerass_optimizers_has_a_type():
    # These two hold others.
    holders = (keras.optimizers.LossScaleOptimizer, getattr(keras.optimizers, "MultiOptimizer", 0))
    classes = [value for value in vars(keras.optimizers).values() if inspect.isclass(value)]
    kinds = {bool: known.FLAGS, float: known.NUMBERS, str: ("name",)}
    for kind in (candidate for candidate in classes if candidate not in holders):
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
