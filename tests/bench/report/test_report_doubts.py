"""What a report points out where its numbers do not tell the whole."""

import shutil

import pytest
from synthetic_sweep import ENVIRONMENT, summary_of, write_trial

from tfunet.bench.analysis.sweep_summary import summarise
from tfunet.bench.records.sweep_record import read_sweep
from tfunet.bench.report.findings import doubts
from tfunet.bench.report.tables import summary_rows
from tfunet.record import RunFolder

NO_SKIP = {"skip": []}


def doubts_after(folder, change):
    summary, trials = summary_of(folder)
    assert doubts(summary) == []
    change(trials)
    return doubts(summarise(read_sweep(folder)))


def test_different_environments_are_pointed_out(tmp_path):
    def move(trials):
        packages = {**ENVIRONMENT["packages"], "tensorflow": "2.21.0"}
        environment = {**ENVIRONMENT, "host": "other", "packages": packages, "cores": [7]}
        RunFolder(tmp_path / trials[0].id).write_env(environment)

    (doubt,) = doubts_after(tmp_path, move)
    assert "different environments: host, packages.tensorflow differ" in doubt


def test_changed_code_is_pointed_out(tmp_path):
    def change(trials):
        for trial in trials:
            environment = {**ENVIRONMENT, "git": {"commit": "a", "modified": True}}
            RunFolder(tmp_path / trial.id).write_env(environment)

    assert doubts_after(tmp_path, change) == [
        "The code had changes that were not committed to git."
    ]


def test_trials_on_other_samples_are_pointed_out(tmp_path):
    def other_samples(trials):
        trial = next(trial for trial in trials if trial.id.startswith("horovod-4r-r2"))
        write_trial(tmp_path, trial, samples_hash="other")

    (doubt,) = doubts_after(tmp_path, other_samples)
    assert doubt.startswith(
        "In repeat 2 with global_batch=16, horovod x4 did not train on the same"
    )


def test_steps_that_wait_for_their_data_are_pointed_out(tmp_path):
    def starve(trials):
        for trial in trials:
            share = 0.7 if trial.id.startswith("mirrored-2r") else 0.99
            write_trial(tmp_path, trial, synthetic_share=share)

    (doubt,) = doubts_after(tmp_path, starve)
    assert doubt.startswith("mirrored x2 waits for its input: its steps reach 0.70")
    (family,) = summarise(read_sweep(tmp_path)).families
    assert {row["of bound"].split()[0] for row in summary_rows(family)} == {"0.70", "0.99"}


def test_a_run_that_changed_its_replicas_is_pointed_out(tmp_path):
    def change(trials):
        trial = next(trial for trial in trials if trial.id.startswith("horovod-2r-r1"))
        write_trial(tmp_path, trial, replicas_from_step=[[1, 4], [11, 2]])

    (doubt,) = doubts_after(tmp_path, change)
    assert "horovod-2r-r1" in doubt
    assert "(4 from step 1, then 2 from step 11)" in doubt


def test_missing_trials_are_pointed_out(tmp_path):
    def lose(trials):
        shutil.rmtree(tmp_path / trials[0].id)
        write_trial(tmp_path, trials[1], checks={})

    sentences = doubts_after(tmp_path, lose)
    assert sentences[0].startswith("2 of 21 trials have no numbers (1 failed)")
    assert "only 2 good repeats" in sentences[1]


@pytest.mark.parametrize(
    ("measurements", "words"),
    [
        ([(0.01, 0.2)], "varied by 20%"),
        ([(0.01, 0.01), (0.0125, 0.01)], "speed changed by 25%"),
        ([(0.01, 0.05), (0.0105, 0.05)], None),
    ],
)
def test_a_noisy_machine_is_pointed_out(tmp_path, measurements, words):
    def measure(trials):
        rows = [{"median_seconds": median, "spread": spread} for median, spread in measurements]
        (tmp_path / "noise.json").write_text(str({"measurements": rows}).replace("'", '"'))

    sentences = doubts_after(tmp_path, measure)
    assert (words in sentences[0]) if words else sentences == []


def test_unequal_cores_are_pointed_out(tmp_path):
    summary, trials = summary_of(tmp_path, base={})
    assert "cores_per_replica is not set" in doubts(summary)[0]
    # A capped CPU allocator plays the device, and is none.
    for trial in trials:
        write_trial(tmp_path, trial, peak_device_bytes=[2**20] * trial.config.num_replicas)
    assert "cores_per_replica is not set" in doubts(summarise(read_sweep(tmp_path)))[0]
