"""The one training loop. Read it from top to bottom."""

import functools
import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NoReturn

import keras
import numpy as np
import psutil
import tensorflow as tf
from tqdm import tqdm

from tfunet.backend import Backend
from tfunet.config.augmentation import read_augmentation
from tfunet.config.run import RunConfig
from tfunet.data import sample_order
from tfunet.data.augmentation import dali_limits
from tfunet.data.cache import build_cache, default_folder
from tfunet.data.pipeline import EvaluationPipeline, TrainingPipeline
from tfunet.data.source import open_source
from tfunet.exit_codes import CheckFailedError, StoppedError
from tfunet.files.atomic import WriteError
from tfunet.graph.gradient_sums import in_order_of_graph
from tfunet.learning import losses, optimizers
from tfunet.learning.averaging import Switch, averaging
from tfunet.machine.cpu_memory import check_cap
from tfunet.machine.energy import NOTHING_YET, RunEnergy
from tfunet.machine.environment import environment
from tfunet.models.make import make_model
from tfunet.process.terminal import decoding_bar, shows_progress
from tfunet.process.watchdog import nobody_asks
from tfunet.record import RunFolder
from tfunet.swap import LargeModelSupport
from tfunet.swap.arena.budget import join_regions
from tfunet.swap.report.measured import Measured
from tfunet.timing.profiling import Profile
from tfunet.timing.spans import Spans
from tfunet.training import callbacks as callback_tables
from tfunet.training import checkpoint, input_bound, preflight, state
from tfunet.training.checks import (
    dropped_samples,
    every_voxel_once,
    make_fingerprint,
    samples_hash,
    weights_hash,
)
from tfunet.training.evaluation import Evaluation, Scores
from tfunet.training.progress import Progress
from tfunet.training.shared_split import shared_split
from tfunet.training.step import make_step
from tfunet.training.step_memory import NO_ACCOUNT, step_memory
from tfunet.training.summary import epoch_row, peak_bytes, summarise


