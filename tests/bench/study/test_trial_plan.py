import json
import re
import time
from collections import Counter

import pytest

from tfunet.bench.records.sweep_record import planned_config
from tfunet.bench.study.plan_text import plan_json, plan_table
from tfunet.bench.study.study_file import study_from_dict
from tfunet.bench.study.trial_plan import impossible, plan_trials
from tfunet.config.run import RunConfig


def planned(num_cores=8, **table):
    return plan_trials(study_from_dict(table), num_cores)


def test_every_case_meets_every_combination_of_the_grid():
    plan = planned(
        case=[{"backend": "mirrored"}, {"backend": "horovod"}],
        grid={"num_replicas": [1, 2], "model_options.filters": [8, 16]},
    )
    cells = {
        (trial.config.backend, trial.config.num_replicas, trial.config.model_options["filters"])
        for trial in plan.trials
    }
    assert len(plan.trials) == len(cells) == 8


def test_each_repeat_is_one_shuffled_block_of_all_cells():
    plan = planned(repeats=3, grid={"epochs": [1, 2, 3, 4, 5, 6]})
    blocks = [plan.trials[start : start + 6] for start in (0, 6, 12)]
    orders = [[trial.cell for trial in block] for block in blocks]
    assert all(sorted(order) == list(range(6)) for order in orders)
    assert [{trial.repeat for trial in block} for block in blocks] == [{1}, {2}, {3}]
    assert orders[0] != orders[1]


def test_the_order_depends_on_the_studys_seed_only():
    grid = {"epochs": [1, 2, 3, 4, 5, 6]}
    assert planned(seed=1, grid=grid) == planned(seed=1, grid=grid)
    assert planned(seed=1, grid=grid).trials != planned(seed=2, grid=grid).trials


def test_repeat_k_has_the_base_seed_plus_k_less_one():
    plan = planned(repeats=3, base={"seed": 40})
    assert [trial.config.seed for trial in plan.trials] == [40, 41, 42]


def test_ids_tell_what_varies_and_are_stable():
    plan = planned(
        grid={"num_replicas": [1, 2], "model_options.filters": [8], "xla": [True, False]},
        base={"backend": "horovod"},
    )
    ids = [trial.id for trial in plan.trials]
    assert len(set(ids)) == 4
    assert (
        sum(bool(re.fullmatch(r"horovod-2r-xla-r1-[0-9a-f]{6}", identifier)) for identifier in ids)
        == 1
    )
    # A cell keeps its name when repeats are added.
    more = planned(
        repeats=2,
        grid={"num_replicas": [1, 2], "model_options.filters": [8], "xla": [True, False]},
        base={"backend": "horovod"},
    )
    assert set(ids) < {trial.id for trial in more.trials}


def test_descriptions_of_data_name_trials_by_their_stems(tmp_path):
    files = []
    for name, size in (("Small", 32), ("large", 48)):
        files.append(str(tmp_path / "sets" / f"{name}.toml"))
        (tmp_path / "sets").mkdir(exist_ok=True)
        (tmp_path / "sets" / f"{name}.toml").write_text(
            f'data = "cells"\nnum_cases = {size}\nsize = {size}\n'
        )
    plan = planned(grid={"data": files, "data_options.noise": [0.0, 0.5]})
    names = sorted(trial.id.rpartition("-r1-")[0] for trial in plan.trials)
    assert names == [
        f"single-1r-{name}-n{noise}" for name in ("large", "small") for noise in (0, 0.5)
    ]
    assert {trial.settings["data"] for trial in plan.trials} == set(files)
    assert all(trial.settings.keys() == plan.trials[0].settings.keys() for trial in plan.trials)
    # One description for all does not vary, and a data set of another kind has its own name.
    (first, _) = planned(base={"data": files[0]}, grid={"epochs": [1, 2]}).trials
    assert set(first.settings) == {"backend", "num_replicas", "epochs"}
    plan = planned(grid={"data": [files[0], "tumours"]})
    names = sorted(trial.id.rpartition("-r1-")[0] for trial in plan.trials)
    assert names == ["single-1r-small", "single-1r-tumours"]


