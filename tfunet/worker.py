"""One process of a run, as the supervisor starts it: `python -m tfunet.worker FOLDER`."""

import json
import os
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path

from tfunet import exit_codes
from tfunet.backend import BACKENDS, Launch
from tfunet.cores import pin_and_limit
from tfunet.record import RunFolder
from tfunet.refs import call, resolve

LAUNCH_VARIABLE = "TFUNET_LAUNCH"


def launch_from(environment: Mapping[str, str]) -> Launch:
    """Return what the supervisor told this process; alone, it is a run of one process."""
    values = json.loads(environment.get(LAUNCH_VARIABLE, "{}"))
    if "addresses" in values:
        values["addresses"] = tuple(values["addresses"])
    return Launch(**values)


def work(path: Path) -> None:
    """Train as the folder's config.json says."""
    config = RunFolder(path).read_config()
    if config is None:
        raise ValueError(f"{path} has no config.json. Start a run with `tfunet train --out`.")
    import tensorflow as tf

    # The variables of tfunet.cores reach only a part of TensorFlow's pools.
    num_threads = len(os.sched_getaffinity(0))
    tf.config.threading.set_intra_op_parallelism_threads(num_threads)
    tf.config.threading.set_inter_op_parallelism_threads(num_threads)
    from tfunet.train import run

    launch = launch_from(os.environ)
    make = resolve("backend", config.backend, BACKENDS)
    run(config, call("backend", make, config.backend_options, launch=launch), path)


def _is_ours(error: BaseException) -> bool:
    """Whether the project raised it, with a message for the user; not a library inside."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    module = frames[-1].f_globals.get("__name__", "") if frames else ""
    return module.split(".")[0] in ("tfunet", "tf_native", "hvd")


def main() -> None:
    """Run, and end the process with a documented exit code."""
    pin_and_limit()
    code = exit_codes.OK
    try:
        work(Path(sys.argv[1]))
    except BaseException as error:  # Also SystemExit: a run that leaves early has no result.
        code = exit_codes.of_error(error) or exit_codes.PROCESS_DIED
        if code == exit_codes.PROCESS_DIED or not _is_ours(error):
            traceback.print_exc()
        if code != exit_codes.PROCESS_DIED:
            print(f"error: {error}", file=sys.stderr)
    sys.stdout.flush()
    sys.stderr.flush()
    # Not sys.exit: after an error the libraries' own clean-up waits for processes that are gone.
    os._exit(code)


if __name__ == "__main__":
    main()
