"""What a step takes in each layout, for a network of round numbers."""

import math
from dataclasses import replace

import pytest
from planned_run import chain_of, facts, machine

from tfunet.config.amount import GIB, MIB
from tfunet.pipeline.chain import Chain, ChainLayer, Variable
from tfunet.plan.facts import Update, part_share, pass_bytes
from tfunet.plan.layout import Layout
from tfunet.plan.machine import of_cores
from tfunet.plan.predict import Predictor
from tfunet.plan.prediction import Doubt, how_sure

MS = 1e-3


def predict(layout, *, run=None, on=None, quick=False):
    return Predictor(run or facts(), on or machine(), quick=quick).predict(layout)


def test_one_device_computes_all_samples_and_updates_the_weights():
    found = predict(Layout())
    assert found.parts.computation == pytest.approx(8 * 4 * MS + MS)
    assert found.seconds == pytest.approx(33 * MS)
    assert found.samples_per_second == pytest.approx(8 / (33 * MS))
    # Ten steps an epoch.
    assert found.device_hours == pytest.approx(10 * 33 * MS / 3600)


def test_passes_save_memory_and_keep_the_sum_of_gradients():
    whole, passes = predict(Layout()), predict(Layout(accumulation=8))
    # Weights with two states each, samples, and what the passes hold.
    assert whole.num_bytes == pytest.approx(12 * MIB + 8000 + 8 * 4 * 11 * MIB, rel=0.01)
    assert passes.num_bytes == pytest.approx(12 * MIB + 8000 + 4 * 11 * MIB + 4 * MIB, rel=0.02)
    assert passes.seconds == pytest.approx(whole.seconds)


def test_replicas_share_the_samples_and_average():
    found = predict(Layout(backend="mirrored", num_replicas=4))
    assert found.parts.computation == pytest.approx(9 * MS)
    # 1.5 of 4 MiB at 0.8 GB/s, six hops, and 0.1 ms to agree.
    assert found.parts.average == pytest.approx(1.5 * 4 * MIB / 0.8e9 + 160e-6)
    assert found.device_hours == pytest.approx(10 * 4 * found.seconds / 3600)


def test_parts_exchange_what_layers_need_of_others():
    found = predict(Layout(backend="multiworker", split=(2, 1)))
    assert found.parts.computation == pytest.approx(17 * MS)
    # Two rows of 64 of 1 MiB for each of 8 samples; the first layer's has no way back. The loss has
    # three exchanges.
    assert found.parts.halo == pytest.approx(7 * 8 * MIB * 2 / 64 / 0.8e9 + 10 * 510e-6)
    assert found.parts.average > 0
    assert found.num_bytes < 0.6 * predict(Layout()).num_bytes
    # Three parts of 64 rows: 22 is more than a third.
    uneven = predict(Layout(backend="multiworker", split=(3, 1)))
    assert uneven.parts.imbalance == pytest.approx(32 / 3 * MS * (22 / 64 * 3 - 1))


def test_parts_along_two_axes_exchange_along_both():
    along_one = predict(Layout(backend="multiworker", split=(4, 1))).parts.halo
    along_two = predict(Layout(backend="multiworker", split=(2, 2))).parts.halo
    agreeing = 510e-6
    # Half as many bytes along each, and twice as many exchanges.
    assert along_two - 17 * agreeing == pytest.approx(along_one - 10 * agreeing)


@pytest.mark.parametrize("quick", [False, True])
def test_stages_wait_for_each_other(quick):
    layout = Layout(backend="mirrored", stages=4, micro_batches=8, schedule="gpipe")
    found = predict(layout, quick=quick)
    # Each stage has one of four equal layers; (p - 1) of (m + p - 1) is bubble.
    assert found.parts.computation == pytest.approx(8 * MS + MS / 4)
    assert found.parts.bubble == pytest.approx(3 * MS)
    assert found.parts.imbalance == pytest.approx(0, abs=1e-9)
    assert found.parts.transfer > 0
    assert found.parts.average == 0


def test_a_schedule_that_keeps_less_takes_less_memory():
    stages = {"backend": "mirrored", "stages": 4, "micro_batches": 8}
    peaks = [predict(Layout(**stages, schedule=name)).num_bytes for name in ("gpipe", "1f1b")]
    assert peaks[1] < 0.7 * peaks[0]
    # One micro-batch kept whole, of seven the tensor that the stage was given.
    again = predict(Layout(**stages, schedule="gpipe", recompute=True))
    assert again.num_bytes < 0.5 * peaks[0]
    assert again.parts.computation > predict(Layout(**stages)).parts.computation


def test_tiles_compute_their_halo_too():
    found = predict(Layout(tiling=(4, 4)))
    # Windows of 24 x 24 for tiles of 16 x 16.
    assert found.parts.computation == pytest.approx(8 * 4 * MS * (24 / 16) ** 2 + MS)
    assert found.num_bytes < 0.2 * predict(Layout()).num_bytes


def test_where_cores_compute_they_prepare_samples_too():
    run = facts(sample_seconds=MS)
    cores = of_cores(4, GIB)
    one = predict(Layout(), run=run, on=cores)
    two = predict(Layout(backend="multiworker", num_replicas=2), run=run, on=cores)
    shared = predict(Layout(backend="mirrored", num_replicas=2), run=run, on=cores)
    assert one.parts.input == pytest.approx(8 * MS / 4)
    assert two.parts.input == pytest.approx(4 * MS / 2)
    assert shared.parts.input == pytest.approx(2 * 4 * MS / 4)


