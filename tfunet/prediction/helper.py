"""A device of `tfunet predict` beside the first; see `devices`.

Run as `python -m tfunet.prediction.helper INDEX`. Each line of its standard input has the arguments
of a call of `predict` as JSON.
"""

import json
import sys
from pathlib import Path

from tfunet.machine.cores import usable_cores
from tfunet.prediction.devices import take_device
from tfunet.prediction.options import Options
from tfunet.prediction.run import predict


def main(index: int) -> None:
    """Take part in every prediction until the main process ends."""
    take_device(index, len(usable_cores()))
    for line in sys.stdin:
        call = json.loads(line)
        run, out = (Path(call.pop(name)) for name in ("run", "out"))
        given = call.pop("options")
        options = Options(**{**given, "ensemble": tuple(map(Path, given["ensemble"]))})
        predict(run, call.pop("images"), out, options, is_helper=True, **call)


if __name__ == "__main__":
    main(int(sys.argv[1]))
