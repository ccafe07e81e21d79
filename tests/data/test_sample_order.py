"""The order of samples: integer arithmetic, the same for any number of replicas."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tfunet.data.sample_order import epoch_spans, fed_position, steps_per_epoch

COUNTS = st.integers(1, 6)


@pytest.mark.parametrize(
    ("num_samples", "global_batch", "steps"), [(8, 8, 1), (9, 8, 1), (15, 8, 1), (16, 8, 2)]
)
def test_the_tail_that_fills_no_step_is_dropped(num_samples, global_batch, steps):
    assert steps_per_epoch(num_samples, global_batch) == steps


def test_fewer_samples_than_one_step_needs_say_what_to_do():
    with pytest.raises(ValueError, match=r"7 training samples.*global_batch=8.*Use fewer repl"):
        steps_per_epoch(7, 8)


def test_a_batch_of_nothing_is_refused():
    with pytest.raises(ValueError, match="at least 1, got 0"):
        steps_per_epoch(7, 0)


@settings(max_examples=100)
@given(step=st.integers(0, 20), replica_batch=COUNTS, num_replicas=st.integers(1, 9))
def test_replicas_share_a_step_without_gap_or_overlap(step, replica_batch, num_replicas):
    taken = [
        position
        for replica in range(num_replicas)
        for element in range(step * replica_batch, (step + 1) * replica_batch)
        for position in [
            fed_position(
                element,
                range(replica, replica + 1),
                replica_batch=replica_batch,
                num_replicas=num_replicas,
            )
        ]
    ]
    global_batch = replica_batch * num_replicas
    assert taken == list(range(step * global_batch, (step + 1) * global_batch))


@settings(max_examples=100)
@given(
    first=st.integers(0, 8),
    count=st.integers(1, 9),
    after=st.integers(0, 8),
    replica_batch=COUNTS,
    steps=COUNTS,
)
def test_a_process_feeds_the_positions_of_its_replicas(first, count, after, replica_batch, steps):
    num_replicas = first + count + after
    replicas = range(first, first + count)
    batch = {"replica_batch": replica_batch, "num_replicas": num_replicas}
    fed = [
        fed_position(element, replicas, **batch) for element in range(steps * count * replica_batch)
    ]
    assert fed == [
        position
        for step in range(steps)
        for replica in replicas
        for first_position in [(step * num_replicas + replica) * replica_batch]
        for position in range(first_position, first_position + replica_batch)
    ]


@settings(max_examples=100)
@example(first=1, more=0, steps=3)  # nothing left to do in the middle of an epoch
@given(first=st.integers(0, 30), more=st.integers(0, 30), steps=COUNTS)
def test_spans_hold_every_step_of_the_run_once_and_in_order(first, more, steps):
    spans = epoch_spans(first, first + more, steps)
    walked = [(epoch, step) for epoch, begin, end in spans for step in range(begin, end)]
    assert walked == [divmod(step, steps) for step in range(first, first + more)]
    assert all(begin < end for _, begin, end in spans)
