"""Where the trainers of a population compute on one machine."""

from collections.abc import Sequence

from tfunet.config.run import RunConfig
from tfunet.config.tournament import read_tournament


def places(config: RunConfig, cores: Sequence[int]) -> list[tuple[int, ...]]:
    """Return the cores of each place. Trainer i has place i modulo their number.

    Where there are fewer places than trainers, those of a place take turns.
    """
    tournament = read_tournament(config.tournament)
    trainers = 1 if tournament is None else tournament.trainers
    if config.cores_per_replica:
        width = config.cores_per_replica * config.num_devices
    else:
        width = max(config.num_devices, len(cores) // trainers)
    count = max(1, min(trainers, len(cores) // width))
    return [tuple(cores[place * width : (place + 1) * width]) for place in range(count)]
