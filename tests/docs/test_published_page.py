"""docs/published.md has the tables of benchmarks/published.py."""

import tomllib

import pytest
from paths import ROOT

PAGE = (ROOT / "docs/published.md").read_text()
NAMES = [
    group["name"]
    for group in tomllib.loads((ROOT / "benchmarks/published.toml").read_text())["group"]
]
# Traced in seconds.
QUICK = ("IBM: the links alone", "unet_scaling: Horovod", "torchgpipe: speed")


@pytest.fixture(scope="module")
def script():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "benchmarks"))
        import published

        yield published


@pytest.fixture
def groups(script):
    return {group["name"]: group for group in script.groups()}


def lines_of(text):
    """Return the cells of each run in a table, by its name."""
    lines = [line.strip("| ").split("|") for line in text.splitlines() if line.startswith("| ")]
    return {cells[0].strip(): [cell.strip() for cell in cells[1:]] for cells in lines[2:]}


def section(name):
    return (
        PAGE.partition("<!-- published.py -->\n")[2]
        .partition(f"## {name}\n")[2]
        .partition("\n## ")[0]
    )


def number(cell):
    return float(cell.replace(",", ""))


@pytest.mark.parametrize("name", NAMES)
def test_the_page_has_every_run_and_the_cause_of_every_miss(script, groups, name):
    text, group = section(name), groups[name]
    shown = lines_of(text)
    assert list(shown) == [run["run"] for run in group["runs"]]
    first = [number(cell) for cell in next(iter(shown.values()))[:2]]
    for run in group["runs"]:
        published, value = (number(cell) for cell in shown[run["run"]][:2])
        assert published == pytest.approx(run["published"], rel=1e-3)
        assert script.is_miss((published, value, *first)) == bool(run.get("why"))
        cause = run.get("why", "")
        assert not cause or f"- **{cause}**: {group['causes'][cause]}" in text
    causes = {run["why"] for run in group["runs"] if "why" in run}
    assert set(group.get("causes", ())) - {"order"} == causes


@pytest.mark.parametrize("name", QUICK)
def test_the_page_has_what_the_script_says(script, groups, name):
    shown, made = (lines_of(text) for text in (section(name), script.group_table(groups[name])))
    assert list(made) == list(shown)
    for run, cells in made.items():
        # Another TensorFlow makes other ops of a layer.
        assert number(cells[1]) == pytest.approx(number(shown[run][1]), rel=0.05)


def test_a_miss_without_a_cause_is_refused(script, groups):
    group = groups[QUICK[0]]
    wrong = [{**run, "published": run["published"] / 1.5} for run in group["runs"]]
    with pytest.raises(ValueError, match="a miss needs a cause"):
        script.group_table({**group, "runs": wrong})


@pytest.mark.parametrize(
    ("values", "right"), [([(1, 10), (2, 30), (3, 20)], (2, 3)), ([(1, 5), (2, 5)], (1, 1))]
)
def test_pairs_in_order(script, values, right):
    assert script.pairs_in_order(values) == right
