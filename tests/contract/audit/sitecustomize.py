"""Notes every file that a process opens for writing or moves; Python imports this at its start."""

import json
import os
import sys

WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC


def note(event, arguments):
    if event == "open":
        path, mode, flags = arguments
        written = path if (mode and set(mode) & set("wax+")) or (flags & WRITING) else None
    elif event == "os.rename":
        written = arguments[1]
    else:
        return
    if isinstance(written, str) and os.environ["TFUNET_TEST_AUDITED"] in written:
        line = f"{index} {written}\n".encode()
        os.write(log, line)


if "TFUNET_TEST_AUDIT" in os.environ and "TFUNET_LAUNCH" in os.environ:
    index = json.loads(os.environ["TFUNET_LAUNCH"])["process_index"]
    log = os.open(os.environ["TFUNET_TEST_AUDIT"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    sys.addaudithook(note)
