"""Imports go one way, down the floors of the house (docs/design.md draws them)."""

import ast
import functools
import itertools
import re
from collections import Counter

import pytest
from paths import ROOT

# Each room may import the rooms of the rows above its own, and nothing beside it or below. A room
# is a folder, or a module that lies in tfunet/ itself.
FLOORS = (
    ("inside",),
    ("files", "geometry"),
    ("exit_codes", "config"),
    ("record", "backend"),
    ("machine", "process", "timing", "models", "population"),
    ("learning", "graph", "parallel", "data.formats", "data.augmentation", "connection"),
    ("data", "pipeline"),
    ("data.layouts", "data.generated", "arguments", "swap.plan", "prediction", "single_device"),
    ("swap.storage", "data.discovery"),
    ("state",),
    ("swap.arena",),
    ("swap.search", "swap.rewrite"),
    ("swap.measure",),
    ("swap.report",),
    ("swap",),
    ("training",),
    ("performance", "proof"),
    ("plan",),
    ("loop",),
    ("worker", "fit"),
    ("bench.records",),
    ("bench.study",),
    ("bench.analysis",),
    ("bench.report",),
    ("bench.notebooks",),
    ("bench.launch",),
    ("export",),
    ("bench",),
    ("commands",),
    ("cli",),
    ("__main__",),
)
FLOOR_OF = {room: number for number, rooms in enumerate(FLOORS) for room in rooms}
# `import tfunet` offers `compare` and `RunConfig`, and loads them only when they are used.
FACADE = "tfunet"
# What answers at once, or runs where TensorFlow must not be loaded.
WITHOUT_TENSORFLOW = (
    *("__init__", "arguments", "backend", "cli", "connection", "exit_codes", "record/*"),
    *(f"fit/{name}" for name in ("__init__", "joined", "keras_choice", "placement", "script")),
    *("bench/**/*", "commands/*", "config/*", "files/*", "export/mlperf", "export/perfetto"),
    *(f"export/{name}" for name in ("follow_run", "mlflow_run", "tracked_run", "trackers")),
    "export/wandb_run",
    *("geometry/reach", "geometry/tiles", "geometry/windows"),
    *(
        "learning/__init__",
        "learning/case_metrics",
        "learning/confusion",
        "learning/dataset_scores",
        "learning/region_labels",
        "learning/scores",
        "models/__init__",
        "models/files",
        "models/*_plan",
        "models/options",
        "models/plans",
        "models/preset_settings",
    ),
    "parallel/mesh",
    "population/*",
    *(f"pipeline/{name}" for name in ("__init__", "balance", "chain", "rounds", "schedules")),
    *(f"pipeline/{name}" for name in ("simulation", "stage_memory")),
    *(f"machine/{name}" for name in ("__init__", "cores", "cpu_memory", "doctor")),
    "machine/gpu_memory",
    *(f"machine/{name}" for name in ("energy", "environment", "probes")),
    *("process/*", "timing/__init__", "timing/recorded", "timing/spans", "timing/warm_up"),
    *(
        f"data/{name}"
        for name in ("__init__", "cache*", "check", "early_checks", "foreground", "image_files")
    ),
    *(f"data/{name}" for name in ("lazy_image", "sample_order", "source", "split", "task")),
    *("data/layouts/*", "data/generated/*", "data/discovery/*"),
    *(f"prediction/{name}" for name in ("__init__", "best_file", "cleaning", "inputs", "jobs")),
    *(f"prediction/{name}" for name in ("channel_files", "finished_run", "trained_cases")),
    *(f"prediction/{name}" for name in ("output", "prepare", "raster")),
    *("graph/__init__", "graph/step", "swap/__init__", "swap/plan/*", "swap/report/*"),
    *("swap/search/*", "state/__init__"),
    *(f"performance/{name}" for name in ("__init__", "devices", "largest_fitting", "stages")),
    *(f"plan/{name}" for name in ("__init__", "facts", "here", "layout", "machine", "predict*")),
)


def modules(root):
    """Return the files of the package under `root`, by the name that imports them."""
    files = {}
    for path in sorted((root / "tfunet").rglob("*.py")):
        name = ".".join(path.relative_to(root).with_suffix("").parts)
        files[name.removesuffix(".__init__")] = path
    return files


@functools.cache
def imported(path, *, on_loading=False):
    """Return the names that a file imports: whole modules, and what it takes from them.

    With `on_loading` only those that are imported when the file is.
    """
    tree = ast.parse(path.read_text())
    skipped = set()
    for node in ast.walk(tree):
        is_for_types = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
        if is_for_types or (on_loading and isinstance(node, ast.FunctionDef)):
            skipped |= {id(inner) for inner in ast.walk(node)}
    names = set()
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return frozenset(names)