def test_stages_of_one_process_wait_for_nobody_but_the_cores():
    run, cores = facts(costs={4: [(1, chain_of(1)), (8, chain_of(8))]}), of_cores(4, GIB)
    found = predict(Layout(backend="mirrored", stages=4, micro_batches=8), run=run, on=cores)
    whole = predict(Layout(), run=run, on=cores)
    assert found.parts.bubble == found.parts.imbalance == 0
    assert found.parts.computation == pytest.approx(whole.parts.computation, rel=0.05)


@pytest.mark.parametrize(("seconds", "wait"), [(MS, 0.0), (40 * MS, 87 * MS)])
def test_a_device_waits_for_samples_only_where_cores_are_too_slow(seconds, wait):
    # 4 cores prepare 8 samples of one device; its own work takes 33 ms.
    on = machine(cores=4)
    found = predict(Layout(), run=facts(sample_seconds=1.5 * seconds), on=on)
    assert found.parts.input == pytest.approx(wait)


def test_swapping_copies_what_is_too_much():
    on = machine(memory_bytes=120 * MIB)
    kept = predict(Layout(), on=on)
    found = predict(Layout(swap="120MiB"), on=on)
    assert not kept.fits
    assert found.fits
    assert found.num_bytes == 102 * MIB
    moved = kept.num_bytes - 102 * MIB
    hidden = 0.8 * kept.parts.computation / 2
    assert found.parts.copies == pytest.approx(2 * (moved / 1e9 - hidden))
    # 30 of the 352 MiB of activations cannot stay.
    assert not predict(Layout(swap="40MiB"), on=machine(memory_bytes=40 * MIB)).fits


def test_large_model_support_is_less_sure_between_passes_and_parts_of_one_process_on_cpus():
    tight = {
        "passes": Layout(swap="120MiB", accumulation=2),
        "parts": Layout(backend="mirrored", split=(2, 1), swap="120MiB"),
        "own processes": Layout(backend="multiworker", split=(2, 1), swap="120MiB"),
    }
    cpu = machine(is_cpu=True, cores=2, devices=2, memory_bytes=240 * MIB)
    fits = {name: predict(layout, on=cpu).fits for name, layout in tight.items()}
    assert fits == {"passes": False, "parts": False, "own processes": True}
    assert predict(tight["passes"], on=machine(memory_bytes=120 * MIB)).fits


def test_what_is_less_may_be_computed_again():
    on = machine(memory_bytes=200 * MIB)
    kept, found = predict(Layout(), on=on), predict(Layout(swap="200MiB"), on=on)
    held = kept.num_bytes - 12 * MIB
    share = (kept.num_bytes - 170 * MIB) / held
    assert found.parts.copies == pytest.approx(kept.parts.computation / 3 * share)


def test_beside_states_that_are_shared_out_only_activations_leave():
    run = facts(update=Update(slots=2, seconds=1e-3, zero=1))
    place = Layout(backend="multiworker", num_replicas=4, accumulation=2)
    kept = predict(place, run=run)
    # Weights, and a quarter of two states.
    held = kept.num_bytes - 6 * MIB

    def copies(limit):
        swapped = replace(place, swap=f"{limit}MiB")
        return predict(swapped, run=run, on=machine(memory_bytes=limit * MIB)).parts.copies

    share = (kept.num_bytes - 51 * MIB) / held
    assert copies(60) == pytest.approx(kept.parts.computation / 3 * share)
    # In two passes. States that are not shared out would leave here.
    moved = 2 * (kept.num_bytes - 20.4 * MIB)
    hidden = 0.8 * kept.parts.computation / 2
    assert copies(24) == pytest.approx(2 * (moved / 1e9 - hidden))


@pytest.mark.parametrize(
    ("num_bytes", "limit", "sure"),
    [(100, 100, 0.5), (100, 1000, 1.0), (1000, 100, 0.0), (0, 0, 1.0), (100, 0, 0.0)],
)
def test_how_sure(num_bytes, limit, sure):
    assert how_sure(num_bytes, limit, Doubt(0.0, 0.1)) == pytest.approx(sure, abs=1e-6)


def test_a_fit_is_said_where_95_of_100_fit():
    assert how_sure(100, math.ceil(100 * math.exp(0.05 + 1.645 * 0.1)), Doubt(0.05, 0.1)) >= 0.95
    assert how_sure(100, math.floor(100 * math.exp(0.05 + 1.644 * 0.1)), Doubt(0.05, 0.1)) < 0.95


def test_gradients_come_while_activations_go():
    layers = tuple(
        ChainLayer(name=str(at), kept_bytes=kept, variables={at: Variable(weights, weights)})
        for at, (kept, weights) in enumerate([(10, 1), (5, 20), (2, 4)])
    )
    chain = Chain(layers=layers, tensor_bytes=[])
    # All activations, or those of two layers and 4 of gradients, or of one and 24.
    assert pass_bytes(chain) == 34
    assert pass_bytes(chain, kept_gradients=True) == 34 + 25
    light = Chain(layers=layers[:1] * 1, tensor_bytes=[])
    assert pass_bytes(light) == 10


def test_parts_are_cut_where_a_run_cuts_them():
    assert part_share((64, 64), (2, 1)) == 0.5
    assert part_share((10, 8), (3, 2)) == pytest.approx(4 / 10 / 2)


def test_costs_lie_on_a_line_between_those_that_are_known():
    run = facts(costs={0: [(1, chain_of(1)), (2, chain_of(3))]})  # 1 + 2 (n - 1)
    assert run.chain(3).seconds == pytest.approx(4 * 5 * MS)
    assert run.chain(1).seconds == pytest.approx(4 * MS)
    assert run.chain(0.5).seconds > 0
    assert run.chain(2) is run.chain(2)
