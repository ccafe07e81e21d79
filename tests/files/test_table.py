"""Tables that grow row by row, and are continued."""

import numpy as np
import pytest
from written import COLUMNS, row

from tfunet.files.table import Table, read_rows


def test_row_can_be_read_as_soon_as_it_is_appended(tmp_path):
    with Table(tmp_path / "steps.csv", COLUMNS) as table:
        assert (tmp_path / "steps.csv").read_text() == "step,seconds,loss\n"
        table.append({"loss": np.float32(0.1), "step": np.int64(1), "seconds": np.float64(0.1)})
        assert read_rows(tmp_path / "steps.csv") == [{"step": "1", "seconds": "0.1", "loss": "0.1"}]


def test_numbers_come_back_bit_for_bit(tmp_path):
    values = [1 / 3, 1e-300, float("inf"), 0.1 + 0.2]
    with Table(tmp_path / "steps.csv", COLUMNS) as table:
        for step, value in enumerate(values, 1):
            table.append({"step": step, "seconds": 0, "loss": value})
    assert [float(row["loss"]) for row in read_rows(tmp_path / "steps.csv")] == values


@pytest.mark.parametrize("last", [0, 1, 3, 9])
def test_resumed_table_keeps_the_rows_up_to_the_last_that_counts(tmp_path, last):
    path = tmp_path / "steps.csv"
    with Table(path, COLUMNS) as table:
        for step in range(1, 6):
            table.append(row(step))
    # The writer died in the middle of a row.
    with path.open("a") as file:
        file.write("6,0.")
    with Table(path, COLUMNS, last=last) as table:
        table.append(row(100))
    kept = [int(row["step"]) for row in read_rows(path)]
    assert kept == [*range(1, min(last, 5) + 1), 100]


def test_half_row_is_not_read(tmp_path):
    (tmp_path / "steps.csv").write_text("step,seconds,loss\n1,0.5,1.0\n2,0.5,0.2")
    assert [row["step"] for row in read_rows(tmp_path / "steps.csv")] == ["1"]


def test_absent_table_has_no_rows(tmp_path):
    assert read_rows(tmp_path / "steps.csv") == []


def test_table_of_other_columns_is_not_continued(tmp_path):
    path = tmp_path / "epochs.csv"
    Table(path, ("epoch", "loss")).close()
    with pytest.raises(ValueError, match=r"epochs\.csv has the columns epoch,loss, but this run"):
        Table(path, ("epoch", "dice_cell"), last=1)
    assert path.read_text() == "epoch,loss\n"


@pytest.mark.parametrize("wrong", [{"step": 1, "seconds": 1}, {**row(1), "extra": 1}])
def test_row_with_other_columns_is_refused(tmp_path, wrong):
    message = r"A row of steps\.csv needs step, seconds, loss; got"
    with Table(tmp_path / "steps.csv", COLUMNS) as table, pytest.raises(ValueError, match=message):
        table.append(wrong)
    assert read_rows(tmp_path / "steps.csv") == []
