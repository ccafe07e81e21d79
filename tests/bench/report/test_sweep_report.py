import csv
import html
import html.parser
import json
import re
import shutil
import subprocess
import sys

import browser
import numpy as np
import pytest
from synthetic_sweep import STUDY, make_study, write_sweep, write_trial

from tfunet.bench.analysis.sweep_summary import summarise
from tfunet.bench.records.run_tables import COUNTS, read_cases, read_confusion
from tfunet.bench.records.sweep_record import read_sweep
from tfunet.bench.report.answer import answer
from tfunet.bench.report.number_text import csv_text, markdown_list, markdown_text, plain_text
from tfunet.bench.report.sweep_report import summary_json, summary_table, write_report
from tfunet.bench.report.terms import explained
from tfunet.learning.confusion import CONFUSION, confusion_csv
from tfunet.record import RunFolder

GRID = {"backend": ["single", "mirrored", "horovod"], "num_replicas": [1, 2]}
REASON = 'killed by SIGKILL | <script>alert("x")</script>'


@pytest.fixture(scope="module")
def sweep(tmp_path_factory):
    folder = tmp_path_factory.mktemp("logs") / "a sweep"
    trials = write_sweep(folder, make_study(repeats=3, grid=GRID))
    failed = next(trial for trial in trials if trial.id.startswith("horovod-2r-r2"))
    (folder / failed.id / "result.json").unlink()
    RunFolder(folder / failed.id).write_failure(REASON, 3)
    unlike = next(trial for trial in trials if trial.id.startswith("mirrored-2r-r2"))
    write_trial(folder, unlike, images_per_second=987654.0, checks={"weights": False})
    return folder, failed.id, unlike.id


@pytest.fixture(scope="module")
def report(sweep):
    return write_report(sweep[0])


