"""The table of docs/choosing.md: what a step needs after each thing to try."""

import json
import re
import shlex

import pytest
from paths import ROOT

from tfunet import cli, exit_codes

PAGE = (ROOT / "docs" / "choosing.md").read_text()
MIB = 2**20
CONFIG = re.search(r"^```toml\n# choose.toml\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)[1]
# What is tried, the options of `swap plan`, and the MiB that a step needs.
ROWS = re.findall(
    r"^\| (as it is|\d\. [^|]+) \|(?: `([^`]*)`)? \| ([\d,]+) MiB \|", PAGE, re.MULTILINE
)


def test_the_table_has_its_rows():
    assert [row[0].partition(".")[0] for row in ROWS] == ["as it is", "1", "2", "3", "4"]


# The others take the same code: each costs seconds.
@pytest.mark.parametrize(("what", "options", "mib"), [ROWS[0], ROWS[2], ROWS[4]])
def test_a_step_needs_what_the_page_says(what, options, mib, tmp_path, capsys):
    run = tmp_path / "choose.toml"
    run.write_text(CONFIG)
    command = ["swap", "plan", str(run), "--device", "v100-pcie3", "--json"]
    assert cli.main([*command, *shlex.split(options)]) == exit_codes.OK
    forecast = json.loads(capsys.readouterr().out)
    wanted = float(mib.replace(",", ""))
    if "--memory" in options:
        # A better planner may find another plan.
        assert (forecast["fits"], forecast["fits_without"]) == (True, False)
        assert forecast["plan"]["peak_bytes"] <= 512 * MIB
        assert forecast["plan"]["peak_bytes"] / MIB == pytest.approx(wanted, rel=0.1)
    else:
        assert forecast["plan"]["unlimited_peak_bytes"] / MIB == pytest.approx(wanted, rel=0.01)
