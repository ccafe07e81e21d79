"""One process of a script: `python -m tfunet.fit.script SCRIPT ARGUMENTS ...`.

The script runs as `python SCRIPT ARGUMENTS ...` would run it.
"""

import builtins
import contextlib
import os
import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType, TracebackType
from typing import NoReturn

from tfunet import exit_codes
from tfunet.fit import joined
from tfunet.machine.cores import pin_and_limit
from tfunet.machine.environment import DEFAULTS
from tfunet.process.terminal import lines_of
from tfunet.process.watchdog import dump_stacks_when_asked

NOT_JOINED = (
    "error: {script} never called tfunet.distribute(), so nothing was trained on {count} devices "
    "together. Call it after the imports of the script."
)
# How Python ends after an exception.
FAILED = 1


def run_script(script: str, arguments: list[str]) -> None:
    """Run a script to its end; SystemExit if it ends with another exit code than 0.

    One of several processes ends at once where its script fails: what libraries do at the end waits
    for processes that are gone.
    """
    dump_stacks_when_asked()
    pin_and_limit()
    for name, value in DEFAULTS.items():
        os.environ.setdefault(name, value)
    joined.prepare()
    num_processes, num_replicas = joined.what_was_started()
    sys.argv = [script, *arguments]
    if not sys.flags.safe_path:
        sys.path[0] = str(Path(script).resolve().parent)
    code = _code_of(script)
    if code == exit_codes.OK and num_replicas > 1 and not joined.is_joined():
        print(NOT_JOINED.format(script=lines_of(script), count=num_replicas), file=sys.stderr)
        code = exit_codes.BAD_INPUT
    if code == exit_codes.OK:
        return
    if num_processes == 1:
        raise SystemExit(code)
    _end(code)


def _code_of(script: str) -> int:
    """Run the script, show its exception, and return the exit code."""
    path = os.path.abspath(script)
    loader = SourceFileLoader("__main__", path)
    # Not runpy: it takes the module away at the end, before what the script registered for then.
    module = ModuleType("__main__")
    vars(module).update(__file__=path, __loader__=loader, __builtins__=builtins)
    sys.modules["__main__"] = module
    try:
        exec(loader.source_to_code(loader.get_data(path), path), vars(module))
    except SystemExit as error:
        if error.code is None or isinstance(error.code, int):
            return (error.code or 0) & 0xFF
        print(error.code, file=sys.stderr)
        return FAILED
    except BaseException as error:
        own = _own_part(error, path)
        if isinstance(error, ValueError | ConnectionError) and exit_codes.is_ours(error):
            where = f" ({script}, line {own.tb_lineno})" if own is not None else ""
            print(f"error: {lines_of(error)}{lines_of(where)}", file=sys.stderr)
            return exit_codes.of_error(error) or exit_codes.PROCESS_DIED
        sys.excepthook(type(error), error.with_traceback(own), own)
        # So ends a step in which another process is missing.
        is_of_step = type(error).__module__.partition(".")[0] in ("tensorflow", "horovod")
        if is_of_step and (lost := joined.lost()):
            print(f"error: {lines_of(lost)}", file=sys.stderr)
        is_interrupted = isinstance(error, KeyboardInterrupt)
        return exit_codes.INTERRUPTED if is_interrupted else FAILED
    return exit_codes.OK


def _own_part(error: BaseException, path: str) -> TracebackType | None:
    """Return the traceback from the script's first frame on; None if it has none."""
    part = error.__traceback__
    while part is not None and part.tb_frame.f_code.co_filename != path:
        part = part.tb_next
    return part


def _end(code: int) -> NoReturn:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # The script may have closed it.
            stream.flush()
    os._exit(code)


if __name__ == "__main__":
    run_script(sys.argv[1], sys.argv[2:])
