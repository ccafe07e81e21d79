"""Scores the network that a run keeps, with Keras and NumPy alone."""

import json

import keras
import numpy as np

from tfunet.data.source import open_source
from tfunet.files.table import read_rows

COUNTS = ("true_positive", "false_positive", "false_negative")


def check_record(folder):
    """Compare what a run on cells says of its network with the network in its folder.

    Returns the mean Dice.
    """
    config = json.loads((folder / "config.json").read_text())
    source = open_source("cells", config["data_options"])
    split = json.loads((folder / "split.json").read_text())
    model = keras.saving.load_model(folder / "model.keras")
    rows = {row["case"]: row for row in read_rows(folder / "cases.csv")}
    assert sorted(rows) == sorted(split["validation"])
    dice = []
    with np.load(folder / "shown_cases.npz") as file:
        facts = json.loads(file["facts"].tobytes())
        shown = {case["case"]: file[f"labels-{at}-0"] for at, case in enumerate(facts["cases"])}
    for case, row in rows.items():
        image, mask = source.read(source.case_ids.index(case))
        labels = model.predict(image[None], verbose=0)[0].argmax(-1)
        true, predicted = mask == 1, labels == 1
        counts = [(true & predicted).sum(), (~true & predicted).sum(), (true & ~predicted).sum()]
        assert [int(row[name]) for name in COUNTS] == counts
        dice.append(2 * counts[0] / (2 * counts[0] + counts[1] + counts[2]))
        if case in shown:
            np.testing.assert_array_equal(shown.pop(case), labels)
    assert not shown
    result = json.loads((folder / "result.json").read_text())
    np.testing.assert_allclose(result["dice"]["cell"], np.mean(dice), rtol=1e-9)
    return np.mean(dice)
