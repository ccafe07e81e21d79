import ast
import re
import sys
import tomllib

import numpy as np
import pytest
from paths import ROOT

from tfunet import arguments, exit_codes
from tfunet.bench.study.study_file import read_study
from tfunet.cli import main
from tfunet.config.keys import KEYS, keys_by_heading
from tfunet.config.run import RunConfig
from tfunet.data.source import open_source
from tfunet.performance.devices import known_device


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


NO_LISTS = ("patch 250,x", "patch 2.5,3", "metrics a,,b")


@pytest.mark.parametrize(
    ("arguments_", "message"),
    [
        (["--modle", "unet"], "'modle'. Did you mean 'model'"),
        (["--num_replicas", "two"], "num_replicas must be a whole number, got the text 'two'"),
        (
            ["--patch", "1.5"],
            r"patch must be a list of whole numbers, such as \[1, 2\], got \[1.5\]",
        ),
        (["--xla", "maybe"], "xla must be true or false, got the text 'maybe'"),
        (["--model_options", "3"], "model_options must be a table"),
        (["--callbacks", "3"], r"callbacks must be a list of tables, such as \[\{ name"),
        (["--config", "nowhere.toml"], "nowhere.toml"),
        (["stray"], "'stray' follows no key. Write --KEY VALUE"),
        (["--metrics", "dice", "hd95"], "Write --KEY VALUE, such as --metrics a,hd95"),
        (["--xla"], "--xla has no value: it must be true or false"),
        (["--xla", "--trace", "true"], "--xla has no value"),
        (["--model_options.filters"], r"--model_options.filters has no value\.$"),
        (["--patch", "32x32"], "got the text '32x32'"),
        (["--swap_compression", "none"], "was taken out of tfunet: swapped tensors keep their"),
        (["--steps="], "steps must be a whole number, got an empty value"),
        *((f"--{text}".split(), " must be a list of") for text in NO_LISTS),
    ],
)
def test_bad_command_line_is_a_value_error(arguments_, message):
    with pytest.raises(ValueError, match=message):
        arguments.parse(arguments_)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('steps = "2"', "steps must be a whole number, got the text '2'.*quotes: steps = 2"),
        ('learning_rate = "0.1"', "learning_rate must be a number, got the text '0.1'"),
        ('xla = "true"', "xla must be true or false, got the text 'true'.*quotes: xla = true"),
        ('patch = "[32, 32]"', r"patch must be a list of whole numbers, such as \[1, 2\], got"),
        ('metrics = "hd95"', r'Write it as a list: metrics = \["hd95"\]'),
        ('global_batch = "4"', "global_batch must be a whole number, got the text"),
        ('[data]\nroot = "x"', r"data must be a text, got a table. Its options are in \[data_opt"),
        ("[steps]\nx = 1", "steps must be a whole number, got a table.$"),
        (
            '"data.root" = "x"',
            "Unknown key 'data.root': data must be a text, and has no keys of it",
        ),
        (
            "[training]\nsteps = 3",
            r"no heading \[training\]. Keys of the run stand above the first",
        ),
        ("lr = 0.1", "Unknown key 'lr'. Did you mean 'learning_rate'"),
        ("qqq = 0.1", "Unknown key 'qqq'. tfunet train --help has all keys of a run.$"),
        ("repeats = 2\n[base]\nsteps = 3", "A run has no base: .* with: tfunet sweep run FILE"),
        ("[model_option]\nfilters = 3", "Did you mean 'model_options'"),
        ('"model_options.filters" = 8', r"Write filters under the heading \[model_options\]"),
        ("num_replica = 2", "Did you mean 'num_replicas'"),
        ('learning_rate = "fast"', "learning_rate must be a number"),
        ('callbacks = "EarlyStopping"', r"""callbacks = \[\{ name = "EarlyStopping" \}\]"""),
        ('augmentation = { flips = "yes" }', "got 'yes'. Or write true or false"),
    ],
)
def test_what_a_file_says_wrongly_is_explained(text, message, tmp_path):
    file = tmp_path / "run.toml"
    file.write_text(text)
    with pytest.raises(ValueError, match=message):
        arguments.parse(["--config", str(file)])
    with pytest.raises(ValueError, match=message):
        arguments.from_dict(tomllib.loads(text))


