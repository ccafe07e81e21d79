import pytest

from tfunet import arguments
from tfunet.bench.study.study_file import read_study
from tfunet.config.run import RunConfig


def test_toml_file_and_overrides_give_one_configuration(tmp_path):
    file = tmp_path / "run.toml"
    file.write_text('model = "isensee"\npatch = [16, 16, 16]\n[model_options]\nfilters = 4\n')
    config = arguments.parse(
        ["--config", str(file), "--model_options.levels", "2", "--num_replicas", "2"]
    )
    assert config == RunConfig(
        model="isensee",
        patch=(16, 16, 16),
        model_options={"filters": 4, "levels": 2},
        num_replicas=2,
    )


@pytest.mark.parametrize(
    ("arguments_", "message"),
    [
        (["--modle", "unet"], "'modle'. Did you mean 'model'"),
        (["--num_replicas", "two"], "num_replicas must be a whole number, got two"),
        (["--patch", "1.5"], r"patch must be whole numbers, \[1, 2\], got 1.5"),
        (["--xla", "maybe"], "xla must be true or false, got maybe"),
        (["--model_options", "3"], "model_options must be a table"),
        (["--metrics", "3"], r'metrics must be texts, \["a", "b"\], got 3'),
        (["--callbacks", "3"], r"callbacks must be tables, \[\{ name"),
        (["--config", "nowhere.toml"], "nowhere.toml"),
        (["stray"], "stray"),
    ],
)
def test_bad_command_line_is_a_value_error(arguments_, message):
    with pytest.raises(ValueError, match=message):
        arguments.parse(arguments_)


def test_unknown_key_in_a_file_comes_with_its_near_match(tmp_path):
    file = tmp_path / "run.toml"
    file.write_text("num_replica = 2\n")
    with pytest.raises(ValueError, match="Did you mean 'num_replicas'"):
        arguments.parse(["--config", str(file)])


def test_broken_toml_names_the_file_and_the_line(tmp_path):
    file = tmp_path / "run.toml"
    file.write_text('epochs = 1\nmodel = "unet\n')
    with pytest.raises(ValueError, match=r"run\.toml is not a TOML file: .*line 2"):
        arguments.parse(["--config", str(file)])


@pytest.mark.parametrize(
    ("encoding", "words"),
    [("utf-8-sig", "a byte order mark; save it as UTF-8 without"), ("utf-16", "it is not UTF-8;")],
)
def test_other_encodings_are_named(tmp_path, encoding, words):
    file = tmp_path / "run.toml"
    file.write_bytes('data = "cells"\nseed = 1\n'.encode(encoding))
    for read in (lambda: arguments.parse(["--config", str(file)]), lambda: read_study(file)):
        with pytest.raises(ValueError, match=f"run.toml is not a TOML file: .*{words}"):
            read()


def test_help_says_what_each_key_is():
    text = arguments.run_parser().format_help()
    assert "Number of passes over the training cases" in text


def test_mapping_is_checked_like_a_file():
    assert arguments.from_dict({"callbacks": [{"name": "X"}]}).callbacks == ({"name": "X"},)
    with pytest.raises(ValueError, match="Did you mean 'epochs'"):
        arguments.from_dict({"epoch": 2})
    with pytest.raises(ValueError, match="learning_rate"):
        arguments.from_dict({"learning_rate": "fast"})