class Page(html.parser.HTMLParser):
    """Collects links and checks that elements are closed in order."""

    VOID = ("meta", "link", "br", "img", "use")

    def __init__(self, text):
        super().__init__()
        self.open = []
        self.links = []
        self.tags = []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.links += [value for name, value in attributes if name in ("href", "src")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        if tag not in self.VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        if tag not in self.VOID:
            assert self.open.pop() == tag


def test_the_page_is_whole_and_asks_nobody_for_anything(report):
    text = report.html.read_text()
    page = Page(text)
    assert page.open == []
    assert page.tags.count("script") == 1
    outside = [link for link in page.links if re.match(r"\w+:", link)]
    assert set(outside) == {"data:,"}
    assert "@import" not in text
    assert "http" not in re.sub(r'xmlns(:\w+)?="[^"]*"', "", text)
    assert page.tags.count("svg") == len(report.figures) == 8


def test_a_browser_shows_every_figure_and_asks_nobody_for_anything(report, tmp_path):
    browser.shows_all(report, tmp_path)


def test_every_mark_of_a_figure_leads_to_the_row_of_its_trial(sweep, report):
    page = report.html.read_text()
    folder, failed, unlike = sweep
    figures = dict(re.findall(r'<figure id="(\w+)">(.*?)</figure>', page, re.DOTALL))
    done = {trial.id for trial in read_sweep(folder).trials} - {failed, unlike}
    for name in ("scaling", "throughput", "scores", "memory"):
        assert set(re.findall(r'xlink:href="#trial-([^"]+)"', figures[name])) == done, name
    assert all(f'<tr id="trial-{trial_id}"' in page for trial_id in (*done, failed, unlike))


def test_rows_link_to_their_records(sweep, report):
    links = [link for link in Page(report.html.read_text()).links if link.startswith("..")]
    assert len(links) == 9
    assert all((report.html.parent / link / "config.json").is_file() for link in links)


def test_failed_trials_are_rows_with_their_reason_and_no_time(sweep, report):
    _, failed, unlike = sweep
    page = report.html.read_text()
    rows = re.findall(r'<tr[^>]* class="bad">.*?</tr>', page, re.DOTALL)
    assert len(rows) == 2
    assert "&lt;script&gt;" in next(row for row in rows if failed in row)
    assert "correctness checks failed: weights" in next(row for row in rows if unlike in row)
    for path in (report.html, report.markdown, report.cells):
        assert "987654" not in path.read_text()
    assert "killed by SIGKILL \\| \\<script>" in report.markdown.read_text()


def test_the_verdicts_stand_above_the_tables(report):
    page = report.html.read_text()
    assert page.index("Before you rely on this") < page.index("times as fast as")
    assert page.index("times as fast as") < page.index("<table")
    assert "2 of 9 trials have no numbers" in page
    assert "2 of 3" in page


def test_the_page_begins_with_an_answer_and_links_to_its_sections(sweep, report):
    page = report.html.read_text()
    text = answer(summarise(read_sweep(sweep[0])))
    assert f'<p class="answer">{text}</p>' in page
    assert page.index(text) < page.index("<h2>")
    assert f"**{text}**" in report.markdown.read_text()
    links = set(re.findall(r'<a href="#([\w-]+)">', page))
    assert {"found", "summary", "figures", "trials", "terms", "epochs"} <= links
    assert links <= set(re.findall(r'\bid="([\w-]+)"', page))
    assert f'<th scope="col" title="{explained("efficiency")}">efficiency</th>' in page
    # These records hold no pictures of cases.
    assert report.cases == ()
    assert "cases-shown" not in page


def test_skipped_cells_are_rows(report):
    assert "one replica is what single is for" in report.html.read_text()
    assert "backend=horovod num_replicas=1" in report.markdown.read_text()


def test_the_markdown_shows_its_figures(report):
    figures = re.findall(r"!\[[^]]*\]\(([^)]+)\)", report.markdown.read_text())
    assert [report.markdown.parent / drawing for drawing in figures] == list(report.figures)
    assert all(path.is_file() for path in report.figures)


def test_the_csv_files_hold_numbers_for_programs(sweep, report):
    trials = list(csv.DictReader(report.trials.open()))
    assert len(trials) == 9
    by_name = {row["trial"]: row for row in trials}
    assert by_name[sweep[1]]["reason"] == REASON
    assert by_name[sweep[2]]["images_per_second"] == ""
    good = next(row for row in trials if row["state"] == "done")
    assert float(good["images_per_second"]) > 0
    assert len(good["images_per_second"]) > 6
    cells = list(csv.DictReader(report.cells.open()))
    assert [(row["backend"], row["repeats_done"], row["repeats"]) for row in cells] == [
        ("single", "3", "3"),
        ("mirrored", "2", "3"),
        ("horovod", "2", "3"),
    ]
    assert float(cells[0]["speed_up"]) == 1.0
    assert 0.5 < float(cells[1]["efficiency"]) < 1.1
    assert float(cells[1]["serial_share"]) == pytest.approx(2 - float(cells[1]["speed_up"]))
    assert {row["target_dice"] for row in cells} == {cells[0]["target_dice"]}
    assert float(cells[1]["device_hours_to_target"]) == pytest.approx(
        2 * float(cells[1]["seconds_to_target"]) / 3600
    )


def test_the_terminal_gets_a_table_and_the_verdicts(sweep):
    text = summary_table(sweep[0])
    header, *rows = text.splitlines()[1:5]
    words = ["backend", "replicas", "repeats", "images/s", "speed-up", "efficiency"]
    assert header.split()[:6] == words
    assert [row.split()[:2] for row in rows] == [
        ["single", "1"],
        ["mirrored", "2"],
        ["horovod", "2"],
    ]
    assert "1 (baseline)" in rows[0]
    assert re.search(r"at 2 replicas is \d.\d\d times as fast as", text)
    said = answer(summarise(read_sweep(sweep[0])))
    assert f"\n\nAnswer: {said}\n\nBefore you rely on this:" in text


def test_serial_share_and_cost_have_a_table(sweep, report):
    for text in (summary_table(sweep[0]), report.markdown.read_text()):
        assert re.search(r"serial share .*device-hours a run .*samples to Dice 0\.\d+ ", text)
    text = summary_table(sweep[0], target_dice=0.999)
    header = next(line for line in text.splitlines() if "samples to Dice 0.999" in line)
    row = text.splitlines()[text.splitlines().index(header) + 1]
    assert row.split()[-6:] == ["-", "-", "-", "0", "of", "3"]


def test_the_interval_of_a_serial_share_holds_it(tmp_path):
    write_sweep(tmp_path, make_study(repeats=3))
    cells = [cell for cell in summary_json(tmp_path)["cells"] if "serial_share" in cell]
    assert len(cells) == 6
    for cell in cells:
        assert cell["serial_share_low"] < cell["serial_share"] < cell["serial_share_high"]


@pytest.mark.parametrize("base", [{"global_batch": 8}, {"replica_batch": 4}])
def test_a_serial_share_below_0_or_above_1_is_none(base, tmp_path):
    """Two replicas that were more than twice as fast, and two that were slower than one."""
    speed = {"mirrored": 1.3, "multiworker": 0.2, "horovod": 0.9}
    write_sweep(tmp_path, make_study(repeats=3, base=base), speed=speed)
    shares = {
        (cell["backend"], cell["num_replicas"]): cell["serial_share"]
        for cell in summary_json(tmp_path)["cells"]
        if "serial_share" in cell
    }
    assert shares["mirrored", 2] < 0 < shares["horovod", 2] < 1 < shares["multiworker", 2]
    text = summary_table(tmp_path)
    assert re.search(r"\nmirrored +2 +- ", text)
    assert re.search(r"\nmultiworker +2 +- ", text)
    assert "mirrored follows" not in text
    assert "multiworker follows" not in text
    assert re.search(r"\nhorovod +2 +0\.\d{3} \(0\.\d{3} to ", text)


def test_a_column_of_differences_is_shown_only_if_something_is_compared(tmp_path):
    base = {"folds": 3, "cores_per_replica": 1}
    whole = STUDY["grid"]
    for number, grid in enumerate(({"fold": [0, 1, 2]}, {**whole, "fold": [0, 1, 2]})):
        folder = tmp_path / str(number)
        write_sweep(folder, make_study(grid=grid, repeats=1, base=base))
        text = summary_table(folder)
        assert "mean (95 % interval)" in text
        assert ("difference from single x1" in text) == (number > 0)


def test_programs_get_the_summary(sweep):
    table = json.loads(json.dumps(summary_json(sweep[0]), allow_nan=False))
    assert (table["trials"], table["trials_done"]) == (9, 7)
    assert table["answer"] == answer(summarise(read_sweep(sweep[0])))
    assert [cell["backend"] for cell in table["cells"]] == ["single", "mirrored", "horovod"]
    # Two good repeats: no interval, and no invented one.
    assert table["cells"][1]["speed_up_low"] is None
    (one,) = table["comparisons"]
    assert {one["upper"], one["lower"]} == {"mirrored", "horovod"}
    assert (one["verdict"], one["p"], one["ratio_low"]) == ("unknown", None, None)
    assert one["ratio"] >= 1
    assert any("2 of 9 trials have no numbers" in doubt for doubt in table["doubts"])


def test_verdicts_and_the_number_of_comparisons_stand_in_the_page(tmp_path):
    write_sweep(tmp_path, make_study(repeats=3))
    page = write_report(tmp_path)
    for path in (page.html, page.markdown):
        assert "6 comparisons of speed" in path.read_text()


def test_a_report_can_be_written_elsewhere(sweep, tmp_path):
    report = write_report(sweep[0], tmp_path / "out")
    assert report.html == tmp_path / "out" / "report.html"
    links = [link for link in Page(report.html.read_text()).links if link.startswith("..")]
    assert all((report.html.parent / link / "config.json").is_file() for link in links)


def test_a_sweep_without_any_result_has_a_report(tmp_path):
    trials = write_sweep(tmp_path, make_study(repeats=1, grid=GRID))
    for trial in trials:
        shutil.rmtree(tmp_path / trial.id)
    report = write_report(tmp_path)
    assert report.figures == ()
    page = report.html.read_text()
    assert Page(page).open == []
    assert "3 of 3 trials have no numbers" in page
    assert "No trial has numbers to draw" in page
    assert "0 of 1" in summary_table(tmp_path)


def test_one_run_alone_has_a_report(tmp_path):
    (trial,) = write_sweep(tmp_path, make_study(repeats=1, grid={"backend": ["single"]}, skip=[]))
    (tmp_path / trial.id / CONFUSION).write_text(
        confusion_csv(np.array([[90, 10], [3, 37]]), ["1 <cell>"])
    )
    report = write_report(tmp_path / trial.id)
    # No figure with one dot or one bar, and nothing on how runs compare.
    figures = {path.stem: path.read_text() for path in report.figures}
    assert set(figures) == {"loss", "epochs", "cases", "confusion", "phases"}
    for words in (">1 &lt;cell&gt;<", ">90.0<", ">92.5<", ">true<"):
        assert words in figures["confusion"]
    said = summary_table(tmp_path / trial.id)
    page, text = report.html.read_text(), report.markdown.read_text()
    for words in ("speed-up", "efficiency", "serial share", "device-hours", "repeats", "No two"):
        assert words not in said
    for words in ("Settings that differ", "kept fair", "good repeat", "Nothing to choose"):
        assert words not in page + text
    assert re.search(rf"Answer: {trial.id} has a mean Dice of 0\.\d+ \(\w+\).* over \d+ val", said)
    regions, cases = (block.splitlines() for block in said.split("\n\n")[:2])
    assert regions[0].split("  ")[0] == "region"
    rows = read_cases(tmp_path / trial.id)
    true, wrong, missed = (sum(rows[name]) for name in COUNTS)
    assert regions[1].split()[-1] == f"{true / (true + wrong + missed):.3f}"
    assert regions[1].split()[-1] in page
    assert "| dataset IoU |" in text
    assert ">dataset IoU<" in page
    assert "its mask has the region" not in said
    # The worst case first.
    assert cases[0].startswith("case ")
    *rows, rest = cases[1:]
    dice = [float(line.split()[1]) for line in rows]
    assert dice == sorted(dice)
    # The worst of many cases are printed, and the pages fold them.
    assert len(rows) == 10
    assert rest.startswith("These are the worst 10 of 12 validation cases.")
    assert "<details>\n<summary>Dice of 12 validation cases, the worst first</summary>" in page
    assert text.count("| case1") + text.count("| case0") == 12
    assert "<details><summary>Dice of 12 validation cases" in text
    assert Page(page).open == []


def test_the_miou_of_several_regions_stands_beside_their_dice(tmp_path):
    study = make_study(repeats=2, grid={"backend": ["single"]}, skip=[])
    trials = write_sweep(tmp_path, study, regions=("a", "b"))
    mious = [RunFolder(tmp_path / trial.id).read_result()["miou"] for trial in trials]
    low, high = sorted(mious)
    assert low < high
    (table, *_) = summary_table(tmp_path).split("\n\n")
    header, row = (line for line in table.splitlines() if line.startswith(("backend", "single")))
    assert re.search("Dice a +Dice b +mIoU ", header)
    assert f"{np.median(mious):.3f} [{low:.3f}, {high:.3f}]" in row
    report = write_report(tmp_path)
    with report.trials.open(newline="") as file:
        table = list(csv.DictReader(file))
    assert [float(row["miou"]) for row in table] == mious
    assert all(0 < float(row["dataset_iou_b"]) < float(row["dataset_iou_a"]) < 1 for row in table)
    with report.cells.open(newline="") as file:
        (cell,) = csv.DictReader(file)
    assert float(cell["miou_high"]) == high
    # A record of an earlier version has none.
    for trial in trials:
        write_trial(tmp_path, trial, miou=None, dataset_iou=None, dataset_dice=None)
    assert "mIoU" not in summary_table(tmp_path)


@pytest.mark.parametrize(
    ("table", "fault"),
    [
        ("true,a,b\na,1,2\n", "its rows are not named as its columns"),
        ("true,a,a\na,1,2\n", "its rows are not named as its columns"),
        ("true,a,b\na,1,2\nb,-1,2\n", "line 3, a"),
    ],
)
def test_a_damaged_confusion_matrix_is_a_doubt(table, fault, tmp_path):
    (trial,) = write_sweep(tmp_path, make_study(repeats=1, grid={"backend": ["single"]}, skip=[]))
    (tmp_path / trial.id / CONFUSION).write_text(table)
    assert read_confusion(tmp_path / trial.id) is None
    assert f"confusion.csv cannot be used: {fault}" in summary_table(tmp_path / trial.id)


@pytest.mark.parametrize(
    ("changes", "state"),
    [
        ({"images_per_second": None}, "failed: result.json cannot be used: no steady step was me"),
        ({"checks": {"weights": False}}, "failed: correctness checks failed: weights."),
        ({"profile": True}, "profiled: its times are not compared."),
        (None, "interrupted: never finished."),
    ],
)
def test_one_run_that_is_not_done_has_the_scores_of_its_last_evaluation(changes, state, tmp_path):
    base = {"cores_per_replica": 1, "profile": bool(changes and changes.pop("profile", False))}
    study = make_study(repeats=1, base=base, grid={"backend": ["single"]}, skip=[])
    (trial,) = write_sweep(tmp_path, study)
    run = tmp_path / trial.id
    result = run / "result.json"
    table = json.loads(result.read_text())
    dice = table["dice"]["cell"]
    result.write_text(json.dumps({**table, **(changes or {})}))
    if changes is None:
        result.unlink()
    said = summary_table(run)
    words = f"has a mean Dice of {dice:.3f} (cell) over 12 validation cases in its last evaluation"
    assert f"{trial.id} {words}. Its state is {state}" in said
    assert f"{dice:.3f}" in said.partition("\n\n")[0]
    page = write_report(run).html.read_text()
    assert "trials have no numbers" not in page
    (run / "cases.csv").unlink()
    assert f"{trial.id} has no scores yet. Its state is {state}" in summary_table(run)
    with RunFolder(run).epochs_table((), ("age",)) as epochs:
        epochs.append({**dict.fromkeys(epochs.columns, 1), "mae_age": 2.5})
        epochs.append(dict.fromkeys(epochs.columns, 1) | {"epoch": 2, "mae_age": None})
    words = "has a mean absolute error of 2.5 (age) in its last evaluation"
    assert f"{trial.id} {words}. Its state is {state}" in summary_table(run)


def test_runs_that_no_study_planned_have_the_names_of_their_folders(tmp_path):
    grid = {"learning_rate": [0.1, 0.2, 0.3, 0.4]}
    study = make_study(repeats=1, grid=grid, skip=[])
    trials = write_sweep(tmp_path, study)
    (tmp_path / "plan.json").unlink()
    for number, trial in enumerate(trials):
        (tmp_path / trial.id).rename(tmp_path / f"run{number}")
    shutil.copytree(tmp_path / "run0", tmp_path / "again")
    said = summary_table(tmp_path)
    page = write_report(tmp_path).html.read_text()
    assert "learning_rate=" not in said
    assert "\nrun1: 1 replica" in said
    assert re.search(r"Of 4 configurations, (run\d|again, run0) has the highest", said)
    # What is the same twice is said to be the same, and not repeated with bounds.
    words = "again, run0 have the same settings and seed, and ended with the same weights"
    assert words in said
    assert words in page
    assert "Give the study repeats" not in said
    assert not re.search(r"(\d\S*) \[\1, \1\]", said)


def test_a_diverged_run_is_a_doubt(tmp_path):
    (trial,) = write_sweep(tmp_path, make_study(repeats=1, grid={"backend": ["single"]}, skip=[]))
    result = tmp_path / trial.id / "result.json"
    result.write_text(json.dumps({**json.loads(result.read_text()), "loss": 3e19}))
    steps = tmp_path / trial.id / "steps.csv"
    lines = steps.read_text().splitlines()
    fields = lines[0].split(",")
    row = dict(zip(fields, lines[-1].split(","), strict=True)) | {"loss": "1.8e+20"}
    steps.write_text("\n".join([*lines, ",".join(row.values())]) + "\n")
    said = summary_table(tmp_path / trial.id)
    assert "The loss diverged" in said
    assert "records is wrong" not in said
    assert write_report(tmp_path / trial.id).html.is_file()


def test_what_is_not_installed_is_named(sweep, monkeypatch):
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(ValueError, match=r"needs jinja2, .* pip install 'tfunet\[report\]'"):
        write_report(sweep[0])


def test_tables_of_texts():
    rows = [{"a": "x|y", "b": "1"}, {"a": "z", "b": "22"}]
    assert plain_text(rows) == ["a    b", "x|y  1", "z    22"]
    assert markdown_text(rows).splitlines()[2] == "| x\\|y | 1 |"
    assert csv_text([{"a": 1}, {"b": "x,y"}]) == 'a,b\n1,\n,"x,y"\n'
    assert plain_text([]) == []
    assert markdown_text([]) == ""
    assert markdown_list("Speed", ["a", "b"]) == "**Speed**\n\n- a\n- b"


@pytest.mark.parametrize(
    ("program", "forbidden"),
    [
        ("tfunet.bench.study.trial_plan", ("matplotlib", "jinja2", "numpy")),
        ("tfunet.bench.launch.sweep_status", ("matplotlib", "jinja2", "numpy")),
        ("tfunet.bench.launch.local_sweep", ("matplotlib", "jinja2", "numpy")),
        ("tfunet.bench.report.sweep_report", ("matplotlib", "jinja2")),
        ("tfunet.bench.report.plots", ()),
    ],
)
def test_nothing_slow_is_imported_before_it_is_needed(program, forbidden):
    names = (*forbidden, "tensorflow", "keras")
    code = f"import sys, {program}; print([n for n in {names!r} if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_dollar_signs_in_names_are_no_formulas(tmp_path):
    grid = {"backend": ["single", "horovod"], "num_replicas": [1]}
    write_sweep(tmp_path, make_study(repeats=1, grid=grid, skip=[]), regions=(r"a$b$\frac",))
    plan = tmp_path / "plan.json"
    plan.write_text(plan.read_text().replace('"horovod"', r'"h$\\frac$"'))
    figures = [path.read_text() for path in write_report(tmp_path).figures]
    assert any(r"h$\frac$" in figure for figure in figures)
    assert any(r"a$b$\frac" in figure for figure in figures)


def test_a_wrong_cell_of_a_table_is_named_below_the_report(tmp_path):
    first, *_ = write_sweep(tmp_path, make_study(repeats=1))
    path = tmp_path / first.id / "steps.csv"
    path.write_text(path.read_text().replace("\n3,", "\n3,x", 1))
    shown = summary_table(tmp_path)
    assert f"{first.id}: steps.csv cannot be used: line 4, seconds: could not convert" in shown


def test_names_of_regions_stand_as_they_are(tmp_path):
    names = ("a$b$c", "$x_1^2$", "50%", "<b>", "a & b")
    grid = {"backend": ["single", "mirrored"], "num_replicas": [1]}
    write_sweep(tmp_path, make_study(repeats=1, grid=grid, skip=[]), regions=names)
    report = write_report(tmp_path)
    page = report.html.read_text()
    assert Page(page).open == []
    figure = re.search(r'<figure id="scores">.*?</figure>', page, re.DOTALL)[0]
    for name in names:
        shown = html.escape(name)
        assert f">Dice {shown}<" in page
        assert f">Dice, {shown}</text>" in figure
    text = report.markdown.read_text()
    for name in (r"a\$b\$c", r"\$x_1^2\$", "50%", r"\<b>", "a & b"):
        assert f"| Dice {name} |" in text