@pytest.mark.parametrize("key", ["steps", "data", "metrics", "patch", "model"])
def test_a_key_without_keys_of_its_own_is_never_recommended_for_itself(key):
    for words in ([f"--{key}.x", "1"], [f"--{key}.x=1"]):
        with pytest.raises(ValueError, match=rf"Unknown key '{key}\.x': {key} must be"):
            arguments.parse(words)


def test_a_key_of_the_run_among_options_is_explained():
    with pytest.raises(ValueError, match="global_batch is a key of the run"):
        open_source("cells", {"num_cases": 4, "global_batch": 4})
    # It is an option of this data set.
    assert arguments.from_dict({"data_options": {"seed": 3}}).data_options == {"seed": 3}


def test_an_older_python_is_told_which_one_is_needed(monkeypatch, capsys):
    text = (ROOT / "tfunet" / "__init__.py").read_text()
    ast.parse(text, feature_version=(3, 8))
    monkeypatch.setattr(sys, "version_info", (3, 10, 14))
    with pytest.raises(SystemExit) as ended:
        exec(compile(text, "tfunet", "exec"), {"__name__": "tfunet"})
    assert ended.value.code == 2
    assert "needs Python 3.11 or 3.12, and this is Python 3.10." in capsys.readouterr().err


@pytest.mark.parametrize(("given", "known"), [("h100", "h100-pcie5"), ("GH200", "gh200")])
def test_a_device_has_a_short_name(given, known):
    assert known_device(given) == known


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("v100", "several links. Say which: v100-pcie3, v100-nvlink2"),
        ("h10", "Did you mean 'h100-pcie5'|Did you mean 'gh200'|Known: v100"),
    ],
)
def test_an_unclear_device_is_explained(given, message):
    with pytest.raises(ValueError, match=message):
        known_device(given)


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


def test_help_says_what_each_key_is_under_the_headings_of_the_page():
    text = arguments.help_of_keys()
    page = (ROOT / "docs/configuration.md").read_text()
    assert "Number of passes over the training cases" in text
    found = [text.index(f"\n{heading}:") for heading in keys_by_heading()]
    assert found == sorted(found)
    assert all(f"\n## {heading}\n" in page for heading in keys_by_heading())
    for key in KEYS:
        assert len(re.findall(rf"^  --{key} ", text, re.MULTILINE)) == 1, key


def test_short_help_names_every_key_on_a_screen_or_two(capsys):
    assert main(["train", "--help"]) == exit_codes.OK
    text = capsys.readouterr().out
    assert len(text.splitlines()) < 70
    assert max(map(len, text.splitlines())) <= 100
    assert {*KEYS} <= set(re.findall(r"\w+", text))
    assert main(["train", "--help-all"]) == exit_codes.OK
    assert "Number of passes over the training cases" in capsys.readouterr().out


def test_mapping_is_checked_like_a_file():
    assert arguments.from_dict({"callbacks": [{"name": "X"}]}).callbacks == ({"name": "X"},)
    # In quotes it is a text, in TOML as in Python.
    assert arguments.from_dict({"model_options": {"x": "1e5"}}).model_options == {"x": "1e5"}
    assert arguments.from_dict({"learning_rate": np.float64(0.5)}).learning_rate == 0.5