def test_ids_of_cells_that_read_alike_differ():
    texts = [f"{'x' * 100}{number}" for number in range(200)]
    plan = planned(base={"backend": "single"}, grid={"data_options.root": texts})
    ids = [trial.id for trial in plan.trials]
    assert len(set(ids)) == 200
    assert all(len(identifier.rpartition("-")[2]) == 12 for identifier in ids)
    assert max(map(len, ids)) < 120


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"backend": "single", "num_replicas": 2}, "single trains one replica, not 2"),
        ({"backend": "mirrored", "num_replicas": 9}, "num_replicas=9 needs a CPU core for each"),
        (
            {"backend": "horovod", "num_replicas": 4, "cores_per_replica": 3},
            "num_replicas=4 with cores_per_replica=3 needs 12 CPU cores",
        ),
        ({"backend": "mirrored", "num_replicas": 2, "processes": 2}, "runs in one process"),
        ({"backend": "horovod", "num_replicas": 3, "processes": 2}, "cannot be shared"),
        ({"backend": "horovod", "num_replicas": 8}, None),
        ({"backend": "single"}, None),
    ],
)
def test_what_a_machine_cannot_run_has_a_reason(settings, reason):
    found = impossible(RunConfig(**settings), num_cores=8)
    assert found is None if reason is None else reason in found


def test_impossible_cells_are_skipped_with_their_reason():
    plan = planned(
        num_cores=4,
        grid={"backend": ["single", "horovod"], "num_replicas": [1, 2, 3, 8], "global_batch": [8]},
        skip=[{"when": {"backend": "horovod", "num_replicas": 1}, "reason": "not of interest"}],
    )
    assert {trial.id[:-10] for trial in plan.trials} == {"single-1r", "horovod-2r"}
    reasons = {
        (cell.settings["backend"], cell.settings["num_replicas"]): cell.reason
        for cell in plan.skipped
    }
    assert reasons["single", 3] == "single trains one replica, not 3"
    assert "global_batch=8 cannot be divided by num_replicas=3" in reasons["horovod", 3]
    assert "needs a CPU core for each replica" in reasons["horovod", 8]
    assert reasons["horovod", 1] == "not of interest"
    assert len(reasons) == 6


@pytest.mark.parametrize(
    ("when", "left"),
    [
        ({"backend": "horovod"}, 4),
        ({"backend": ["single", "horovod"]}, 0),
        ({"patch": [64, 64]}, 4),
        ({"model_options.filters": 8, "backend": "single"}, 6),
        # What nobody wrote has its default.
        ({"replica_batch": 4}, 0),
        ({"precision": "mixed_float16"}, 8),
    ],
)
def test_skip_rules_match_settings_lists_and_defaults(when, left):
    table = {
        "grid": {
            "backend": ["single", "horovod"],
            "patch": [[64, 64], [96, 96]],
            "model_options.filters": [8, 16],
        },
        "skip": [{"when": when, "reason": "asked for"}],
    }
    if left == 0:
        with pytest.raises(ValueError, match=r"has no trial to run: asked for"):
            planned(**table)
    else:
        plan = planned(**table)
        assert len(plan.trials) == left
        assert bool(plan.notes) == (left == 8)


def test_equal_cells_are_run_once():
    plan = planned(case=[{"epochs": 5}, {"epochs": 5, "xla": False}])
    assert len(plan.trials) == 1
    assert plan.skipped[0].reason == "the same settings as another cell"


def test_a_given_global_batch_means_strong_scaling():
    weak = planned(grid={"replica_batch": [2]})
    strong = planned(grid={"global_batch": [2]})
    assert (weak.trials[0].scaling, strong.trials[0].scaling) == ("weak", "strong")


