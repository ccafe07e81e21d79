"""The names of options that are read from the source are those that the builders take."""

import inspect

import pytest

from tfunet.config.refs import resolve
from tfunet.models import MODELS
from tfunet.models.option_names import NOT_OPTIONS, PASSED_ON, check_option_names, option_names


@pytest.mark.parametrize("model", MODELS)
def test_names_are_those_that_the_builder_takes(model):
    expected = set()
    passes_on = False
    for place in (MODELS[model], PASSED_ON.get(model)):
        for name, value in inspect.signature(_function(place)).parameters.items() if place else ():
            is_named = value.kind is inspect.Parameter.KEYWORD_ONLY
            expected |= {name} if is_named else set()
            passes_on = passes_on or value.kind is inspect.Parameter.VAR_KEYWORD
    assert set(option_names(model)) == expected - set(NOT_OPTIONS)
    assert passes_on == (model in PASSED_ON)
    assert len(option_names(model)) > 5


def _function(place):
    return resolve("model", place, {})


def test_an_unknown_option_is_refused_with_the_near_match():
    check_option_names("cicek3d", {"dropout": 0.1, "filters": 8})
    with pytest.raises(ValueError, match=r"'cicek3d' has no option 'dropuot'\. Did you mean 'dr"):
        check_option_names("cicek3d", {"dropuot": 0.1})
    with pytest.raises(ValueError, match="epochs is a key of the run"):
        check_option_names("unet", {"epochs": 3})
