"""Changes Keras's trainer, callbacks and files, once, for a script on many devices."""

import atexit
import contextlib
import functools
import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import keras
import tensorflow as tf

from tfunet.backend import Backend, Topology
from tfunet.config.own_code import OURS
from tfunet.fit.rates import scale_rates
from tfunet.fit.split import SplitSamples
from tfunet.fit.start import Start
from tfunet.fit.strategy import LogsStep, Predict, Strategy
from tfunet.fit.summed_logs import OTHER_BATCHES
from tfunet.graph.traced import traced
from tfunet.inside import of_fit
from tfunet.inside.of_tensorflow import numbers_are_arrays
from tfunet.process.terminal import lines_of
from tfunet.process.watchdog import OWN_CODE
from tfunet.training.callbacks import WRITERS, told_of_all

# Callbacks that only the chief may have; what ModelCheckpoint writes elsewhere is not kept.
OF_CHIEF = frozenset({*WRITERS, "BackupAndRestore", "RemoteMonitor"} - {"ModelCheckpoint"})


def install(
    backend: Backend,
    topology: Topology,
    *,
    joined: int,
    split: Sequence[int],
    scales_rate: bool,
    begin: Callable[..., None],
) -> None:
    """Have every model of this process be trained on all replicas; for good.

    Args:
        joined: Batches of a data set that make a global one.
        split: Parts of each sample along its axes; () leaves samples whole.
        scales_rate: Whether learning rates are multiplied by the number of replicas.
        begin: Is told what this process begins, as `Pulse.begin`.
    """
    numbers_are_arrays()
    _stay_in_scope(backend)
    cut = SplitSamples(backend, topology, split) if split else None
    start = Start(backend, topology, cut)

    def strategy_of(model: keras.Model) -> Strategy:
        return Strategy(backend=backend, topology=topology, model=model, joined=joined, split=cut)

    def make_step(make: Any, model: keras.Model, step: Any) -> Any:
        if cut is not None:
            run = traced(lambda share: strategy_of(model).run(LogsStep(step), (share,)))
            return _one_by_one(model, _Explaining(lambda batches: run(next(batches))))
        with _without_xla(model):
            return _one_by_one(model, _Explaining(make(LogsStep(step))))

    def make_predict(make: Any, model: keras.Model, *args: Any, **kwargs: Any) -> None:
        start.share_weights(model)
        if cut is not None:
            cut.install(model)
            model.predict_function = model.predict_function or traced(Predict(strategy_of(model)))
        with _without_xla(model):
            make(*args, **kwargs)
        if not isinstance(model.predict_function, _Explaining):
            predict = model.predict_function

            def built(data: Any) -> Any:
                start.build_to_predict(model, data)
                return predict(data)

            model.predict_function = _Explaining(built)

    def build(_: Any, model: keras.Model, iterator: Any = None, data_batch: Any = None) -> None:
        start.build(model, iterator, data_batch)

    def gather(init: Any, of_all: Any, callbacks: Any = None, *args: Any, **kwargs: Any) -> None:
        init(_own(callbacks, topology, start, begin), *args, **_quiet(kwargs, topology))

    of_fit.train_by(strategy_of)
    of_fit.around_making_steps(make_step)
    of_fit.around_making_predict(make_predict)
    of_fit.around_building(build)
    of_fit.around_callbacks(gather)
    of_fit.around_attributes(_outside_of_scope)
    if scales_rate:
        scale_rates(topology.num_replicas)
    if not topology.is_chief:
        Elsewhere().install()


def _stay_in_scope(backend: Backend) -> None:
    """Make all variables from here on in the scope of a backend.

    clear_session() resets the graph to which a scope belongs, and so begins it anew.
    """
    scope = contextlib.ExitStack()
    scope.enter_context(backend.scope())
    atexit.register(scope.close)
    clear = keras.utils.clear_session

    @functools.wraps(clear)
    def cleared(*args: Any, **kwargs: Any) -> None:
        scope.close()
        try:
            clear(*args, **kwargs)
        finally:
            scope.enter_context(backend.scope())

    keras.utils.clear_session = keras.backend.clear_session = cleared


@functools.cache
def _outside_of_scope(function: Callable[..., Any], *args: Any) -> Any:
    """Return what a function makes where variables are those of this process: in another thread.

    In the scope of a strategy all processes make them together, and the chief may save alone.
    """
    with ThreadPoolExecutor(1) as other:
        return other.submit(function, *args).result()


@contextlib.contextmanager
def _without_xla(model: keras.Model) -> Any:
    """Leave XLA out, as Keras does under tf.distribute: it compiles nothing that is exchanged."""
    before = model.jit_compile
    model.jit_compile = False
    try:
        yield
    finally:
        model.jit_compile = before