def test_the_plans_json_gives_back_every_configuration():
    plan = planned(
        repeats=2,
        base={"patch": [64, 64], "callbacks": [{"name": "EarlyStopping"}]},
        case=[{"backend": "single"}, {"backend": "horovod", "backend_options": {"a": [1, 2]}}],
        grid={"decay_epochs": [[1, 2], []]},
    )
    table = json.loads(json.dumps(plan_json(plan)))
    configs = [planned_config(table["base"], trial["changes"]) for trial in table["trials"]]
    assert configs == [trial.config for trial in plan.trials]


def test_the_table_shows_every_trial_its_shape_and_what_is_skipped():
    text = plan_table(
        planned(
            grid={"backend": ["single", "horovod"], "num_replicas": [1, 2]},
            skip=[{"when": {"precision": "mixed_float16"}, "reason": "no GPU"}],
        )
    )
    lines = text.splitlines()
    assert "3 trials (3 cells, 1 repeat; order from seed 0)" in lines[0]
    words = [line.split() for line in lines]
    assert Counter(word[2] for word in words[3:6]) == {"single": 1, "horovod": 2}
    assert [word[3:5] for word in words if word[1:2] and word[1].startswith("horovod-2r")] == [
        ["2", "2"]
    ]
    assert "Skipped: 1 cell." in text
    assert "single trains one replica, not 2" in text
    assert "(no GPU) matches no cell" in text


def test_ten_thousand_trials_are_planned_in_time_that_grows_with_their_number():
    study = study_from_dict(
        {
            "repeats": 2,
            "base": {"backend": "horovod"},
            "grid": {
                "num_replicas": [1, 2, 3, 4],
                "learning_rate": [number / 1000 for number in range(1, 1251)],
            },
        }
    )
    since = time.process_time()
    plan = plan_trials(study, num_cores=4)
    text = json.dumps(plan_json(plan))
    assert len(plan.trials) == 10_000
    assert len({trial.id for trial in plan.trials}) == 10_000
    assert len(text) < 5_000_000
    assert time.process_time() - since < 60  # If it grew with their square, it would be hours.


TOURNAMENT = {"trainers": 3, "round_steps": 5}


def test_a_tournament_has_a_trial_for_each_trainer_of_each_population():
    plan = planned(repeats=2, tournament=TOURNAMENT, base={"seed": 4, "cores_per_replica": 1})
    assert [trial.config.seed for trial in plan.trials] == [12, 13, 14, 15, 16, 17]
    assert [trial.repeat for trial in plan.trials] == [1, 2, 3, 4, 5, 6]
    assert {trial.cell for trial in plan.trials} == {0}
    assert len({trial.id for trial in plan.trials}) == 6
    table = json.loads(json.dumps(plan_json(plan)))
    configs = [planned_config(table["base"], trial["changes"]) for trial in table["trials"]]
    assert configs == [trial.config for trial in plan.trials]


def test_trainers_that_are_more_than_the_cores_take_turns_and_the_plan_says_so():
    study = {"tournament": TOURNAMENT, "base": {"cores_per_replica": 1}}
    few, enough = (plan_trials(study_from_dict(study), cores) for cores in (2, 3))
    assert few.notes == (
        "3 trainers share 2 cores: 2 train at the same time, and the others wait for their turn "
        "in each round.",
    )
    assert enough.notes == ()


def test_ways_to_select_are_cells_beside_a_run_without_a_tournament():
    plan = planned(
        case=[{"tournament": {**TOURNAMENT, "selection": how}} for how in ("pairwise", "none")]
        + [{"epochs": 7}],
    )
    assert Counter(trial.cell for trial in plan.trials) == {0: 3, 1: 3, 2: 1}
    table = json.loads(json.dumps(plan_json(plan)))
    configs = [planned_config(table["base"], trial["changes"]) for trial in table["trials"]]
    assert configs == [trial.config for trial in plan.trials]
