"""The examples of a page of docs/, as files and commands."""

import re
import shlex

from paths import ROOT

from tfunet import exit_codes
from tfunet.cli import main


def blocks(page, language):
    return re.findall(rf"^```{language}\n(.*?)^```", page, re.DOTALL | re.MULTILINE)


def put_example(page, folder, monkeypatch):
    """Write the files that a page names in their first lines, and go to their folder."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("TFUNET_CACHE", str(folder / "cache"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT), prepend=":")
    for block in [*blocks(page, "python"), *blocks(page, "toml")]:
        (folder / re.match(r"# (\S+)\n", block)[1]).write_text(block)


def run_commands(page):
    """Run the commands of a page here, rather than in processes that take a second each."""
    for line in "".join(blocks(page, "sh")).splitlines():
        assert main(shlex.split(line)[1:]) == exit_codes.OK, line
