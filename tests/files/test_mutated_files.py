"""Damaged files beside images, beats and timelines: named, and nothing else is lost."""

import json
import random

import numpy as np
import pytest
from mutants import HOSTILE, MUTATIONS, mutate, mutated_bytes, mutated_json, refusal
from PIL import Image

from tfunet.data.check import check
from tfunet.data.source import open_source
from tfunet.export.perfetto import trace
from tfunet.files.typed import RecordError
from tfunet.process.watchdog import Beat, Beats, Watch, to_values
from tfunet.record import RunFolder

# A half of the mutants of records, in a tenth of the time.
NUM = MUTATIONS // 8
SIDECAR = {"spacing": [0.5, 0.25], "unit": "um", "more": {"a": [1, 2]}}
NNUNET = {
    "channel_names": {"0": "grey"},
    "labels": {"background": 0, "cell": 1, "core": [2, 1]},
    "file_ending": ".png",
    "numTraining": 2,
}
MSD = {
    "labels": {"0": "background", "1": "cell"},
    "modality": {"0": "MR"},
    "training": [
        {"image": f"./imagesTr/{case}_0000.png", "label": f"./labelsTr/{case}.png"} for case in "ab"
    ],
}
TIMELINE = [
    {"name": "process_name", "ph": "M", "pid": 0, "args": {"start_time_since_epoch_in_micros": 9}},
    {"name": "process_name", "ph": "M", "pid": 1, "args": {"name": "gradients"}},
    {"ph": "B", "name": "ALLREDUCE", "ts": 1000, "pid": 1, "args": {"a": {"b": 1}}},
]


@pytest.fixture
def folder(tmp_path):
    draw = np.random.default_rng(0)
    for place in ("imagesTr", "labelsTr"):
        (tmp_path / place).mkdir()
    for case in "ab":
        image = draw.integers(0, 255, (16, 16), np.uint8)
        Image.fromarray(image).save(tmp_path / f"imagesTr/{case}_0000.png")
        Image.fromarray(image // 128).save(tmp_path / f"labelsTr/{case}.png")
        (tmp_path / f"imagesTr/{case}.json").write_text(json.dumps(SIDECAR))
    return tmp_path


def mutants(path, num, dice):
    """Replace a file by one mutant after the other, and at last put it back."""
    text = path.read_text()
    for _ in range(num):
        mutate(path, dice)
        yield
        path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
        path.write_text(text)


def test_a_sidecar_takes_away_its_own_case_at_most(folder):
    options = {
        "root": str(folder),
        "images": "imagesTr/{case}_0000.png",
        "masks": "labelsTr/{case}.png",
        "classes": {"cell": 1},
        "target_pixel_size": 0.5,
        "pixel_size": {"file": "imagesTr/{case}.json", "key": "spacing", "order": "array"},
    }
    for _ in mutants(folder / "imagesTr/b.json", NUM, random.Random(1)):
        report = check(open_source("folder", options, skip_bad=True))
        assert "a" in {case.case_id for case in report.cases}
        assert all(defect.case_id == "b" for defect in report.defects)
        assert len(report.cases) + len(report.defects) == 2


@pytest.mark.parametrize(("layout", "table"), [("nnunet", NNUNET), ("msd", MSD)])
def test_a_description_of_a_data_set_is_read_or_named(folder, layout, table):
    path = folder / "dataset.json"
    path.write_text(json.dumps(table, indent=1))
    assert len(open_source(layout, {"root": str(folder)}).case_ids) == 2
    for _ in mutants(path, NUM, random.Random(2)):
        refusal(
            lambda: check(open_source(layout, {"root": str(folder)}, skip_bad=True)), ValueError
        )


def test_a_line_that_is_no_beat_is_no_sign_of_life():
    dice = random.Random(3)
    watch = Watch([(0, "process 0")], 10.0, 0.0)
    beats = Beats(0, watch)
    text = json.dumps(to_values(Beat(3, 7, "step 7")))
    beats.feed(text.encode() + b"\n")
    for _ in range(NUM):
        line = (mutated_bytes if dice.random() < 0.25 else mutated_json)(text, dice)
        beats.feed(line.replace(b"\n", b" ") + b"\n")
        assert isinstance(watch.doing(0), str)
    for values in HOSTILE:
        beats.feed(json.dumps(values).encode() + b"\n")
    beats.feed(text.encode() + b"\n")
    assert watch.doing(0) == "step 7"


def test_a_timeline_is_read_or_named(tmp_path):
    with RunFolder(tmp_path).spans_table(0) as rows:
        rows.append({"step": 1, "name": "step", "begin_seconds": 100.0, "seconds": 0.25})
    path = tmp_path / "profile" / "process-0" / "horovod.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(TIMELINE))
    for _ in mutants(path, NUM, random.Random(4)):
        error = refusal(lambda: json.dumps(trace(tmp_path)), RecordError)
        assert error is None or error.path == path
    # What no time is enough for is left.
    path.write_text("}" * 1_000_000)
    assert all(event.get("name") != "ALLREDUCE" for event in trace(tmp_path)["traceEvents"])
