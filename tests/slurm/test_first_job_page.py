"""The commands of docs/first-job.md do what it says."""

import re
import shlex
from pathlib import Path

import pytest
from paths import ROOT

from tfunet import exit_codes
from tfunet.cli import main

PAGE = (ROOT / "docs/first-job.md").read_text()


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)


def typed(block, capsys):
    said = []
    for line in block.splitlines():
        words = shlex.split(line, comments=True)
        assert words[0] == "tfunet"
        assert main(words[1:]) == exit_codes.OK, capsys.readouterr()
        said.append(capsys.readouterr().out)
    return said


@pytest.mark.slurm
@pytest.mark.slow
def test_one_training_is_one_job(on_cluster, capsys):
    for text in blocks("toml"):
        Path(re.match(r"# (\S+)", text)[1]).write_text(text)
    first, job = blocks("sh")
    typed(first, capsys)
    script, submitted, ended = typed(job, capsys)
    assert "srun --nodes=2 --ntasks=2" in script
    assert "echo modules" in script
    record = Path(re.search("^Record: (.*)$", submitted, re.MULTILINE)[1])
    assert (record / "result.json").is_file(), ended
    assert "Report: logs/first/report/report.html" in ended
    (again,) = typed(job.splitlines()[1], capsys)
    assert "0 of 1 trials to submit" in again
