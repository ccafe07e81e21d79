"""An earlier attempt is kept; only a run's own large files are deleted, and not through a link."""

from tfunet.bench.launch.sweep_folder import set_aside


def test_large_files_of_an_earlier_attempt_go(tmp_path):
    trial = tmp_path / "single-1r"
    trial.mkdir()
    for name in ("config.json", "steps.csv", "checkpoint.npz", "model.keras"):
        (trial / name).touch()
    set_aside(trial, tmp_path)
    kept = tmp_path / "earlier" / "single-1r-1"
    assert sorted(path.name for path in kept.iterdir()) == ["config.json", "steps.csv"]
    assert not trial.exists()


def test_what_is_no_run_or_lies_behind_a_link_loses_nothing(tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "config.json").touch()
    (outside / "model.keras").write_text("mine")
    root = tmp_path / "sweep"
    (root / "plain").mkdir(parents=True)
    (root / "plain" / "model.keras").write_text("mine")
    (root / "linked").symlink_to(outside)
    for name in ("plain", "linked"):
        set_aside(root / name, root)
        assert (root / "earlier" / f"{name}-1" / "model.keras").read_text() == "mine"
