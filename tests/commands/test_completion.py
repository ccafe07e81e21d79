"""Completion in a real bash, without Python once the script is there."""

import subprocess

import pytest

from tfunet import exit_codes
from tfunet.cli import main


@pytest.fixture(scope="module")
def script(tmp_path_factory):
    import contextlib
    import io

    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        assert main(["completion", "bash"]) == exit_codes.OK
    path = tmp_path_factory.mktemp("completion") / "tfunet.bash"
    path.write_text(printed.getvalue())
    return path


@pytest.mark.parametrize(
    ("typed", "offered", "not_offered"),
    [
        (["tr"], {"train"}, {"sweep"}),
        (["sweep", "w"], {"watch", "wait"}, {"run"}),
        (["train", "--learn"], {"--learning_rate", "--learning_rate_schedule"}, {"--backend"}),
        (["train", "--backend", "m"], {"mirrored", "multiworker"}, {"horovod"}),
        (["train", "--precision", ""], {"float32", "mixed_bfloat16", "mixed_float16"}, set()),
        (["data", "check", "--model_o"], {"--model_options"}, set()),
        (["models", "show", "nnunet"], {"nnunet2d", "nnunet3d"}, {"unet"}),
        (["plan", "--device", "h"], {"h100-pcie5", "h200-pcie5"}, {"gh200"}),
        (["run", "--"], {"--backend", "--num_replicas", "--out"}, {"--epochs", "--model"}),
        (["auto", "--mem"], {"--memory"}, set()),
        (["completion", ""], {"bash", "zsh", "tcsh"}, set()),
        # Files, as positional arguments and after options.
        (["train", "my"], {"mystudy.toml"}, set()),
        (["report", "logs", "--out", "my"], {"mystudy.toml"}, set()),
    ],
)
def test_bash_completes(typed, offered, not_offered, script, tmp_path):
    (tmp_path / "mystudy.toml").touch()
    words = " ".join(f"'{word}'" for word in ["tfunet", *typed])
    # Without Python on the path, as nothing may need it.
    program = f"""
        source {script}
        COMP_WORDS=({words}); COMP_CWORD={len(typed)}
        PATH=/nowhere
        _shtab_tfunet 2>errors
        printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    done = subprocess.run(
        ["bash", "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    found = {word.strip() for word in done.stdout.splitlines()}
    assert offered <= found, (found, done.stderr, (tmp_path / "errors").read_text())
    assert not not_offered & found
