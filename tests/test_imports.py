"""Imports go one way, as docs/design.md says."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
WITHOUT_TENSORFLOW = [
    *ROOT.glob("tfunet/bench/*.py"),
    *ROOT.glob("tfunet/commands/*.py"),
    *(
        ROOT / f"tfunet/{name}.py"
        for name in (
            *("__init__", "arguments", "backend", "cli", "config", "cores", "doctor"),
            *("energy", "environment", "exit_codes", "full_memory", "record", "refs", "scores"),
        )
    ),
    *(ROOT / f"tfunet/data/{name}.py" for name in ("__init__", "augmentation")),
    *(ROOT / f"tfunet/data/{name}.py" for name in ("source", "lazy_image", "foreground", "cache")),
    *(
        ROOT / f"tfunet/predict/{name}.py"
        for name in ("__init__", "jobs", "output", "prepare", "raster", "tiles")
    ),
    *(ROOT / f"tfunet/swap/{name}.py" for name in ("__init__", "numa", "plan", "planned", "show")),
    ROOT / "tfunet/models/__init__.py",
]


def imports(path, *, top_only=False):
    """The modules that a file imports; with `top_only` only those loaded with it."""
    tree = ast.parse(path.read_text())
    skipped = set()
    for node in ast.walk(tree):
        typing_only = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
        if typing_only or (top_only and isinstance(node, ast.FunctionDef)):
            skipped |= {id(one) for one in ast.walk(node)}
    found = set()
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Import):
            found |= {one.name for one in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{one.name}" for one in node.names)}
    return found


def packages(path, **options):
    return {one.split(".")[0] for one in imports(path, **options)}


@pytest.mark.parametrize("path", sorted(ROOT.glob("tfunet/**/*.py")), ids=str)
def test_the_core_imports_no_backend(path):
    assert not packages(path) & {"tf_native", "hvd", "horovod"}


@pytest.mark.parametrize("path", [*ROOT.glob("tf_native/*.py"), *ROOT.glob("hvd/*.py")], ids=str)
def test_backends_import_only_the_seam(path):
    ours = {one for one in imports(path) if one.startswith("tfunet")}
    assert {one.split(".")[1] for one in ours if "." in one} <= {"backend", "config"}
    other = {"tf_native": "hvd", "hvd": "tf_native"}[path.parent.name]
    assert other not in packages(path)


@pytest.mark.parametrize("path", WITHOUT_TENSORFLOW, ids=str)
def test_module_loads_no_tensorflow(path):
    loaded = imports(path, top_only=True)
    assert not {one.split(".")[0] for one in loaded} & {"tensorflow", "keras"}


@pytest.mark.parametrize("path", sorted(ROOT.glob("tfunet/bench/*.py")), ids=str)
def test_the_harness_does_not_reach_into_the_loop(path):
    loop = {f"tfunet.{one}" for one in ("train", "evaluation", "training_step", "losses", "state")}
    assert not imports(path) & loop


@pytest.mark.parametrize("path", sorted(ROOT.glob("tfunet/swap/*.py")), ids=str)
def test_large_model_support_does_not_need_the_harness(path):
    assert not {one for one in imports(path) if one.startswith("tfunet.bench")}


def test_only_the_record_opens_files_for_writing():
    run = [*ROOT.glob("tfunet/*.py"), *ROOT.glob("tf_native/*.py"), ROOT / "hvd/backend.py"]
    for path in run:
        if path.name in ("record.py", "checkpoint.py"):  # checkpoint writes where record says
            continue
        text = path.read_text()
        for call in ("write_text(", "write_bytes(", 'open("w', ', "w")', "np.save"):
            assert call not in text, (path.name, call)


def test_horovod_is_never_called_hvd():
    for path in [*ROOT.glob("tfunet/**/*.py"), *ROOT.glob("hvd/*.py")]:
        assert "as hvd" not in path.read_text()
