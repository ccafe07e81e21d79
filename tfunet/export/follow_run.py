"""Follows a run for a tracker: python -m tfunet.export.follow_run TRACKER FOLDER

The run starts it as a process of its own, and closes its standard input when it ends.
"""

import os
import select
import signal
import sys
from pathlib import Path

from tfunet.export.tracked_run import TrackedRun, Tracker
from tfunet.export.trackers import open_tracked
from tfunet.files.printable import printable

LOOK_SECONDS = 1.0
# After the run has ended. The run itself waits a little shorter.
END_SECONDS = 15


def follow(run: TrackedRun, to: Tracker) -> None:
    """Tell a tracker of a run until its standard input is closed."""
    is_over = False
    while not is_over:
        ready, _, _ = select.select([sys.stdin], [], [], LOOK_SECONDS)
        is_over = bool(ready) and not os.read(sys.stdin.fileno(), 1)
        if is_over:
            signal.alarm(END_SECONDS)  # Ends this process.
        run.tell(to, is_over=is_over)


def main() -> int:
    """Follow a run; the last line of standard error says what went wrong."""
    tracker, folder = sys.argv[1], Path(sys.argv[2])
    os.nice(19)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # The run says when it has ended.
    try:
        follow(*open_tracked(tracker, folder))
    except Exception as error:
        text = " ".join(str(error).split()) or type(error).__name__
        print(printable(text), file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    code = main()
    sys.stderr.flush()
    # Not sys.exit: a library's clean-up may wait for a server that is gone.
    os._exit(code)
