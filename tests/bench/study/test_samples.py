"""Samples beside grid and case: from files, and drawn from a space."""

import numpy as np
import pytest

from tfunet import exit_codes
from tfunet.bench.study.study_file import read_study, study_from_dict
from tfunet.bench.study.toml_writer import study_toml
from tfunet.bench.study.trial_plan import plan_trials
from tfunet.cli import main

SPACE = {
    "learning_rate": {"low": 1e-4, "high": 1e-1, "log": True},
    "replica_batch": {"low": 2, "high": 5},
    "model_options": {"filters": [4, 8]},
}


def drawn(method="random", **changes):
    return {"method": method, "number": 16, "seed": 3, "space": SPACE, **changes}


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def samples_of(text, name="designs.csv"):
    with open(name, "w", encoding="utf-8") as file:
        file.write(text)
    return study_from_dict({"samples": {"file": name}}).samples.rows


def test_a_row_of_a_file_is_a_cell_with_each_case_and_value_of_the_grid(folder):
    (folder / "designs.csv").write_text("learning_rate,model_options.filters\n1e-3,4\n0.1,8\n")
    (folder / "mine.toml").write_text(
        'repeats = 2\n[samples]\nfile = "designs.csv"\n[grid]\nxla = [true, false]\n'
        '[[case]]\nprecision = "float32"\n[[case]]\nprecision = "mixed_bfloat16"\n'
    )
    plan = plan_trials(read_study("mine.toml"), num_cores=2)
    assert len(plan.trials) == 2 * 2 * 2 * 2
    pairs = {
        (trial.config.learning_rate, trial.config.model_options["filters"]) for trial in plan.trials
    }
    assert pairs == {(1e-3, 4), (0.1, 8)}
    assert {trial.config.seed for trial in plan.trials} == {0, 1}
    assert len({trial.id for trial in plan.trials}) == 16


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        # As NumPy writes whole numbers, and as a spreadsheet begins a file.
        ("replica_batch\n8.000e+00\n4.000e+00\n", [8, 4]),
        ("\ufeffreplica_batch\n8\n\n4\n", [8, 4]),
        ('patch\n"[8, 16]"\n"[16, 16]"\n', [(8, 16), (16, 16)]),
        ("xla\ntrue\nFalse\n", [True, False]),
        ("precision\nfloat32\nmixed_bfloat16\n", ["float32", "mixed_bfloat16"]),
        ("learning_rate\n1\n0.5\n", [1.0, 0.5]),
    ],
)
def test_a_column_has_the_type_of_its_setting(text, rows):
    samples = samples_of(text)
    values = [value for row in samples for value in row.values()]
    assert values == rows
    assert [type(value) for value in values] == [type(value) for value in rows]


