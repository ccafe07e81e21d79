"""Layouts of a run: which there are, and what has to be typed for each."""

import math

import pytest

from tfunet.arguments import parse
from tfunet.config.run import RunConfig
from tfunet.plan.layout import Layout, device_counts, divisors, layouts, tilings_of


def config(**keys):
    return RunConfig(**{"global_batch": 4, **keys})


def test_the_layout_of_the_run_comes_first_and_none_comes_twice():
    own = config(backend="horovod", num_replicas=2)
    found = list(layouts(own, 4, axes=2))
    assert found[0] == Layout(backend="horovod", num_replicas=2)
    assert len(set(found)) == len(found)
    assert {one.num_devices for one in found} == {1, 2, 3, 4}


@pytest.mark.parametrize(
    ("wanted", "is_there"),
    [
        (Layout(accumulation=4), True),
        (Layout(accumulation=3), False),  # 4 samples are not cut into 3 passes
        (Layout(backend="mirrored", num_replicas=4), True),
        (Layout(backend="single", num_replicas=2), False),
        (Layout(backend="mirrored"), False),  # one device is single's
        (Layout(backend="multiworker", split=(2, 1), num_replicas=2), True),
        (Layout(backend="multiworker", split=(1, 2)), False),  # (2, 1) stands for it
        (Layout(backend="horovod", stages=4, micro_batches=4, schedule="v"), True),
        (Layout(backend="horovod", stages=2, micro_batches=4, recompute=True), True),
        (Layout(backend="horovod", stages=2, schedule="v", recompute=True), False),
        (Layout(tiling=(2, 2)), True),
        (Layout(tiling=(2, 2), accumulation=2), False),
        (Layout(backend="horovod", split=(2, 1), tiling=(2, 2)), False),
        # 8 tiles a replica are the micro-batches.
        (Layout(backend="horovod", stages=2, num_replicas=2, tiling=(2, 2), micro_batches=8), True),
    ],
)
def test_layouts(wanted, is_there):
    assert (wanted in set(layouts(config(), 4, axes=2, tilings=[(2, 2)]))) == is_there


def test_a_backend_of_ones_own_is_kept():
    found = layouts(config(backend="mine.py:Backend"), 2, axes=2)
    assert {one.backend for one in found} == {"mine.py:Backend"}


@pytest.mark.parametrize(
    ("num_devices", "counts"),
    [
        (1, [1]),
        (3, [1, 2, 3]),
        (8, [1, 2, 3, 4, 5, 6, 7, 8]),
        (12, [1, 3, 6, 12]),
        (1200, [75, 150, 300, 600, 1200]),
    ],
)
def test_few_devices_are_all_tried_and_of_many_some_that_divide_them(num_devices, counts):
    assert device_counts(num_devices) == counts


def test_divisors_up_to_a_limit():
    assert divisors(12, 5) == [1, 2, 3, 4]


@pytest.mark.parametrize("axes", [2, 3])
def test_tilings_are_nearly_as_fine_along_all_axes(axes):
    found = tilings_of(axes)
    assert found[0] == (1,) * (axes - 1) + (2,)
    assert all(max(tiling) <= 2 * min(tiling) for tiling in found)
    assert max(map(math.prod, found)) == {2: 64**2, 3: 16**3}[axes]


@pytest.mark.parametrize(
    ("before", "layout"),
    [
        ({}, Layout(backend="mirrored", num_replicas=2)),
        ({"replica_batch": 4, "global_batch": None}, Layout(backend="horovod", num_replicas=4)),
        ({}, Layout(backend="multiworker", split=(2, 1), num_replicas=2, accumulation=2)),
        ({"backend": "horovod", "num_replicas": 2}, Layout()),
        ({"backend": "horovod", "split": (2, 1)}, Layout(accumulation=4)),
        (
            {"backend": "horovod", "stages": 2, "balance": ("a",), "batch_norm": "deferred"},
            Layout(backend="horovod", num_replicas=2),
        ),
        # Two replicas share the tiles of one sample.
        (
            {"global_batch": 1, "patch": (64, 64)},
            Layout(backend="horovod", num_replicas=2, tiling=(2, 2)),
        ),
        ({"swap": "64MiB", "swap_host": "1GiB"}, Layout(accumulation=2)),
        ({}, Layout(swap="64MiB")),
        (
            {"backend": "multiworker", "num_replicas": 2, "processes": 1},
            Layout(backend="horovod", num_replicas=4),
        ),
    ],
)
def test_what_is_typed_gives_the_layout_and_the_same_samples(tmp_path, before, layout):
    import shlex

    run = config(**before)
    lines = [f"{key} = {_toml(value)}" for key, value in {"global_batch": 4, **before}.items()]
    file = tmp_path / "run.toml"
    file.write_text("\n".join(line for line in lines if not line.endswith("None")) + "\n")
    typed = parse(["--config", str(file), *shlex.split(layout.words(run))])
    assert Layout.of(typed) == layout
    assert typed.global_samples == run.global_samples
    assert typed == layout.applied(run)


def _toml(value):
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, tuple):
        return f"[{', '.join(map(_toml, value))}]"
    return str(value)


def test_the_layout_that_a_run_has_needs_no_words():
    run = config(backend="horovod", num_replicas=2, split=(2, 1))
    assert Layout.of(run).words(run) == ""
