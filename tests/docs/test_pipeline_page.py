"""docs/pipeline.md has the table of benchmarks/stage_balance.py."""

import runpy

import pytest
from paths import ROOT

from tfunet.performance.layer_costs import symbolic_model
from tfunet.pipeline.network import read_network

SCRIPT = runpy.run_path(str(ROOT / "benchmarks/stage_balance.py"))
PAGE = (ROOT / "docs/pipeline.md").read_text()
TABLE = PAGE.partition(SCRIPT["BEGIN"])[2].partition(SCRIPT["END"])[0].splitlines()


# As published: the layers of torchgpipe's U-Net, and those of the networks of Seal et al. 2020.
@pytest.mark.parametrize(
    ("name", "layers"),
    [("summit_5_5", 241), ("summit_5_2", 109), ("summit_6_2", 129), ("summit_7_2", 149)],
)
def test_networks_have_the_published_number_of_layers(name, layers):
    model = symbolic_model(name, image_shape=(256, 256, 3), num_classes=1, options={})
    nodes = read_network(model).nodes
    # Theirs has one more for each skip.
    assert len(nodes) + sum(node.name.endswith("_pooling") for node in nodes) == layers
    published = [
        published.layers
        for row in SCRIPT["ROWS"]
        if row.model == name
        for published in row.published.values()
    ]
    assert published
    assert {sum(cut) for cut in published} == {layers}


def test_a_line_of_the_table_is_what_the_script_says():
    row = next(row for row in SCRIPT["ROWS"] if row.model == "summit_5_2")
    made = SCRIPT["table"]((row,), (6,)).splitlines()
    assert made[:2] == TABLE[:2]
    shown = next(line for line in TABLE if line.startswith("| `summit_5_2`") and "| 6 |" in line)
    cells, expected = (line.split(" | ") for line in (made[2], shown))
    assert [cells[at] for at in (0, 1, 5, 6, 8, 10)] == [expected[at] for at in (0, 1, 5, 6, 8, 10)]
    # Another TensorFlow makes other ops of a layer.
    for at in (2, 3, 4, 7):
        assert float(cells[at]) == pytest.approx(float(expected[at]), rel=0.05)


def test_every_exact_cut_of_torchgpipes_network_is_within_the_goal():
    lines = [line.split(" | ") for line in TABLE if "192 x 192 x 3" in line]
    assert [line[1] for line in lines] == ["2", "4", "6", "8"]
    assert max(float(line[2]) for line in lines) <= 1.08
    assert max(float(line.split(" | ")[3]) for line in TABLE[2:]) <= 1.08
