"""Runs scripts with Keras's fit on all backends, and compares each with one device.

    make check-fit
    python benchmarks/check_fit.py --only vae gan --backends horovod --out build/check-fit

The scripts are in fit/. Each runs with plain `python`, then with `tfunet run` on two replicas. With
--out, what has ended well is kept, and the same command goes on until the code changes.
"""

import argparse
import contextlib
import csv
import dataclasses
import functools
import hashlib
import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from saved_weights import saved_weights

from tfunet.machine.environment import DEFAULTS

HERE = Path(__file__).resolve()
ROOT = HERE.parents[1]
PAGE = ROOT / "docs/check-fit.md"
ALONE = "one device"
# By backend: the number of processes that two replicas have.
PROCESSES = {"horovod": 2, "multiworker": 2, "mirrored": 1}
KINDS = ("losses", "metrics", "evaluate", "predict", "weights")
# With SGD, what two ways to add up the same gradient differ by stays rounding: with and without
# oneDNN, which round differently, one device differs from itself by less than this.
BOUND = 1e-6
# Numbers of tensors that are smaller, such as biases, are sums of terms that cancel: rounding is
# that of the terms.
LEAST = 0.1
# Adam divides a gradient by its own size, so rounding of the smallest ones is not small.
ADAM_BOUND = 1e-4
# Gradients have 11 or 8 bits, and the gradient of a part of a batch is rounded to them before it is
# added. A step changes a weight by less than a tenth.
HALF_BOUND = 1e-3
BFLOAT_BOUND = 1e-2
SECONDS = 400.0
ENDING_SECONDS = 30.0
MOST_LETTERS = 160
HEAD = """# Scripts with fit against one device

`make check-fit` writes this page. It runs scripts with Keras's `fit`
(`benchmarks/fit`) with plain `python`, and with `tfunet run` on two replicas of
each backend. All have the same global batches. A number is the largest difference from one device,
relative to the largest number of the array:

- **losses**, **metrics**: of each epoch, in training and validation.
- **evaluate**, **predict**, **weights**: after the last epoch.
- **processes**: **equal** if all processes have the same bits in all of these.
- **files**: **once** if there are the files of one device, with the same rows and weights, and each
  line of the progress is printed once.

Differences may be {bound:g}; {others}.

"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Script:
    """A script of fit/, the options it needs, and how much its numbers may differ."""

    file: str
    options: tuple[str, ...] = ()
    bound: float = BOUND


def variation(name, bound=BOUND):
    """Return the script of a variation."""
    return Script(file="variations.py", options=("--variation", name), bound=bound)


SCRIPTS = {
    **{
        name: Script(file=f"{name}.py")
        for name in (
            "mnist_classifier",
            "image_classifier",
            "text_transformer",
            "autoencoder",
            "vae",
            "gan",
            "timeseries",
            "unet",
            "weighted_regression",
            "preprocessing",
        )
    },
    "adam": variation("adam", ADAM_BOUND),
    "steps_per_execution": variation("steps_per_execution"),
    "run_eagerly": variation("run_eagerly"),
    "float16": variation("float16", HALF_BOUND),
    "bfloat16": variation("bfloat16", BFLOAT_BOUND),
    "train_on_batch": variation("train_on_batch"),
    "generator": variation("generator"),
    "infinite": variation("infinite"),
    "jit_compile": variation("jit_compile"),
    "sum_of_losses": variation("sum_of_losses"),
    "clipped": variation("clipped"),
    "own_callback": variation("own_callback"),
}


def kind_of(name):
    """Return the column of a recorded array."""
    group, _, rest = name.partition("/")
    if group == "history":
        return "losses" if rest.endswith("loss") else "metrics"
    return group


def apart(ours, theirs):
    """Return how far two arrays are apart, relative to the largest number; infinite if unlike."""
    if ours.shape != theirs.shape or ours.dtype.kind != theirs.dtype.kind:
        return float("inf")
    if ours.dtype.kind not in "fiu":
        return 0.0 if np.array_equal(ours, theirs) else float("inf")
    if not ours.size:
        return 0.0
    ours, theirs = ours.astype("float64"), theirs.astype("float64")
    share = np.abs(ours - theirs).max() / max(LEAST, np.abs(theirs).max())
    return float(share) if np.isfinite(share) else float("inf")


def differences(ours, theirs):
    """Return for each column the largest difference, and None where neither has such numbers."""
    found = dict.fromkeys(KINDS)
    for name in {**ours, **theirs}:
        kind = kind_of(name)
        both = name in ours and name in theirs
        share = apart(ours[name], theirs[name]) if both else float("inf")
        found[kind] = max(found[kind] or 0.0, share)
    return found


def first_unequal(processes):
    """Return the name of the first array whose bits differ between processes, None if none does."""
    first = processes[0]
    for other in processes[1:]:
        for name in {**first, **other}:
            if name not in first or name not in other:
                return name
            if first[name].dtype != other[name].dtype:
                return name
            if first[name].tobytes() != other[name].tobytes():
                return name
    return None


def results(folder):
    """Return what each process has recorded."""
    found = []
    for file in sorted(folder.glob("result-*.npz")):
        with np.load(file) as arrays:
            found.append(dict(arrays))
    return found


def written(folder):
    """Return the files of a script, by a name that is the same in each run."""
    found = {}
    for file in sorted(folder.rglob("*")):
        name = str(file.relative_to(folder))
        if file.is_file() and not name.startswith("result-"):
            # TensorBoard's names end with the second, the machine and the process.
            plain = re.sub(r"(events\.out\.tfevents)\..*", r"\1", name)
            found.setdefault(plain, []).append(file)
    return found


def numbers_of(text):
    """Return the numbers of a cell as an array; of a text, its characters."""
    try:
        return np.array(float(text))
    except ValueError:
        return np.array(text)


def file_fault(ours, theirs, bound):
    """Return what is wrong with the files of a run; None if they are those of one device."""
    for name in {**ours, **theirs}:
        count, right = len(ours.get(name, ())), len(theirs.get(name, ()))
        if count != right:
            return f"{count} of {name}, not {right}"
    for name, (file, *_) in theirs.items():
        mine = ours[name][0]
        if name.endswith((".csv", ".txt")):
            delimiter = "," if name.endswith(".csv") else " "
            rows, right = (
                list(csv.reader(one.read_text().splitlines(), delimiter=delimiter))
                for one in (mine, file)
            )
            if [len(row) for row in rows] != [len(row) for row in right]:
                return f"{len(rows)} rows in {name}, not {len(right)}"
            pairs = zip(itertools.chain(*rows), itertools.chain(*right), strict=True)
            share = max(apart(numbers_of(one), numbers_of(two)) for one, two in pairs)
        elif name.endswith(".keras"):
            mine, right = saved_weights(mine), saved_weights(file)
            if mine.keys() != right.keys():
                return f"other weights in {name}"
            share = max(apart(mine[key], right[key]) for key in right)
        else:
            continue
        if share > bound:
            return f"{name} differs by {share:.0e}"
    return None


def progress_fault(ours, theirs):
    """Return what is wrong with the printed epochs; None if they are those of one device."""
    # Where there are several processes, a line begins with the number of its own.
    printed, right = (
        re.findall(r"^(?:\[\d+\] )?(Epoch .*)", text, re.MULTILINE) for text in (ours, theirs)
    )
    return None if printed == right else f"{len(printed)} epochs printed, not {len(right)}"


def row_of(script, folder, alone, processes):
    """Return the cells of a run after its name and backend, and its faults."""
    mine, right = results(folder / "out"), results(alone / "out")
    if len(mine) != processes:
        fault = f"{len(mine)} processes recorded a result, not {processes}"
        return [*["-"] * len(KINDS), fault, "-"], [fault]
    shares = differences(mine[0], right[0])
    faults = [f"{kind} differ" for kind, share in shares.items() if (share or 0) > script.bound]
    unequal = first_unequal(mine)
    file = file_fault(written(folder / "out"), written(alone / "out"), script.bound)
    text, expected = ((one / "output.txt").read_text() for one in (folder, alone))
    file = file or progress_fault(text, expected)
    faults += [f"processes differ in {unequal}"] if unequal else []
    faults += [file] if file else []
    cells = ["-" if shares[kind] is None else f"{shares[kind] or 0:.0e}" for kind in KINDS]
    bits = f"**differ**: {unequal}" if unequal else "equal" if processes > 1 else "one"
    return [*cells, bits, f"**{file}**" if file else "once"], faults


def command(script, backend):
    """Return the command of a run, without its folder."""
    launch = () if backend == ALONE else ("-m", "tfunet", "run", "--backend", backend)
    replicas = () if backend == ALONE else ("--num_replicas", "2")
    return [sys.executable, *launch, *replicas, str(HERE.with_name("fit") / script.file)]


@functools.cache
def version():
    """Return a hash of the code that runs: what was computed by other code is computed again."""
    found = hashlib.sha256()
    for folder in ("tfunet", "tf_native", "hvd", "benchmarks/fit"):
        for file in sorted((ROOT / folder).rglob("*.py")):
            found.update(file.read_bytes())
    return found.hexdigest()


def run_script(script, backend, folder, seconds=SECONDS):
    """Run a script once, and return its exit code; a run that has ended well is kept."""
    told, now = folder / "ended.json", version()
    if told.exists():
        kept = json.loads(told.read_text())
        if kept["code"] == 0 and kept["version"] == now:
            return 0
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    places = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**DEFAULTS, **os.environ, "PYTHONPATH": os.pathsep.join(places)}
    arguments = [*command(script, backend), *script.options, "--out", str(folder / "out")]
    since = time.perf_counter()
    with (folder / "output.txt").open("w") as output, (folder / "errors.txt").open("w") as errors:
        process = subprocess.Popen(
            arguments,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=errors,
            start_new_session=True,
        )
        code = ended(process, seconds)
    seconds = time.perf_counter() - since
    told.write_text(json.dumps({"code": code, "seconds": seconds, "version": now}))
    return code


def ended(process, seconds):
    """Wait for a process and return its exit code; end its group where it takes too long."""
    try:
        for sent in (None, signal.SIGTERM, signal.SIGKILL):
            if sent is not None:
                os.killpg(process.pid, sent)
            with contextlib.suppress(subprocess.TimeoutExpired):
                return process.wait(seconds if sent is None else ENDING_SECONDS)
    finally:
        # An error here, or Ctrl-C, leaves none of it at work.
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    return process.wait()


def last_words(folder):
    """Return the error of a run, or the last line that it has written to standard error."""
    text = (folder / "errors.txt").read_text()
    errors = re.findall(r"^(?:\[\d+\] )?((?:\w+\.)*\w+(?:Error|Exception): .+)", text, re.MULTILINE)
    lines = errors or [line.strip() for line in text.splitlines() if line.strip()]
    line = lines[-1] if lines else "it says nothing"
    line = line.replace("|", "/").replace(f"{ROOT}/", "")
    return line if len(line) <= MOST_LETTERS else f"{line[:MOST_LETTERS]} ..."


def table_row(cells):
    """Return a line of a table."""
    return f"| {' | '.join(cells)} |"


def table_head():
    """Return the first two lines of the table."""
    names = ("script", "backend", *KINDS, "processes", "files")
    return [table_row(names), table_row(["---"] * len(names))]


def page(rows):
    """Return the page with these lines of the table."""
    named = {}
    for name, script in SCRIPTS.items():
        if script.bound != BOUND:
            named.setdefault(script.bound, []).append(name)
    others = ", ".join(f"{bound:g} with {' and '.join(names)}" for bound, names in named.items())
    return HEAD.format(bound=BOUND, others=others) + "\n".join([*table_head(), *rows, ""])


def check(names, backends, root):
    """Run and compare; print each line of the table, and return all of them and the faults."""
    rows, all_faults = [], []
    print("\n".join(table_head()), flush=True)
    for name in names:
        script, alone = SCRIPTS[name], root / name / "alone"
        if code := run_script(script, ALONE, alone):
            raise RuntimeError(f"{name} ends with {code} on one device: {last_words(alone)}")
        for backend in backends:
            folder = root / name / backend
            if code := run_script(script, backend, folder):
                faults = [f"it ends with {code}: {last_words(folder)}"]
                cells = [*["-"] * len(KINDS), f"**ENDED** {faults[0]}", "-"]
            else:
                cells, faults = row_of(script, folder, alone, PROCESSES[backend])
            rows.append(table_row([name, backend, *cells]))
            all_faults += [f"{name}, {backend}: {fault}" for fault in faults]
            print(rows[-1], flush=True)
    return rows, all_faults


def main():
    """Run all, write the page, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", nargs="+", choices=SCRIPTS, default=list(SCRIPTS))
    parser.add_argument("--backends", nargs="+", choices=PROCESSES, default=list(PROCESSES))
    parser.add_argument("--out", type=Path, help="keeps the runs; the same command goes on")
    parser.add_argument("--page", type=Path, default=PAGE)
    options = parser.parse_args()
    with contextlib.ExitStack() as stack:
        root = options.out or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        rows, faults = check(options.only, options.backends, root.resolve())
    options.page.parent.mkdir(parents=True, exist_ok=True)
    options.page.write_text(page(rows))
    print("\n".join([f"{len(rows)} runs, {len(faults)} faults. Table: {options.page}", *faults]))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