def test_arrays_have_the_samples_of_their_csv_file():
    text = "learning_rate,replica_batch\n0.5,2\n0.25,4\n"
    np.save("plain.npy", [[0.5, 2], [0.25, 4]])
    named = np.array([(0.5, 2), (0.25, 4)], [("learning_rate", "f8"), ("replica_batch", "i8")])
    np.save("named.npy", named)
    wanted = samples_of(text)
    for table in (
        {"file": "plain.npy", "columns": ["learning_rate", "replica_batch"]},
        {"file": "named.npy"},
    ):
        assert study_from_dict({"samples": table}).samples.rows == wanted


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("learning_rat\n1\n", "Unknown key 'learning_rat' in designs.csv, line 2. Did you mean"),
        ("dropout\n0.1\n", "Unknown key 'dropout' in designs.csv"),
        ("learning_rate\n0.1\n0.2\n\n0.10\n", "line 2 and line 5 are the same sample"),
        # The same after conversion.
        ("learning_rate\n1\n0.5\n1.0\n", "line 2 and line 4 are the same sample"),
        ("", "designs.csv is empty"),
        ("\n", "designs.csv is empty"),
        ("learning_rate\n", "designs.csv has no samples"),
        ("learning_rate\n0.1\nnan\n", "line 3: learning_rate is nan"),
        ("learning_rate\n0.1\n-inf\n", "line 3: learning_rate is -inf"),
        ("learning_rate\n0.1\nfast\n", "learning_rate in designs.csv, line 3: .*fast"),
        ("learning_rate\n0.1\n-1\n", "learning_rate in designs.csv, line 3: .*-1"),
        ("replica_batch\n2\n2.5\n", "replica_batch in designs.csv, line 3: .*2.5"),
        ("replica_batch,xla\n2,true\n,true\n", "line 3: replica_batch is empty"),
        ("xla\nyes\n", "xla in designs.csv, line 2"),
        ("learning_rate;xla\n0.1;true\n", "Unknown key 'learning_rate;xla'"),
        ("learning_rate,xla\n0.1\n", "line 2: 1 values, but the first line names 2 settings"),
        ("learning_rate,learning_rate\n0.1,0.1\n", "two columns 'learning_rate'"),
        ("learning_rate,\n0.1,0.1\n", "a column without a name"),
        ('patch\n"[8, "\n', "line 2: patch is no TOML value"),
        ("seed\n1\n2\n", "Leave seed out of designs.csv: `repeats = n`"),
        ("elastic\ntrue\n", "elastic cannot be set in a study"),
        ('learning_rate\n"0.1\n', "designs.csv, line 2: unexpected end of data"),
    ],
)
def test_a_wrong_file_is_refused_with_its_line(folder, capsys, text, message):
    (folder / "designs.csv").write_text(text)
    (folder / "mine.toml").write_text('[samples]\nfile = "designs.csv"\n')
    assert main(["sweep", "plan", "mine.toml"]) == exit_codes.BAD_INPUT
    with pytest.raises(ValueError, match=message):
        read_study("mine.toml")
    assert "error: " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("array", "columns", "message"),
    [
        (np.zeros((2, 2)), None, "does not name its columns"),
        (np.zeros((2, 2)), ["learning_rate"], r"has the shape \(2, 2\); expected: \(samples, 1\)"),
        (np.zeros(2), ["learning_rate"], "has the shape"),
        (np.zeros((0, 1)), ["learning_rate"], "has no samples"),
        (np.full((1, 1), np.nan), ["learning_rate"], "sample 1: learning_rate is nan"),
        (np.full((2, 1), 0.5), ["learning_rate"], "sample 1 and sample 2 are the same sample"),
        (np.zeros((1, 1), complex), ["learning_rate"], "has the type complex128"),
        (np.array([[None]]), ["learning_rate"], "that NumPy can read: .*objects"),
        (np.full((1, 1), 0.5), ["dropout"], "Unknown key 'dropout' in designs.npy, sample 1"),
        (np.zeros(1, [("xla", "f8")]), ["xla"], "names its columns itself"),
        (np.zeros(1, [("patch", "i8", 2)]), None, "has the type"),
    ],
)
def test_a_wrong_array_is_refused(array, columns, message):
    np.save("designs.npy", array)
    table = {"file": "designs.npy"} | ({"columns": columns} if columns else {})
    with pytest.raises(ValueError, match=message):
        study_from_dict({"samples": table})


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"file": "none.csv"}, "There is no file of samples 'none.csv'"),
        ({"file": "designs.txt"}, "path of a .csv or .npy file, got 'designs.txt'"),
        ({"file": 3}, "path of a .csv or .npy file, got 3"),
        ({"files": "a.csv"}, r"Unknown key 'files' in \[samples\]"),
        ({"file": "a.csv", "number": 3}, "Unknown key 'number'"),
        ({}, "method in .* must be one of grid, random"),
        (drawn("sobl"), "must be one of .*sobol, got 'sobl'"),
        (drawn(number=0), "1 to 100000 samples, got 0"),
        (drawn(number=2.5), "number in .* must be a whole number, got 2.5"),
        (drawn(number=10**7), "1 to 100000 samples, got 10000000"),
        (drawn(seed="a"), "seed in .* must be a whole number"),
        (drawn(space={}), "must say what varies"),
        (drawn(space={"learning_rat": [1.0]}), "Unknown key 'learning_rat'"),
        (drawn(space={"learning_rate": 3}), "a list of values, or a range"),
        (drawn(space={"learning_rate": {"low": 1}}), "has no high"),
        (drawn(space={"learning_rate": {"low": 1, "hi": 2}}), "Unknown key 'hi'.*mean 'high'"),
        (drawn(space={"learning_rate": {"low": 2, "high": 1}}), "must be below high, got 2 and 1"),
        (drawn(space={"learning_rate": {"low": 0, "high": 1, "log": True}}), "above 0 on a log"),
        (drawn(space={"learning_rate": {"low": "a", "high": 1}}), "low in .* must be a number"),
        (
            drawn(space={"replica_batch": [1, 2]}),
            "sample . and sample . are the same sample. Widen",
        ),
        ({"method": "grid", "space": {"learning_rate": {"low": 0.1, "high": 1}}}, "points = 5"),
        (drawn("grid"), "leave out number, seed"),
        (drawn(columns=["xla"]), "Unknown key 'columns'"),
    ],
)
def test_a_wrong_table_is_refused(table, message):
    with pytest.raises(ValueError, match=message):
        study_from_dict({"samples": table})