def _one_by_one(model: keras.Model, function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Take the steps of an execution one by one: in a graph's loop, replicas cannot exchange."""

    def steps(iterator: Any) -> Any:
        num_steps, model.steps_per_execution = model.steps_per_execution, 1
        logs = None
        try:
            for _ in range(num_steps):
                try:
                    logs = function(iterator)
                except (StopIteration, tf.errors.OutOfRangeError):
                    if logs is None:
                        raise
                    break
        finally:
            model.steps_per_execution = num_steps
        return logs

    return steps


@final
@dataclass(frozen=True)
class _Explaining:
    """A function of a step that says what is wrong with its data."""

    function: Callable[[Any], Any]

    def __call__(self, data: Any) -> Any:
        try:
            return self.function(data)
        except tf.errors.InvalidArgumentError as error:
            raise _explained(error) from None


def _explained(error: tf.errors.InvalidArgumentError) -> Exception:
    """Return what is wrong with the data, without the places of a graph; else the error itself."""
    return ValueError(OTHER_BATCHES) if OTHER_BATCHES in str(error) else error


def _own(callbacks: Any, topology: Topology, start: Start, begin: Callable[..., None]) -> Any:
    given = [] if callbacks is None else keras.tree.flatten(callbacks)
    own = [
        callback
        for callback in given
        if topology.is_chief
        or not any(kind.__name__ in OF_CHIEF for kind in type(callback).__mro__)
    ]
    users = {type(one).__name__: None for one in own if _is_users(one)}
    new = [name for name in users if name not in _told]
    _told.update(users)
    if new and topology.is_chief and topology.process_count > 1:
        print(lines_of(f"tfunet: {told_of_all(new, topology.process_count)}"), flush=True)
    return [_Watched(begin), *own, _Begin(start)]


# The callbacks of the user's own of which it was said that all processes have them.
_told: dict[str, None] = {}


def _is_users(callback: keras.callbacks.Callback) -> bool:
    return type(callback).__module__.partition(".")[0] not in ("keras", *OURS)


def _quiet(settings: dict[str, Any], topology: Topology) -> dict[str, Any]:
    if topology.is_chief:
        return settings
    return {**settings, "add_progbar": False, "verbose": 0}


@final
class _Begin(keras.callbacks.Callback):
    """Gives all processes what the chief begins with; the last callback, after BackupAndRestore."""

    def __init__(self, start: Start) -> None:
        super().__init__()
        self._start = start

    def on_train_begin(self, logs: Any = None) -> None:
        self._start.share(self.model)


@final
class _Watched(keras.callbacks.Callback):
    """Tells what this process does: others wait for it within a step, and nowhere else."""

    num_steps = 0

    def __init__(self, begin: Callable[..., None]) -> None:
        super().__init__()
        self._begin = begin

    def _step(self, batch: int, logs: Any = None) -> None:
        _Watched.num_steps += 1
        self._begin(f"step {_Watched.num_steps}", _Watched.num_steps)

    def _own_code(self, batch: int, logs: Any = None) -> None:
        self._begin(OWN_CODE)

    on_train_batch_begin = on_test_batch_begin = on_predict_batch_begin = _step
    on_train_batch_end = on_test_batch_end = on_predict_batch_end = _own_code


@final
class Elsewhere:
    """Keeps the models that a process other than the chief saves, for what it loads again.

    The file that a script names is the chief's. All processes have the same weights, so what this
    one loads from there is what it saved itself, whenever the chief gets to it.
    """

    def __init__(self) -> None:
        self._folder: Path | None = None
        self._kept: dict[str, Path] = {}

    def install(self) -> None:
        """Change where Keras's functions save and load, for good."""
        module = of_fit.saving()
        for name in ("save_model", "save_weights"):
            setattr(module, name, self._saved(getattr(module, name)))
        for name in ("load_model", "load_weights"):
            loaded = self._loaded(getattr(module, name))
            setattr(module, name, loaded)
        for place in (keras.saving, keras.models):
            for name in ("save_model", "load_model", "save_weights", "load_weights"):
                if hasattr(place, name):
                    setattr(place, name, getattr(module, name))
        keras.Model.export = lambda *args, **kwargs: None

    def _saved(self, save: Callable[..., Any]) -> Callable[..., Any]:
        def saved(model: Any, filepath: Any, *args: Any, **kwargs: Any) -> Any:
            return save(model, self._place(filepath), *args, **kwargs)

        return saved

    def _loaded(self, load: Callable[..., Any]) -> Callable[..., Any]:
        def loaded(*args: Any, **kwargs: Any) -> Any:
            given = [self._own(value) for value in args]
            named = {key: self._own(value) for key, value in kwargs.items()}
            return load(*given, **named)

        return loaded

    def _own(self, value: Any) -> Any:
        return self._kept.get(_full(value), value) if isinstance(value, str | Path) else value

    def _place(self, filepath: Any) -> Path:
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="tfunet-"))
            atexit.register(shutil.rmtree, self._folder, ignore_errors=True)
        place = _full(filepath)
        if place not in self._kept:
            self._kept[place] = self._folder / f"{len(self._kept)}-{Path(filepath).name}"
        return self._kept[place]


def _full(filepath: Any) -> str:
    return os.path.abspath(str(filepath))
