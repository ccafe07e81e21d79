"""Options that all data sets of files have are read in one place."""

import pytest

from tfunet.data.source import open_source

# Each needs no file: options are looked at first.
NEEDED = {
    "folder": {"root": ".", "images": "{case}.png", "masks": "m/{case}.png"},
    "csv": {"file": "cases.csv"},
    "msd": {"root": "."},
    "nnunet": {"root": "."},
    "annotations": {"root": ".", "annotations": "coco.json"},
}


@pytest.mark.parametrize("data", NEEDED)
@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("grey", "no", r"data_options\.grey must be true or false, got the text 'no'"),
        ("patch", "64", r"data_options\.patch must be a list of whole numbers"),
        ("regions", {"all": 3}, r"data_options\.regions must be a table"),
        ("axes", "xyy", "axes='xyy'; allowed: y and x"),
        ("gray", True, r"has no option 'gray'\. Did you mean 'grey'\?"),
    ],
)
def test_a_wrong_option_is_refused_by_every_data_set_of_files(data, option, value, said):
    with pytest.raises(ValueError, match=said):
        open_source(data, {**NEEDED[data], option: value})
