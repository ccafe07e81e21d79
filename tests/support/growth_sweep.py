"""A made-up sweep over sizes under a cap."""

from dataclasses import asdict

from synthetic_sweep import (
    MIB,
    made_up_plan,
    make_study,
    write_failed,
    write_seen,
    write_sweep,
    write_trial,
)

from tfunet.record import RunFolder

CAP = "200MiB"


# The largest size that trains in each way, and times as long as with everything kept.
LARGEST = {None: 48, "auto": 48, "0.5": 80}


OVER_KEPT = {None: 1.0, "auto": 1.1, "0.5": 1.25}


FULL = "process 0 of 1 ended with exit code 3, see log-0.txt: error: out of memory: no room"


KILLED = "process 0 of 1 was killed by SIGSEGV, see log-0.txt"


def write_growth_sweep(folder, sizes=(32, 48, 80), *, kept="8GiB", killed=(), repeats=2):
    """Write a sweep in which 48^3 trains without support under the cap and 80^3 with 0.5.

    `killed` are (size, swap, repeat) that the kernel or oneDNN ended.
    """
    cases = [{"cpu_memory": CAP, "swap": swap} for swap in ("none", "auto", "0.5")]
    cases += [{"cpu_memory": kept}] if kept else []
    base = {"data": "tumours", "replica_batch": 1, "cores_per_replica": 1}
    study = make_study(
        repeats=repeats,
        base=base,
        grid={"data_options.size": list(sizes)},
        case=cases,
        skip=[],
    )
    for trial in write_sweep(folder, study, write=lambda trial: False):
        config = trial.config
        size, is_kept = config.data_options["size"], config.cpu_memory != CAP
        seconds = (size / 100) ** 3 * (1.0 if is_kept else OVER_KEPT[config.swap])
        if (size, config.swap, trial.repeat) in killed:
            write_failed(folder, trial, KILLED)
        elif not is_kept and size > LARGEST[config.swap]:
            write_failed(folder, trial, FULL)
        else:
            write_trial(
                folder,
                trial,
                median_step_seconds=seconds * (1 + trial.repeat / 10),
                peak_device_bytes=[size * MIB if is_kept else 100 * MIB],
            )
            if config.swap is not None:
                RunFolder(folder / trial.id).write_plans([asdict(made_up_plan())])
        write_seen(folder, trial, (size,) * 3)
