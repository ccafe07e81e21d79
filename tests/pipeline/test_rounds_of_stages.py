"""The rounds in which stages work and exchange."""

from itertools import product

import pytest

from tfunet.pipeline.rounds import ChunkTraffic, rounds
from tfunet.pipeline.schedules import StagePass, forward_half, gpipe, homes, one_f_one_b
from tfunet.pipeline.simulation import training_orders


def chain(num_stages, skip=()):
    """Tensor s goes from stage s to the next one; those of `skip` go to the last stage, too."""
    readers = {
        at: sorted({at + 1, *([num_stages - 1] if at in skip else [])})
        for at in range(num_stages - 1)
    }
    return ChunkTraffic(makers={at: at for at in readers}, readers=readers, trained=set(readers))


def drawn(made, num_stages):
    letters = "abcdefgh"
    return [
        "|".join(
            "".join(
                str(action.micro_batch) if action.kind == "forward" else letters[action.micro_batch]
                for action in turn.actions[stage]
            )
            for turn in made
        )
        for stage in range(num_stages)
    ]


@pytest.mark.parametrize(
    ("orders", "expected"),
    [
        (gpipe(2, 3), ["0|1|2||a|b|c", "|0|1|2a|b|c|"]),
        (one_f_one_b(2, 3), ["0|1||a2|b|c", "|0|a|1b|2c|"]),
        (forward_half(one_f_one_b(3, 4), 2), ["0|1||", "|0|1|", "||0|1"]),
    ],
)
def test_stages_work_until_one_of_them_has_something_to_send(orders, expected):
    made = rounds(orders, chain(len(orders)))
    assert drawn(made, len(orders)) == expected


@pytest.mark.parametrize(
    ("orders", "num_stages", "count"),
    [(make, p, m) for make, p, m in product((gpipe, one_f_one_b), (2, 3, 4), (1, 3, 4))],
)
def test_every_pass_has_what_it_reads_and_nothing_is_sent_twice(orders, num_stages, count):
    traffic = chain(num_stages, skip=[0])
    order = orders(num_stages, count)
    arrived, done = set(), [[] for _ in range(num_stages)]
    for turn in rounds(order, traffic):
        for stage, actions in enumerate(turn.actions):
            for action in actions:
                assert arrived.issuperset(traffic.needs(action))
                done[stage].append(action)
        made = [
            message for actions in turn.actions for act in actions for message in traffic.sends(act)
        ]
        assert sorted(made) == sorted(turn.messages)
        assert arrived.isdisjoint(turn.messages)
        arrived.update(turn.messages)
    assert tuple(map(tuple, done)) == order


def test_stages_that_wait_for_each_other_are_named():
    turned = (
        (StagePass("backward", 0, 0), StagePass("forward", 0, 0)),
        (StagePass("forward", 1, 0),),
    )
    with pytest.raises(ValueError, match="for ever"):
        rounds(turned, chain(2))


@pytest.mark.parametrize(("num_devices", "count"), list(product((1, 2, 3), (1, 4, 8))))
def test_what_goes_between_two_chunks_of_a_device_is_not_sent(num_devices, count):
    devices = homes("v", num_devices)
    traffic = chain(len(devices), skip=[0])
    orders = training_orders("v", num_devices, count, traffic.crossing)
    done, sent = [[] for _ in orders], []
    for turn in rounds(orders, traffic, devices):
        for device, actions in enumerate(turn.actions):
            done[device] += actions
        sent += turn.messages
    assert tuple(map(tuple, done)) == orders
    assert len(sent) == len(set(sent))
    # The skip from the first chunk to the last stays on the first device.
    assert {devices[message.sender] == devices[message.receiver] for message in sent} <= {False}
    assert len(sent) == 2 * count * (2 * num_devices - 2)