def room_of(module, files):
    """Return the room of a module of tfunet, as FLOORS writes it."""
    is_folder = files[module].name == "__init__.py"
    room = module if is_folder else module.rpartition(".")[0]
    return (module if room == "tfunet" else room).removeprefix("tfunet.")


def arrows(root):
    """Return every import between rooms as (importing module, imported module)."""
    files = modules(root)
    pairs = set()
    for module, path in files.items():
        for name in imported(path) & files.keys():
            # `from tfunet.swap.plan import plan` also loads tfunet.swap.plan, its folder.
            if name != FACADE and room_of(name, files) != room_of(module, files):
                pairs.add((module, name))
    return {pair for pair in pairs if pair[0] != FACADE}


def wrong_arrows(root):
    """Return the imports that do not go down, and the rooms that no floor has."""
    files = modules(root)
    unknown = {room_of(module, files) for module in files} - FLOOR_OF.keys() - {FACADE}
    up = []
    for importing, name in sorted(arrows(root)):
        rooms = room_of(importing, files), room_of(name, files)
        is_own_folder = rooms[0].startswith(f"{rooms[1]}.") and files[name].name == "__init__.py"
        if not is_own_folder and FLOOR_OF.get(rooms[1], 99) >= FLOOR_OF.get(rooms[0], -1):
            up.append(f"{importing} imports {name}")
    return [*sorted(unknown), *up]


def circles(root):
    """Return the files in circles of imports, or between two; imports in functions count."""
    files = modules(root)
    arrows = {
        (module, name)
        for module, path in files.items()
        for name in imported(path) & files.keys()
        # A file names its own folder wherever it imports a file beside it.
        if not f"{module}.".startswith(f"{name}.")
    }
    left = set(files)
    while True:  # Whoever imports nobody that is left, or is imported by nobody, is in no circle.
        inside = {pair for pair in arrows if set(pair) <= left}
        kept = {one for one, _ in inside} & {other for _, other in inside}
        if kept == left:
            return sorted(left)
        left = kept


def loaded_by(module, files, loaded=None):
    """Return every name that importing a module of tfunet loads, through any number of others."""
    loaded = set() if loaded is None else loaded
    parts = module.split(".")
    for end in range(1, len(parts) + 1):  # Importing a.b.c runs a, then a.b.
        name = ".".join(parts[:end])
        if name in files and name not in loaded:
            loaded.add(name)
            for inner in imported(files[name], on_loading=True):
                loaded.add(inner) if inner not in files else loaded_by(inner, files, loaded)
    return loaded


def test_imports_go_down_the_floors():
    assert len(arrows(ROOT)) > 300  # The search has found the house.
    assert wrong_arrows(ROOT) == []


def test_no_files_import_each_other_in_a_circle():
    assert circles(ROOT) == []


@pytest.mark.parametrize(
    ("imports", "found"),
    [
        ({"a": "b", "b": "c", "c": "d"}, []),
        ({"a": "b", "b": "c", "c": "b"}, ["tfunet.b", "tfunet.c"]),  # Not `a`, which nobody needs.
    ],
)
def test_a_circle_of_files_is_found(tmp_path, imports, found):
    (tmp_path / "tfunet").mkdir()
    for name in "abcd":
        line = f"    import tfunet.{imports[name]}" if name in imports else "    pass"
        (tmp_path / f"tfunet/{name}.py").write_text(f"def use():\n{line}\n")
    assert circles(tmp_path) == found


@pytest.mark.parametrize(
    ("room", "above"),
    list(itertools.pairwise(FLOORS)),
    ids=lambda rooms: rooms[0],
)
def test_an_arrow_that_runs_up_is_found(tmp_path, room, above):
    def plant(where, what):
        folder = tmp_path / "tfunet" / where.replace(".", "/")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "__init__.py").touch()
        (folder / "there.py").touch()
        (folder / "planted.py").write_text(f"from tfunet.{what}.there import something\n")

    plant(above[0], room[0])
    assert not [line for line in wrong_arrows(tmp_path) if "planted imports" in line]
    plant(room[0], above[0])
    assert f"tfunet.{room[0]}.planted imports tfunet.{above[0]}.there" in wrong_arrows(tmp_path)


def test_the_core_imports_no_backend():
    for module, path in modules(ROOT).items():
        tops = {name.split(".")[0] for name in imported(path)}
        assert not tops & {"tf_native", "hvd", "horovod"}, module


