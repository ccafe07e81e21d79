"""What the proof of a step costs, beside the start of a run and its first step.

Runs of `tfunet train` with the proof and without it take turns. The time to the first step is that
of the runs without it: from the start of the process until the first step has ended.

    python benchmarks/proof_cost.py [--rounds 3] [--case NAME]
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

QUICKSTART = ["--data", "cells", "--model_options", '{"filters": 8, "levels": 3}']
VOLUME = [
    *("--data", "tumours", "--patch", "32,32,32", "--data_options", '{"size": 32}'),
    *("--model_options", '{"filters": 8, "levels": 3}', "--global_batch", "2"),
]
ISENSEE = ["--data", "tumours", "--patch", "32,32,32", "--data_options", '{"size": 32}']
CASES = {
    "quickstart, mirrored x 2": [*QUICKSTART, "--backend", "mirrored", "--num_replicas", "2"],
    "quickstart, multiworker x 2": [*QUICKSTART, "--backend", "multiworker", "--num_replicas", "2"],
    "quickstart, horovod x 2": [*QUICKSTART, "--backend", "horovod", "--num_replicas", "2"],
    "U-Net of 7.8 million weights, mirrored x 2": [
        *("--data", "cells", "--global_batch", "4", "--backend", "mirrored", "--num_replicas", "2")
    ],
    "3D U-Net in two parts": [*VOLUME, "--backend", "multiworker", "--split", "[2, 1, 1]"],
    "3D U-Net in two stages": [
        *(*VOLUME, "--backend", "multiworker", "--stages", "2", "--micro_batches", "2")
    ],
    "3D U-Net in two tiles": [
        *("--data", "tumours", "--patch", "64,32,32", "--data_options", '{"size": 64}'),
        *("--model_options", '{"filters": 8, "levels": 2, "normalization": "none"}'),
        *("--loss", "crossentropy", "--tiling", "[2, 1, 1]", "--global_batch", "1"),
    ],
    "Isensee's, mirrored x 2": [
        *(*ISENSEE, "--model", "isensee", "--global_batch", "2"),
        *("--backend", "mirrored", "--num_replicas", "2"),
    ],
}
# A tenth of the time to the first step or so many seconds, whichever is more.
SHARE, SECONDS = 0.1, 3.0


def run(folder, options, *, prove):
    command = [sys.executable, "-m", "tfunet", "train", "--steps", "2", "--share_cores", "true"]
    command += [*options, "--prove", str(prove).lower(), "--out", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
    return json.loads((folder / "result.json").read_text())


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--case", choices=CASES)
    arguments = parser.parse_args()
    print("case | proof (s) | to the first step (s) | bound (s) | MiB without | with | precision")
    for name in [arguments.case] if arguments.case else CASES:
        proofs, firsts, memory, precision = [], [], ([], []), ""
        for _ in range(arguments.rounds):
            for prove in (True, False):
                with tempfile.TemporaryDirectory() as folder:
                    result = run(Path(folder) / "run", CASES[name], prove=prove)
                memory[prove].append(max(result["peak_resident_bytes"]) / 2**20)
                if not prove:
                    firsts.append(result["start_seconds"] + result["first_step_seconds"])
                elif result["proved"]["is_proved"]:
                    proofs.append(result["proved"]["seconds"])
                    precision = result["proved"]["precision"]
                else:
                    precision = f"not proved: {result['proved']['why_not']}"
        first = statistics.median(firsts)
        bound = max(SECONDS, SHARE * first)
        seconds = (
            f"{statistics.median(proofs):.1f} [{min(proofs):.1f}, {max(proofs):.1f}]"
            if proofs
            else "-"
        )
        print(
            f"{name} | {seconds} | {first:.1f} [{min(firsts):.1f}, {max(firsts):.1f}] | {bound:.1f}"
            f" | {statistics.median(memory[False]):.0f} | {statistics.median(memory[True]):.0f} | "
            f"{precision}",
            flush=True,
        )


if __name__ == "__main__":
    main()
