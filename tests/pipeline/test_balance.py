"""Cuts of a chain of layers: exact, within memory, and what cannot be cut."""

import itertools
import random
from dataclasses import replace

import pytest

from tfunet.pipeline.balance import NoBalanceError, balance, v_balance
from tfunet.pipeline.chain import Chain, ChainLayer, Variable


def chain(seconds, **columns):
    """Return a chain of layers, each of which reads what the one before makes."""
    layers = tuple(
        ChainLayer(
            name=f"layer{at}",
            forward_seconds=duration / 3,
            backward_seconds=2 * duration / 3,
            reads=(at,),
            makes=(at + 1,),
            **{name: column[at] for name, column in columns.items()},
        )
        for at, duration in enumerate(seconds)
    )
    return Chain(layers=layers, tensor_bytes=[1] * (len(seconds) + 1), inputs=frozenset([0]))


def random_chain(seed):
    """Return a chain with skips, shared variables and memory."""
    draw = random.Random(seed)
    size = draw.randint(4, 9)
    layers = []
    for at in range(size):
        skips = {tensor for tensor in range(at) if draw.random() < 0.2}
        variables = {at: Variable(draw.randint(0, 9), draw.randint(0, 9))}
        if draw.random() < 0.15:
            variables[draw.randint(0, at)] = Variable(3, 3)
        layers.append(
            ChainLayer(
                name=f"layer{at}",
                forward_seconds=draw.choice([0.0, 1.0, 2.0, draw.random()]),
                backward_seconds=draw.random(),
                reads=(at, *sorted(skips)),
                makes=(at + 1,),
                keeps=frozenset(tensor for tensor in (at, at + 1) if draw.random() < 0.5),
                kept_bytes=draw.randint(0, 5),
                working_bytes=draw.randint(0, 20),
                variables=variables,
            )
        )
    sizes = [draw.randint(1, 20) for _ in range(size + 1)]
    return Chain(layers=tuple(layers), tensor_bytes=sizes, inputs=frozenset([0]))


def all_cuts(network, parts):
    size = len(network.layers)
    allowed = [cut for cut in range(1, size) if cut not in network.shared]
    return [(0, *cuts, size) for cuts in itertools.combinations(allowed, parts - 1)]


def lengths(found):
    return [end - begin for begin, end in itertools.pairwise(found.cuts)]


# The costs of torchgpipe's tests of its block partition and of its balance by time and by size.
@pytest.mark.parametrize(
    ("costs", "expected"),
    [
        ([1, 2, 3, 4, 5, 6], [4, 2]),
        ([6, 5, 4, 3, 2, 1], [2, 4]),
        ([0, 0], [1, 1]),
        ([0.01, 0.02, 0.03, 0.04, 0.05, 0.06], [4, 2]),
    ],
)
def test_torchgpipes_partitions(costs, expected):
    assert lengths(balance(chain(costs), 2)) == expected


@pytest.mark.parametrize(
    ("costs", "stages", "words"),
    [
        ([42], 2, "1 layers can be cut into at most 1 stages. Got 2"),
        ([], 1, "at most 0 stages"),
        ([1, 2], 0, "at least 1 stage"),
        ([1, 2], -1, "at least 1 stage"),
    ],
)
def test_stages_that_cannot_be_are_refused(costs, stages, words):
    with pytest.raises(NoBalanceError, match=words):
        balance(chain(costs), stages)


@pytest.mark.parametrize("seed", range(60))
def test_no_cut_is_better(seed):
    network = random_chain(seed)
    most = len(network.layers) - len(network.shared)
    for parts in range(1, min(most, 4) + 1):
        for limit in (None, 40, 60):
            live = [parts - stage for stage in range(parts)]

            def fits(cuts, live=live, limit=limit):
                stages = network.stages(cuts)
                needs = [
                    stage.memory_bytes(number) for stage, number in zip(stages, live, strict=True)
                ]
                return limit is None or max(needs) <= limit

            cuts = [cut for cut in all_cuts(network, parts) if fits(cut)]
            if not cuts:
                with pytest.raises(NoBalanceError, match="the largest needs"):
                    balance(network, parts, live=live, memory_bytes=limit)
                continue
            found = balance(network, parts, live=live, memory_bytes=limit)
            slowest = [max(part.seconds for part in network.stages(each)) for each in cuts]
            assert max(found.seconds) == pytest.approx(min(slowest), rel=1e-12)
            assert fits(found.cuts)

            def traffic(each):
                return sum(sum(stage.receives.values()) for stage in network.stages(each))

            as_good = [
                each
                for each, seconds in zip(cuts, slowest, strict=True)
                if seconds <= min(slowest) * (1 + 1e-12)
            ]
            assert traffic(found.cuts) == min(map(traffic, as_good))