@pytest.mark.parametrize("place", ["base", "grid", "case"])
def test_a_setting_is_given_once(place):
    value = {"base": {"xla": True}, "grid": {"xla": [True]}, "case": [{"xla": True}]}[place]
    with pytest.raises(ValueError, match=r"xla is in \[samples\] and in \[+" + place):
        study_from_dict(
            {place: value, "samples": {"method": "grid", "space": {"xla": [True, False]}}}
        )


def test_samples_count_among_the_trials():
    with pytest.raises(ValueError, match="has 320000 trials"):
        study_from_dict({"samples": drawn(), "repeats": 20000})


@pytest.mark.parametrize("method", ["random", "latin_hypercube", "sobol"])
def test_samples_are_drawn_from_the_whole_space_and_follow_from_the_seed(method):
    rows = study_from_dict({"samples": drawn(method, number=64)}).samples.rows
    rates = sorted(row["learning_rate"] for row in rows)
    assert 1e-4 <= rates[0] < 2e-4
    assert 5e-2 < rates[-1] <= 1e-1
    # On a log scale, two thirds are below 1e-2.
    assert 30 < sum(rate < 1e-2 for rate in rates) < 50
    assert {row["replica_batch"] for row in rows} == {2, 3, 4, 5}
    assert {row["model_options.filters"] for row in rows} == {4, 8}
    assert rows == study_from_dict({"samples": drawn(method, number=64)}).samples.rows
    assert rows != study_from_dict({"samples": drawn(method, number=64, seed=4)}).samples.rows


def test_a_latin_hypercube_has_one_sample_in_each_slice():
    space = {"learning_rate": {"low": 0.0, "high": 1.0}, "momentum": {"low": 0.0, "high": 0.9}}
    space = {"learning_rate": space["learning_rate"], "warmup_epochs": {"low": 0.0, "high": 2.0}}
    rows = study_from_dict({"samples": drawn("latin_hypercube", space=space)}).samples.rows
    for key, high in (("learning_rate", 1.0), ("warmup_epochs", 2.0)):
        assert sorted(int(row[key] / high * 16) for row in rows) == list(range(16))


def test_a_grid_has_all_combinations():
    space = {
        "learning_rate": {"low": 1e-3, "high": 1e-1, "log": True, "points": 3},
        "replica_batch": {"low": 2, "high": 8, "step": 3},
        "warmup_epochs": {"low": 0.0, "high": 0.3, "step": 0.1},
    }
    rows = study_from_dict({"samples": {"method": "grid", "space": space}}).samples.rows
    assert len(rows) == 3 * 3 * 4
    assert sorted({row["learning_rate"] for row in rows}) == pytest.approx([1e-3, 1e-2, 1e-1])
    assert {row["replica_batch"] for row in rows} == {2, 5, 8}


def test_sobols_points_of_another_number_than_a_power_of_two_have_a_note():
    assert plan_trials(study_from_dict({"samples": drawn("sobol")}), 2).notes == ()
    (note,) = plan_trials(study_from_dict({"samples": drawn("sobol", number=20)}), 2).notes
    assert "20 are not; 16 or 32 are" in note


def test_without_scipy_one_line_says_what_to_install(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "scipy.stats", None)
    with pytest.raises(ValueError, match=r"needs scipy.*pip install 'tfunet\[ensembles\]'"):
        study_from_dict({"samples": drawn("sobol")})


def test_a_study_with_samples_can_be_written_and_read(folder):
    study = study_from_dict({"name": "mine", "samples": drawn("sobol", space=SPACE)})
    (folder / "mine.toml").write_text(study_toml(study))
    assert read_study("mine.toml") == study


def test_programs_in_samples_are_those_of_the_study(folder):
    from tfunet.bench.study.study_file import programs_of

    (folder / "a.csv").write_text("model\nnet.py:build\nnet.py:other\nunet\n")
    study = study_from_dict({"samples": {"file": "a.csv"}})
    assert programs_of(study) == ["net.py:build", "net.py:other"]