@pytest.mark.parametrize("text", ["2024", "007", "true", "1e3", "null", "2024-01-01", "0x1F"])
def test_what_names_files_stays_a_text(text, tmp_path):
    """The parser would take a folder called 2024 for a number, in quotes too."""
    options = {"root": text, "images": text, "masks": text, "name": text, "threshold": 3}
    assert arguments.from_dict({"data": "folder", "data_options": options}).data_options == options
    file = tmp_path / "run.toml"
    file.write_text(f'data = "folder"\n[data_options]\nroot = "{text}"\nthreshold = 3\n')
    config = arguments.parse(["--config", str(file), "--data_options.name", text])
    assert config.data_options == {"root": text, "threshold": 3, "name": text}
    assert arguments.parse([f"--data_options.root={text}"]).data_options == {"root": text}
    config = arguments.parse(["--config", str(file), "--data_options.root", "other"])
    assert config.data_options["root"] == "other"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["--model", "cosmoflow"], "leaves out the options of the file"),
        (
            ["--model_options", "{}", "--data", "cells"],
            "--data_options '{}' on the command line leaves out",
        ),
    ],
)
def test_options_of_another_thing_are_refused_before_anything_starts(
    tmp_path, monkeypatch, capsys, given, words
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.toml").write_text(
        'data = "tumours"\n[model_options]\nfilters = 8\nzzz = 2\n[data_options]\nchannels = 1\n'
    )
    assert main(["train", "run.toml", *given]) == exit_codes.BAD_INPUT
    said = capsys.readouterr().err
    assert words in said
    assert not (tmp_path / "logs").exists()


CODE = "--data_options.classes"
STAGES = ("--backend", "horovod", "--stages", "3")


@pytest.mark.parametrize(
    ("given", "key", "value"),
    [
        (["--patch", "250,240"], "patch", (250, 240)),
        (["--patch=250, 240"], "patch", (250, 240)),
        (["--patch", "[250, 240]"], "patch", (250, 240)),
        (["--decay_epochs", "3"], "decay_epochs", (3,)),
        (["--metrics", "hd95,assd"], "metrics", ("hd95", "assd")),
        (["--metrics=nsd@1mm"], "metrics", ("nsd@1mm",)),
        (["--metrics", '["hd95"]'], "metrics", ("hd95",)),
        ([*STAGES, "--balance", "down,up"], "balance", ("down", "up")),
        ([*STAGES, "--balance", "time"], "balance", "time"),
        (["--validation_groups", "1,2"], "validation_groups", ("1", "2")),
        (["--validation_groups", "rat 6, rat 8"], "validation_groups", ("rat 6", "rat 8")),
        (["--data_options.name", "a,b"], "data_options", {"name": "a,b"}),  # A text.
        (["--metrics", "3"], "metrics", ("3",)),
        (["--steps", "null"], "steps", None),
        (["--xla", "Yes"], "xla", True),
        (["--xla", "on"], "xla", True),
        (["--optimizer_options.momentum", ".9"], "optimizer_options", {"momentum": 0.9}),
        (["--data_options.images.ct", "123"], "data_options", {"images": {"ct": "123"}}),
        (["--learning_rate", "1e-2"], "learning_rate", 0.01),
        (["--augmentation.noise.range", "0.1"], "augmentation", {"noise": {"range": 0.1}}),
        (["--model_options", "{ filters = 8 }"], "model_options", {"filters": 8}),
        (["--model_options.a", '"8"'], "model_options", {"filters": 4, "a": "8"}),
        # A colour is no comment.
        ([f"{CODE}.cell=#ff0000"], "data_options", {"classes": {"cell": "#ff0000"}}),
        (["--data_options.ignore_label", "#000000"], "data_options", {"ignore_label": "#000000"}),
        (["--data_options.ignore_label", "255"], "data_options", {"ignore_label": 255}),
        # The options of a file can be left out.
        (["--model_options", "{}", "--model_options.width", "8"], "model_options", {"width": 8}),
    ],
)
def test_a_value_is_read_as_it_is_meant(given, key, value, tmp_path):
    (tmp_path / "run.toml").write_text("[model_options]\nfilters = 4\n")
    words = ["--config", str(tmp_path / "run.toml"), *given]
    assert getattr(arguments.parse(words), key) == value