@pytest.mark.parametrize("seed", range(60))
def test_no_cut_is_better_where_stages_recompute(seed):
    network = random_chain(seed)
    most = len(network.layers) - len(network.shared)
    for parts in range(2, min(most, 4) + 1):
        live = [parts - stage for stage in range(parts)]
        shares = [*[1.0] * (parts - 1), 0.0]

        def memory(cuts, live=live, shares=shares):
            stages = network.stages(cuts)
            return max(
                stage.memory_bytes(number, recompute=share > 0)
                for stage, number, share in zip(stages, live, shares, strict=True)
            )

        def slowest(cuts, shares=shares):
            stages = network.stages(cuts)
            return max(
                stage.seconds + share * stage.forward_seconds
                for stage, share in zip(stages, shares, strict=True)
            )

        for limit in (None, 40, 60):
            given = {"live": live, "memory_bytes": limit, "recomputed": shares}
            cuts = [
                cut for cut in all_cuts(network, parts) if limit is None or memory(cut) <= limit
            ]
            if not cuts:
                least = min(memory(cut) for cut in all_cuts(network, parts)) / 2**20
                with pytest.raises(NoBalanceError, match=f"needs {least:,.0f} MiB.*recompute"):
                    balance(network, parts, **given)
                continue
            found = balance(network, parts, **given)
            assert max(found.seconds) == pytest.approx(min(map(slowest, cuts)), rel=1e-12)
            assert limit is None or memory(found.cuts) <= limit


def test_a_longer_stage_that_recomputes_may_take_less():
    network = replace(chain([1, 1, 1, 3]), tensor_bytes=[1, 1, 100, 1, 1])
    shares = [1.0, 1.0, 0.0]
    # A second stage that began at the third layer would keep 100 bytes of what it is given.
    found = balance(network, 3, live=[3, 2, 1], memory_bytes=50, recomputed=shares)
    assert found.cuts == (0, 1, 3, 4)


@pytest.mark.parametrize("seed", range(60))
def test_no_folded_cut_is_better(seed):
    network = random_chain(seed)
    for devices in (1, 2, 3):
        for limit in (None, 60, 100):
            best = []
            for cuts in all_cuts(network, 2 * devices):
                parts = network.stages(cuts)
                pairs = list(zip(parts, reversed(parts), strict=True))[:devices]
                needs = [first.memory_bytes(2) + second.memory_bytes(2) for first, second in pairs]
                if limit is None or max(needs) <= limit:
                    best.append(max(first.seconds + second.seconds for first, second in pairs))
            if not best:
                with pytest.raises(NoBalanceError):
                    v_balance(network, devices, live=2, memory_bytes=limit)
                continue
            found = v_balance(network, devices, live=2, memory_bytes=limit)
            assert max(found.seconds) == pytest.approx(min(best), rel=1e-8)
            assert found.devices == (*range(devices), *reversed(range(devices)))


def test_what_shares_a_variable_stays_on_one_device():
    tied = Variable(1, 4)
    network = chain([1, 1, 1, 1], variables=[{0: tied}, {1: tied}, {0: tied}, {2: tied}])
    assert balance(network, 2).cuts == (0, 3, 4)
    with pytest.raises(NoBalanceError, match="at most 2 stages: what shares the variables of lay"):
        balance(network, 3)
    assert balance(network, 2).imbalance == 1.5
    # The shared variable is there once: weight, gradient and two averages of each.
    assert network.stage(0, 3).fixed_bytes == 2 * 4 * 4


def test_a_skip_goes_straight_to_where_it_is_read():
    layers = [
        ChainLayer(name="a", reads=(0,), makes=(1,)),
        ChainLayer(name="b", reads=(1,), makes=(2,)),
        ChainLayer(name="c", reads=(2,), makes=(3,)),
        ChainLayer(name="d", reads=(3, 1), makes=(4,)),
    ]
    network = Chain(layers=tuple(layers), tensor_bytes=[9, 5, 1, 1, 1], inputs=frozenset([0]))
    assert [dict(stage.receives) for stage in network.stages((0, 1, 2, 3, 4))] == [
        {},
        {1: 5},
        {2: 1},
        {1: 5, 3: 1},
    ]
