"""The page on GPUs has what the records of one H100 have."""

import json

from paths import ROOT

RECORDS = ROOT / "logs/reference/gpu"
MIB = 2**20
KINDS = {
    "float16": ("mixed_float16", "float32"),
    "bfloat16": ("mixed_bfloat16", "float32"),
    "xla": ("XLA", "without"),
    "augmented on the device": ("augmentation on the device", "on the host"),
}
WAYS = {
    "horovod": "two processes on it, horovod",
    "multiworker": "two processes, multiworker",
    "split by horovod": "samples in two parts, horovod",
    "split by multiworker": "samples in two parts, multiworker",
    "stages by horovod": "two stages, horovod",
    "stages by multiworker": "two stages, multiworker",
}


def test_the_page_has_what_was_measured():
    page = (ROOT / "docs/gpus.md").read_text()
    checks = [json.loads(line) for line in (RECORDS / "checks.jsonl").read_text().splitlines()]
    said = 0
    for row in checks:
        match row["what"]:
            case "gpu against cpu":
                name, other = f"{row['data']} U-Net on the GPU", "on the CPU"
            case "two processes":
                name, other = WAYS[row["way"]], "one process"
            case "kind of step" if row["kind"] in KINDS:
                name, other = KINDS[row["kind"]]
            case _:
                continue
        weights = f"{row['weights']:.1e}" if "weights" in row else ""
        assert f"| {name} | {other} | {weights} | {row['losses']:.1e} |".replace("  ", " ") in page
        said += 1
    assert said == 12
    memory = {row["what"]: row for row in checks if "predicted" in row}
    rows = [memory["within the memory"], memory["beyond the memory"]]
    amounts = [(row["predicted"] / MIB, row["measured"] / MIB) for row in rows]
    steps = json.loads((RECORDS / "largest-cube.json").read_text())
    amounts += [
        (step["predicted_peak_mib"], step["peak_mib"])
        for step in steps
        if "predicted_peak_mib" in step
    ]
    assert len(amounts) == 5
    for predicted, measured in amounts:
        assert (
            f"| {predicted:,.0f} MiB | {measured:,.0f} MiB | {predicted / measured:.2f} |" in page
        )
    predicted = [row["probabilities"] for row in checks if row["what"] == "prediction"]
    assert f"probabilities within {max(predicted):.1e}" in page
    (volume,) = (
        row["rows"]
        for row in checks
        if row["what"] == "ways to save memory" and row["rows"][0]["kind"] == "unet 3D"
    )
    apart = {row["way"]: f"{row['apart']:.1e}" for row in volume}
    assert f"to {apart['swap']} in 3D; split ones to {apart['split']} in 3D" in page


def test_the_page_has_the_largest_volume_and_the_speed_of_the_loop():
    page = (ROOT / "docs/gpus.md").read_text()
    rows = {}
    for step in json.loads((RECORDS / "largest-cube.json").read_text())[1:]:
        rows[step["job"]["way"], step["job"]["side"]] = step  # The last one ran alone.
    assert not rows["keep", 208]["fits"]
    for way, side in (("keep", 192), ("planner", 224), ("planner", 256)):
        step = rows[way, side]
        size = " x ".join([str(side)] * 3)
        (line,) = (
            line for line in page.splitlines() if line.startswith(f"| {size} |") and " ns " in line
        )
        told = (
            f"| {step['step_seconds']:.3f} s | {step['nanoseconds_a_voxel']:.1f} ns "
            f"| {step['peak_mib']:,.0f} MiB |"
        )
        assert line.endswith(told)
        if way == "planner":
            plan = step["plan"]
            assert f"{plan['swap']} tensors swapped, {plan['recompute']} recomputed" in line
    voxels = 256**3 / 192**3
    a_voxel = [rows[key]["nanoseconds_a_voxel"] for key in (("planner", 256), ("keep", 192))]
    assert f"**{voxels:.2f} times the voxels**" in page
    assert f"took {a_voxel[0] / a_voxel[1]:.2f} times as long" in page
    link = rows["planner", 224]["link"]
    assert f"{link['out_gb_s']:.1f} GB/s out and {link['back_gb_s']:.1f} GB/s back" in page
    loops = json.loads((RECORDS / "loop.json").read_text())[1:]
    assert len(loops) == 3
    for loop in loops:
        low, high = loop["ratio_range"]
        told = (
            f"| {loop['ours_images_s']:.1f} images/s | {loop['fit_images_s']:.1f} images/s "
            f"| {loop['ratio']:.3f} [{low:.3f}, {high:.3f}] |"
        )
        assert told in page
