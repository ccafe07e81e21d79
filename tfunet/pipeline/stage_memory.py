"""The most memory that each device of a pipeline takes in a step, and all the time. Pure."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tfunet.pipeline.chain import Chain, Stage
from tfunet.pipeline.rounds import ChunkTraffic, Message, Round

# Two devices that exchange gather what both send, filled up to one length (multiworker).
EXCHANGE_COPIES = 3


def stage_memory(
    chain: Chain,
    cuts: Sequence[int],
    plan: Sequence[Round],
    *,
    traffic: ChunkTraffic,
    homes: Sequence[int],
    recomputed: Mapping[int, Collection[int]],
    batch_bytes: int,
) -> list[int]:
    """Return the bytes of each device: weights with what belongs to them, batch, and a step's peak.

    Args:
        chain: Costs of a micro-batch.
        plan: The rounds of a step.
        homes: The device of each chunk.
        recomputed: The micro-batches that each chunk runs again.
        batch_bytes: Size of the whole batch, which every device is fed, and holds through a step.
    """
    # Micro-batches are views of the batch.
    sizes = [0 if at in chain.inputs else size for at, size in enumerate(chain.tensor_bytes)]
    stages = replace(chain, tensor_bytes=sizes).stages(cuts)
    return [
        sum(stage.weight_bytes for stage, home in zip(stages, homes, strict=True) if home == device)
        + batch_bytes
        + _peak_bytes(device, stages, sizes, plan, traffic, homes, recomputed)
        for device in range(max(homes) + 1)
    ]


def _peak_bytes(
    device: int,
    stages: Sequence[Stage],
    sizes: Sequence[int],
    plan: Sequence[Round],
    traffic: ChunkTraffic,
    homes: Sequence[int],
    recomputed: Mapping[int, Collection[int]],
) -> int:
    """Return the most bytes that a device holds in a step; `sizes` are those of tensors."""
    held: dict[tuple[int, int], int] = {}
    waiting: dict[Message, int] = {}
    peak = 0
    for turn in plan:
        sent = 0
        for action in turn.actions[device]:
            chunk, number = action.chunk, action.micro_batch
            given = sum(waiting.pop(message) for message in traffic.needs(action))
            if action.kind == "forward":
                is_again = number in recomputed.get(chunk, ())
                stage = stages[chunk]
                held[chunk, number] = stage.input_bytes if is_again else stage.kept_bytes
            else:
                del held[chunk, number]
                at_work = stages[chunk].kept_bytes + stages[chunk].working_bytes + given
                peak = max(peak, _sum(held, waiting) + sent + at_work)
            for message in traffic.sends(action):
                if homes[message.receiver] == device:
                    waiting[message] = sizes[message.tensor]
                else:
                    sent += sizes[message.tensor]
        peak = max(peak, _sum(held, waiting) + _buffer_bytes(device, turn, sizes, homes))
        waiting |= {
            message: sizes[message.tensor]
            for message in turn.messages
            if homes[message.receiver] == device
        }
        peak = max(peak, _sum(held, waiting))
    return peak


def _buffer_bytes(device: int, turn: Round, sizes: Sequence[int], homes: Sequence[int]) -> int:
    """Return the bytes in which the messages of a round are gathered."""
    crossing: dict[int, list[int]] = {}
    for message in turn.messages:
        sender, receiver = homes[message.sender], homes[message.receiver]
        if device in (sender, receiver):
            both = crossing.setdefault(sender + receiver - device, [0, 0])
            both[receiver == device] += sizes[message.tensor]
    return sum(EXCHANGE_COPIES * max(both) for both in crossing.values())


def _sum(*sizes: Mapping[Any, int]) -> int:
    return sum(sum(table.values()) for table in sizes)