def run(
    config: RunConfig,
    backend: Backend,
    path: str | Path,
    *,
    callbacks: Sequence[keras.callbacks.Callback] = (),
    stops_after: Callable[[int], bool] = lambda step: False,
    begin: Callable[..., None] = nobody_asks,
) -> dict[str, Any]:
    """Train, evaluate and record one run; every process of it calls this.

    A folder with a checkpoint of the same configuration goes on from there.

    Args:
        config: What to do.
        backend: Not yet started.
        path: The run's folder; the chief writes there.
        callbacks: Keras callbacks beside those of the configuration.
        stops_after: Called after each step; where true, the same in all processes, the run ends.
        begin: Told what this process begins, and in which step, as `Pulse.begin`.

    Returns what result.json holds.

    Raises ValueError for what is wrong with configuration or data, WriteError where the record
    cannot be written, CheckFailedError when the run did not compute what it should, and
    StoppedError, after a checkpoint, when `stops_after` said so.
    """
    # --- Start: devices, processes, random numbers ---------------------------------------------
    started = psutil.Process().create_time()
    spans = Spans(started, begin) if config.trace else None
    note = None
    if spans is not None:
        begin, note = spans.begin, spans.add
    topology = backend.start()
    keras.utils.set_random_seed(config.seed)
    keras.config.set_dtype_policy(config.precision)
    if config.deterministic:
        tf.config.experimental.enable_op_determinism()
    folder = RunFolder(Path(path))
    if topology.is_chief:
        folder.create()
        folder.write_config(config)
        folder.write_env(environment())

    # Before the data, which can take long: what it cannot use is refused here.
    has_gpus = bool(tf.config.list_logical_devices("GPU"))
    check_cap(config.cpu_memory, os.environ, on_gpu=has_gpus)
    join_regions()
    support = _support(config, is_chief=topology.is_chief)

    # --- Data: the same split and order in every process ---------------------------------------
    begin("opening the data")
    source = open_source(config.data, config.data_options, skip_bad=config.skips_bad)
    patch = source.chosen_patch(config.patch)
    augmentation = read_augmentation(config.augmentation)
    augmentation.check_patch(patch)
    if config.pipeline == "dali":
        dali_limits.check_installed()
        dali_limits.check_patch(augmentation, patch)
    cache_folder = Path(config.cache_dir) if config.cache_dir else default_folder()
    with decoding_bar() as show:
        cases = build_cache(
            source,
            cache_folder,
            patch=patch,
            progress=show,
            alive=functools.partial(begin, "decoding"),
            skip_bad=config.skips_bad,
        )
    begin("setting up the model")
    split, num_left_out = shared_split(config, source, cases.defects, folder, backend, topology)
    validation_ids = tuple(source.case_ids[index] for index in split.validation)
    validation_voxels = [math.prod(cases.extents[index]) for index in split.validation]
    if topology.is_chief:
        folder.write_data(
            {
                "name": source.name,
                "channels": source.channels,
                "num_classes": source.num_classes,
                "patch": patch,
                "preparation": source.preparation,
            }
        )
    num_samples = len(split.train) * config.patches_per_case
    steps_per_epoch = sample_order.steps_per_epoch(num_samples, config.global_samples)
    last_step = config.steps or config.epochs * steps_per_epoch
    evaluation_pipeline = EvaluationPipeline(
        cases=cases,
        validation=split.validation,
        halo=config.evaluation_halo,
        replica_batch=config.replica_samples // config.accumulation,
        num_replicas=topology.num_replicas,
    )

    # --- Model, loss, optimizer ----------------------------------------------------------------
    loss = losses.make(config.loss, config.loss_options)
    # XLA compiles the step as a whole: nothing in it can be told of.
    noted = not config.xla and topology.num_replicas > 1
    average = Switch(backend.average, note if noted else None)
    with backend.scope():
        model = make_model(
            config.model,
            image_shape=(*patch, source.channels),
            num_classes=source.num_classes,
            options=config.model_options,
        )
        optimizer = optimizers.make(config, topology.num_replicas, steps_per_epoch)
        model.compile(
            optimizer=averaging(optimizer, average, config.accumulation),
            loss=loss,
            metrics=list(config.metrics) or None,
            jit_compile=False,
            auto_scale_loss=False,
        )
        model.optimizer.build(model.trainable_variables)
    batch = next(iter(evaluation_pipeline(range(1)).take(1)))
    look = preflight.inspect(
        model,
        loss,
        image=batch["image"].numpy()[:1],
        mask=batch["mask"].numpy()[:1],
        num_classes=source.num_classes,
        support=support,
    )
    with backend.scope():
        # Makes the variables of compiled metrics, as `fit` does: replicas cannot make them.
        model._symbolic_build(data_batch=(batch["image"], batch["mask"]))

    # --- Where to begin: the chief's weights, or its checkpoint --------------------------------
    variables = [*model.variables, *model.optimizer.variables]
    callbacks = [
        *callback_tables.make(config.callbacks, is_chief=topology.is_chief, folder=folder.path),
        *callbacks,
    ]
    if support is not None:
        callbacks.append(support)
    supports = [one for one in callbacks if isinstance(one, LargeModelSupport)]
    for one in supports:
        one.note = one.note or note
    profile = None
    # Of the chief alone: in the other processes TensorFlow 2.21 aborts, often, when it ends.
    if config.profile and note is not None and topology.is_chief:
        profile = Profile(folder.profile_path(topology.process_index), backend.profile, note)
        callbacks.append(profile)
    progress = Progress(energy=NOTHING_YET)
    carried: dict[str, np.ndarray] = {}  # of an epoch that was begun before; on the chief only
    callback_states: dict[str, dict[str, Any]] = {}
    restored = checkpoint.restore(folder, backend, topology, variables)
    if restored is None:
        state.broadcast(backend, topology, variables)
    else:
        carried, facts = restored
        callback_states = facts.pop("callbacks")
        progress = Progress(**facts)
    parts = progress.replicas_from_step
    if not parts or parts[-1][1] != topology.num_replicas:
        parts.append((progress.step + 1, topology.num_replicas))
    progress.began.append((progress.step + 1, started))
    if spans is not None:
        spans.write_to(folder.spans_table(topology.process_index), progress.step)

    # --- Traced functions and feeds ------------------------------------------------------------
    evaluate = Evaluation(
        backend=backend,
        model=model,
        loss=loss,
        pipeline=evaluation_pipeline,
        num_cases=len(validation_ids),
        num_classes=source.num_classes,
        regions=source.regions,
        supports=supports,
    )
    metric_state = state.MetricState(backend, model)
    fingerprint = make_fingerprint(backend, model.variables)
    training_pipeline = TrainingPipeline(
        cases=cases,
        train=split.train,
        first_step=progress.step,
        last_step=last_step,
        patches_per_case=config.patches_per_case,
        replica_batch=config.replica_samples,
        num_replicas=topology.num_replicas,
        accumulation=config.accumulation,
        seed=config.seed,
        foreground_share=config.foreground_share,
        augmentation=augmentation,
        augmented_by=config.pipeline,
        synthetic=config.synthetic,
    )
    take_step, step_alone = (
        make_step(
            backend,
            model,
            training_pipeline.augmented,
            accumulation=config.accumulation,
            xla=config.xla,
            note=note,
        )
        for _ in range(2)
    )
    if config.deterministic:
        take_step, step_alone = in_order_of_graph(take_step), in_order_of_graph(step_alone)
    for one in supports:
        take_step, step_alone = one.guarding(take_step), one.guarding(step_alone)
    iterator = iter(backend.feed(training_pipeline))

    # --- Record, progress, callbacks -----------------------------------------------------------
    steps_table = epochs_table = None
    if topology.is_chief:
        print(f"{config.model}: {look}", flush=True)
        steps_table = folder.steps_table(last=progress.step)
        epochs_table = folder.epochs_table(source.regions, last=progress.step // steps_per_epoch)
        if restored is not None:
            changed = len(parts) > 1 and parts[-1][0] == progress.step + 1
            now = f", now with num_replicas={topology.num_replicas}" if changed else ""
            print(f"Going on from step {progress.step} of {last_step}{now}.", flush=True)
    bar = tqdm(
        total=last_step,
        initial=progress.step,
        unit="step",
        disable=not (topology.is_chief and shows_progress()),
    )
    keras_callbacks = keras.callbacks.CallbackList(
        callbacks,
        model=model,
        epochs=-(-last_step // steps_per_epoch),
        steps=steps_per_epoch,
    )
    model.stop_training = progress.stop_training
    begin("callbacks before training")
    keras_callbacks.on_train_begin()
    for index, values in callback_states.items():
        if int(index) < len(callbacks):
            vars(callbacks[int(index)]).update(values)

    def timed(step: Callable[[Any], dict[str, Any]], batches: Any) -> float:
        begin("timing steps")
        since = time.perf_counter()
        # Reading the loss waits for the device: the clock stops after the work is done.
        step(batches)["logs"]["loss"].numpy()
        return time.perf_counter() - since

    def alone_step(batches: Any) -> float:
        with average.off():
            return timed(step_alone, batches)

    def write_steps(local_losses: list[float]) -> None:
        """Sum the losses since the last call over processes, and write a row for each step."""
        step_losses = backend.sum(np.array(local_losses)) / topology.num_replicas
        local_losses.clear()
        first = progress.step - len(step_losses)
        for index, value in enumerate(step_losses, start=first):
            if steps_table is not None:
                row = {"step": index + 1, "seconds": progress.step_seconds[index], "loss": value}
                steps_table.append({**row, "traced": int(index + 1 in progress.traced_steps)})

    def save(arrays: dict[str, np.ndarray]) -> None:
        begin("saving")
        since = time.perf_counter()
        progress.stop_training = bool(model.stop_training)
        progress.energy = energy.so_far()
        if topology.is_chief:
            states = {str(index): callback_tables.state(one) for index, one in enumerate(callbacks)}
            facts = {**vars(progress), "callbacks": states}
            checkpoint.save(folder, variables, arrays, facts)
        progress.spend("saving", since)

    def stop() -> None:
        backend.sum(np.zeros(1))  # Nobody leaves before the chief has written all.
        if spans is not None:
            spans.close()
        backend.stop()

    def leave() -> NoReturn:
        if profile is not None:
            profile.stop()
        stop()
        raise StoppedError(f"Stopped by a signal after step {progress.step} of {last_step}.")

    # --- The loop ------------------------------------------------------------------------------
    progress.seconds["start"] = progress.seconds.get("start", 0.0) + time.time() - started
    if progress.step < last_step and not model.stop_training:
        progress.traced_steps.append(progress.step + 1)
    saving_in_rows = progress.seconds.get("saving", 0.0)
    energy = RunEnergy(backend, topology, before=progress.energy, with_gpus=has_gpus)
    while progress.step < last_step and not model.stop_training:
        epoch, begun = divmod(progress.step, steps_per_epoch)
        epoch_end = min((epoch + 1) * steps_per_epoch, last_step)
        epoch_since = time.perf_counter()
        saving_before = progress.seconds.get("saving", 0.0)
        used = carried.pop("samples", np.zeros((2, num_samples)))
        metrics_before = carried.pop("metrics", None)
        local_losses: list[float] = []
        running_sum, stopping = 0.0, False
        model.reset_metrics()
        begin(f"callbacks before epoch {epoch + 1}")
        keras_callbacks.on_epoch_begin(epoch)
        for in_epoch in range(begun, epoch_end - epoch * steps_per_epoch):
            keras_callbacks.on_train_batch_begin(in_epoch)
            begin(f"step {progress.step + 1}", progress.step + 1)
            since = time.perf_counter()
            output = take_step(iterator)
            # Reading the loss waits for the device: the clock stops after the work is done.
            running = float(output["logs"]["loss"].numpy().sum())
            progress.step_seconds.append(time.perf_counter() - since)
            progress.step += 1
            begin(f"callbacks after step {progress.step}")
            # Keras's logs are means since the epoch began; this step's loss is the difference.
            local_losses.append(running * (in_epoch - begun + 1) - running_sum)
            running_sum = running * (in_epoch - begun + 1)
            used[:, output["sample"].numpy().ravel()] += [[1], [in_epoch + 1]]
            if not np.isfinite(running):
                raise CheckFailedError(
                    f"The loss became {running} at step {progress.step}. Lower learning_rate, or "
                    "use precision = 'float32'."
                )
            logs = {name: float(value.numpy().mean()) for name, value in output["logs"].items()}
            keras_callbacks.on_train_batch_end(in_epoch, logs)
            bar.update()
            bar.set_postfix(loss=f"{logs['loss']:.4f}", refresh=False)
            stopping = stops_after(progress.step)
            if (stopping or _checkpoint_due(config, progress.step)) and progress.step < epoch_end:
                state.average_statistics(backend, topology, model)
                write_steps(local_losses)
                metrics = metric_state.total(metrics_before)
                save({"metrics": metrics, "samples": backend.sum(used)})
                if stopping:
                    leave()
        saving = progress.seconds.get("saving", 0.0) - saving_before
        training_seconds = time.perf_counter() - epoch_since - saving

        # After an epoch: the same numbers in every process, and proof of it.
        begin("checking")
        write_steps(local_losses)
        state.average_statistics(backend, topology, model)
        progress.weights_hash = weights_hash(backend, topology, fingerprint().numpy())
        steps = epoch_end - epoch * steps_per_epoch
        if not config.synthetic:
            used = backend.sum(used)
            progress.samples_hash = samples_hash(
                used, steps=steps, global_batch=config.global_samples
            )
            # Of an epoch that was not finished the rest is not dropped, but not reached.
            is_whole = steps == steps_per_epoch
            progress.dropped_samples = dropped_samples(used) if is_whole else []
        progress.logs = metric_state.results(metric_state.total(metrics_before))
        rate = keras.ops.convert_to_numpy(model.optimizer.learning_rate)
        progress.logs["learning_rate"] = float(rate)
        since = time.perf_counter()
        found: Scores | None = None
        if (epoch + 1) % config.evaluate_every == 0 or epoch_end == last_step:
            found = evaluate(begin)
            every_voxel_once(found.counts[:, 0, 3], validation_voxels, validation_ids)
            progress.logs.update(found.logs())
        evaluation_seconds = progress.spend("evaluation", since)
        begin(f"callbacks after epoch {epoch + 1}")
        keras_callbacks.on_epoch_end(epoch, progress.logs)
        if epochs_table is not None:
            epochs_table.append(
                epoch_row(
                    epoch + 1,
                    progress,
                    source.regions,
                    training_seconds=training_seconds,
                    evaluation_seconds=evaluation_seconds,
                    saving_seconds=progress.seconds.get("saving", 0.0) - saving_in_rows,
                    elapsed_seconds=time.time() - started,
                )
            )
            saving_in_rows = progress.seconds.get("saving", 0.0)
            if found is not None:
                folder.write_cases(found.case_rows(epoch + 1, validation_ids))
            bar.clear()
            print(_epoch_line(epoch + 1, progress, training_seconds), flush=True)
        # After the rows: a run that is killed in between drops them when it goes on.
        save({})
        if stopping and progress.step < last_step:
            leave()
    if profile is not None:
        profile.stop()
    energy.close()
    elapsed_seconds = time.time() - started
    peaks = peak_bytes(backend, topology)
    turns: list[tuple[float, ...]] = []
    has_parts = config.time_parts and topology.num_replicas > 1 and not config.synthetic
    has_room = True
    # A second pipeline takes of the same memory; where oneDNN then has none, it ends the process.
    is_full = False
    if config.cpu_memory is not None and support is not None:
        is_full = bool(backend.sum(np.array([float(support.gives_up)])).any())
    if is_full:
        has_parts = False
        if topology.is_chief:
            print("Input: not compared with data in memory, for which a capped CPU has no room.")
    if not config.synthetic and not is_full:
        try:
            turns = input_bound.paired_seconds(
                functools.partial(timed, take_step),
                backend,
                training_pipeline,
                variables,
                steps=progress.step,
                alone_step=alone_step if has_parts else None,
            )
            line = input_bound.share_line(turns)
        except (WriteError, tf.errors.ResourceExhaustedError) as error:
            # Others may wait for this process, where not all of them know.
            if topology.process_count > 1 and not isinstance(error, input_bound.NoRoomError):
                raise
            has_parts = has_room = False
            why = error if isinstance(error, WriteError) else "no memory is left for them."
            line = f"Left out, what more steps would have told: {why}"
        if topology.is_chief:
            print(line, flush=True)
    measured = Measured(why_not="there was no room for more steps")
    if support is not None and has_room:
        step_again = functools.partial(timed, take_step)
        measured = step_memory(step_again, backend, topology, training_pipeline, variables)
        if measured.why_not not in ("", NO_ACCOUNT) and topology.is_chief:
            print(f"The memory of a step was not measured: {measured.why_not}", flush=True)
    step_parts: dict[str, Any] = {}
    if has_parts:
        alone_seconds = [one[-1] for one in turns]
        step_parts = input_bound.parts(backend, topology, alone_seconds, model.trainable_variables)
    keras_callbacks.on_train_end()
    bar.close()

    # --- Result: written last ------------------------------------------------------------------
    result = summarise(
        config,
        topology,
        parameters=look.parameters,
        steps_per_epoch=steps_per_epoch,
        progress=progress,
        regions=tuple(source.regions),
        left_out_cases=num_left_out,
        peaks=peaks,
        bound_pairs=[one[:2] for one in turns],
        parts=step_parts,
        pipeline_bytes=training_pipeline.buffered_bytes,
        elapsed_seconds=elapsed_seconds,
    )
    begin("saving")
    if topology.is_chief:
        since = time.perf_counter()
        with folder.replacing("model.keras") as model_path:
            model.save(model_path)
        if support is not None:
            # A plan is of one pass.
            seconds = result["median_step_seconds"]
            seconds = None if seconds is None else seconds / config.accumulation
            measured = replace(measured, step_seconds=seconds)
            plans, of_evaluation = (
                [asdict(one) for one in found]
                for found in (support.plans, support.evaluation_plans)
            )
            folder.write_plans(plans, asdict(measured), evaluation_plans=of_evaluation)
        progress.spend("saving", since)
        for table in (steps_table, epochs_table):
            if table is not None:
                table.close()
        folder.write_result(result)
    stop()
    return result


def _support(config: RunConfig, *, is_chief: bool) -> LargeModelSupport | None:
    if config.swap is None:
        return None
    return LargeModelSupport(
        config.swap,
        host_budget=config.swap_host,
        disk=config.swap_disk,
        disk_budget=config.swap_disk_size,
        compression=config.swap_compression,
        verbose=int(is_chief),
    )


def _checkpoint_due(config: RunConfig, step: int) -> bool:
    return config.checkpoint_steps is not None and step % config.checkpoint_steps == 0


def _epoch_line(epoch: int, progress: Progress, training_seconds: float) -> str:
    names = ("loss", "val_loss", "val_dice", "val_iou")
    shown = [f"{name} {progress.logs[name]:.4f}" for name in names if name in progress.logs]
    return f"epoch {epoch}: step {progress.step}, {', '.join(shown)}, {training_seconds:.1f} s"
