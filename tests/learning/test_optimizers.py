"""Optimizers by name, and options that they do not have."""

import pytest

from tfunet.config.run import RunConfig
from tfunet.learning import optimizers


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("adam", {"beta1": 0.8}, "'adam' cannot be made: .*beta1.*optimizer_options '{}'"),
        ("sgd", {"momentum": 2.0}, "'sgd' cannot be made: .*momentum"),
        ("Adm", {}, "Unknown optimizer 'Adm'. Known: adadelta"),
    ],
)
def test_what_makes_no_optimizer_is_refused(name, options, message):
    with pytest.raises(ValueError, match=message):
        optimizers.make(RunConfig(optimizer=name, optimizer_options=options), 1, 10)