@pytest.mark.parametrize("path", [*ROOT.glob("tf_native/*.py"), *ROOT.glob("hvd/*.py")], ids=str)
def test_backends_import_only_the_seam(path):
    names = imported(path)
    ours = {name.split(".")[1] for name in names if name.startswith("tfunet.")}
    assert ours <= {"backend", "config"}
    other = {"tf_native": "hvd", "hvd": "tf_native"}[path.parent.name]
    assert other not in {name.split(".")[0] for name in names}


@pytest.mark.parametrize("pattern", WITHOUT_TENSORFLOW)
def test_module_loads_no_tensorflow(pattern):
    files = modules(ROOT)
    matching = {path.resolve() for path in (ROOT / "tfunet").glob(f"{pattern}.py")}
    assert matching, "The pattern matches no file: it tests nothing."
    for module, path in files.items():
        if path.resolve() in matching:
            tops = {name.split(".")[0] for name in loaded_by(module, files)}
            assert not tops & {"tensorflow", "keras"}, module


def test_tensorflow_is_found_through_other_modules(tmp_path):
    (tmp_path / "tfunet").mkdir()
    for name, line in (("first", "import tfunet.second"), ("second", "import tensorflow as tf")):
        (tmp_path / f"tfunet/{name}.py").write_text(line)
    assert "tensorflow" in loaded_by("tfunet.first", modules(tmp_path))


def test_only_files_and_records_open_files_for_writing():
    writers = ("tfunet/files/", "tfunet/record/", "tfunet/training/checkpoint.py")
    run = [
        *(ROOT / "tfunet").glob("*.py"),
        *(
            path
            for room in ("training", "timing", "learning")
            for path in ROOT.glob(f"tfunet/{room}/*")
        ),
        *ROOT.glob("tf_native/*.py"),
        ROOT / "hvd/backend.py",
    ]
    assert len(run) > 30
    for path in run:
        if path.suffix == ".py" and not str(path.relative_to(ROOT)).startswith(writers):
            text = path.read_text()
            for call in ("write_text(", "write_bytes(", 'open("w', ', "w")', "np.save"):
                assert call not in text, (path.name, call)


# What opens files itself, and why nobody else can have put something else there.
OPENERS = {
    "tfunet/data/formats/": "image files, which are checked before: tfunet/data/opening.py",
    "tfunet/data/opening.py": "as above",
    "tfunet/machine/": "of the system, or installed",
    "tfunet/bench/launch/processes_to_start.py": "of the system",
    "tfunet/process/exec_on_cores.py": "of the system",
    "tfunet/bench/launch/hold_network.py": "of the system",
    "tfunet/export/network_file.py": "made just before, in a folder of its own",
    "tfunet/export/run_exported.py": "as above",
    "tfunet/bench/study/samples.py": "named by the study, and seen to be a file",
    "tfunet/models/files.py": "as above",
    "tfunet/prediction/finished_run.py": "as above",
    "tfunet/training/checkpoint.py": "written",
}


def test_files_that_others_may_have_put_there_are_opened_in_one_place():
    calls = re.compile(
        r"""(?<![\w.])(?<!def )open\(|\.open\(("|encoding)|\.read_(text|bytes)\("""
        r"""|np\.load\(|ZipFile\("""
    )
    room = ("tfunet/files/", *OPENERS)
    openers = set()
    for path in ROOT.glob("tfunet/**/*.py"):
        name = str(path.relative_to(ROOT))
        if calls.search(path.read_text()):
            assert name.startswith(room), f"{name} opens files: see tfunet/files/regular.py"
            openers |= {known for known in OPENERS if name.startswith(known)}
    assert openers == set(OPENERS)


def test_horovod_is_never_called_hvd():
    for path in [*ROOT.glob("tfunet/**/*.py"), *ROOT.glob("hvd/*.py")]:
        assert "as hvd" not in path.read_text()


def test_the_drawing_of_the_house_has_these_floors():
    page = (ROOT / "docs/design.md").read_text()
    (drawing,) = (block for block in page.split("```") if "| __main__ " in block)
    # From the top down. A floor goes on in the next line where its line ends in a comma.
    cells = [line.split("|")[-2].strip() for line in drawing.splitlines() if line.count("|") > 1]
    floors = " ".join(f"{cell};" if not cell.endswith(",") else cell for cell in cells if cell)
    drawn = [set(floor.strip().split(", ")) for floor in floors.split(";") if floor]
    assert drawn == [set(rooms) for rooms in reversed(FLOORS)]


def test_no_two_test_modules_have_one_name():
    # pytest would collect one of them and count an error for the other.
    names = Counter(path.name for path in (ROOT / "tests").rglob("test_*.py"))
    assert len(names) > 100
    assert [name for name, count in names.items() if count > 1] == []
