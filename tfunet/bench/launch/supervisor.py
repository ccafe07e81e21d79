"""The supervisor: starts the processes of a run here, watches them, and ends them together.

Nothing that a run starts outlives it:

    supervisor ends ─► SIGTERM, then SIGKILL to the group of each process
    process ends    ─► SIGKILL to what is left of its group
    supervisor dies ─► the kernel kills the processes, a guard their groups

Only a daemon, which a process starts in yet another session, is out of reach. No TensorFlow.
"""

import os
import selectors
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import final

from tfunet import exit_codes
from tfunet.bench.launch.blame import blame, describe_end, follows_another
from tfunet.bench.launch.child_process import Guard, Process, exit_code_of, start
from tfunet.bench.launch.process_output import Log, Screen, Stream, last_error, last_words
from tfunet.bench.launch.processes_to_start import ProcessPlan, child_environment, prefix
from tfunet.files.atomic import WriteError
from tfunet.process import stop_request
from tfunet.process.stop_request import StopRequest
from tfunet.process.watchdog import Beats, Watch
from tfunet.record import RunFolder

# For all processes to write their stacks before they are ended.
STACKS_SECONDS = 1.0
STOPPED = "stopped, as by SIGSTOP"
# Within this time, processes follow another one whose death broke their collective.
SETTLE_SECONDS = 0.2
TICK_SECONDS = 0.05
# Only a process that hangs in a driver or on a network disk survives SIGKILL for longer.
KILLED_SECONDS = 10.0
# Only a daemon still holds a pipe open after all processes have ended.
DRAIN_SECONDS = 10.0
# When it is said for the first time that a run is still not saved; then after twice the time.
WAIT_SECONDS = 10.0


@dataclass(frozen=True)
class RunOutcome:
    """How a run ended.

    Args:
        reason: In words; empty if it ended well.
        is_lost: Whether that process was killed or hangs, without an error of its own.
        error: The error that that process told, without where it ended.
    """

    exit_code: int
    reason: str = ""
    process: int | None = None
    is_lost: bool = False
    error: str = field(default="", compare=False)


@final
class Supervisor:
    """The processes of one run, from the first start to the last end.

    Args:
        noted: Signals that this process received.
        network: The process that holds the network of the run, if it has one of its own.
        after_signal: Returns what the user can do after a signal; it gets the step after which the
            run was saved, or None.
        is_saved_at_end: Whether a run that has taken steps is saved after a signal.
        keeps_codes: Whether the exit code of a process is that of the run, whatever it is.
    """

    def __init__(
        self,
        folder: RunFolder,
        noted: Sequence[int],
        *,
        verbose: bool,
        grace_seconds: float,
        hang_seconds: float,
        after_signal: Callable[[int | None], str],
        network: int | None = None,
        is_saved_at_end: bool = True,
        keeps_codes: bool = False,
    ) -> None:
        self.folder = folder
        self.noted = noted
        self.verbose = verbose
        self.grace_seconds = grace_seconds
        self.hang_seconds = hang_seconds
        self.network = network
        self.after_signal = after_signal
        self.is_saved_at_end = is_saved_at_end
        self.keeps_codes = keeps_codes
        self.stop = StopRequest.new()
        self.screen = Screen()
        self.selector = selectors.DefaultSelector()
        self.processes: list[Process] = []
        self.logs: list[Log] = []
        # (index, exit code) of the processes that failed, in order.
        self.failures: list[tuple[int, int]] = []
        self.unwritten: WriteError | None = None
        self.watch = Watch((), hang_seconds, time.monotonic())
        self.hanging: RunOutcome | None = None

    def run(self, plans: Sequence[ProcessPlan], command: Sequence[str]) -> RunOutcome:
        """Start all processes, watch them, end them all, and record how it went."""
        guard = Guard()
        names = [(i, f"process {i} of {len(plans)}") for i in range(len(plans))]
        self.watch = Watch(names, self.hang_seconds, time.monotonic())
        try:
            for plan in plans:
                if not self.noted:
                    self._start(plan, command, guard)
            self._watch(guard)
            # Whatever fails from here on, fails because the others are ended.
            failures, noted = list(self.failures), list(self.noted)
            if len(self.processes) == len(plans) and not (failures or self._alive()):
                noted = []  # The signal came too late.
        except WriteError as error:
            self.unwritten, failures, noted = error, [], []
        finally:
            self._end_all(guard)
            guard.dismiss()
        outcome = self._outcome(failures, noted)
        if outcome.exit_code != exit_codes.OK:
            self._report(outcome)
        elif self.noted:
            self.screen.say("tfunet: The run was at its end, and is complete.")
        self.stop.close()
        return outcome

    def is_anyone_left(self) -> bool:
        """Whether a process could not even be killed."""
        return bool(self._alive())

    def _alive(self) -> list[Process]:
        return [process for process in self.processes if process.code is None]

    def _start(self, plan: ProcessPlan, command: Sequence[str], guard: Guard) -> None:
        index = plan.launch.process_index
        log = Log(self.folder.log_path(index), self.folder.open_log(index))
        self.logs.append(log)
        environment = {
            **child_environment(plan, os.environ),
            stop_request.VARIABLE: str(self.stop.descriptor),
        }
        process = start(
            index, command, plan.cores, environment, self.network, [self.stop.descriptor]
        )
        self.processes.append(process)
        guard.watch(self.processes)
        beats = process.pulse, Beats(index, self.watch)
        self.selector.register(process.pulse, selectors.EVENT_READ, beats)
        for pipe, target in zip(process.pipes(), (sys.stdout, sys.stderr), strict=True):
            stream = Stream(
                log,
                screen=self.screen,
                target=target if self._is_shown(index) else None,
                owner=index,
                prefix=prefix(plan.launch),
            )
            self.selector.register(pipe, selectors.EVENT_READ, (pipe, stream))

    def _is_shown(self, index: int) -> bool:
        return self.verbose or index == 0

    def _watch(self, guard: Guard) -> None:
        """Return when all have ended, one failed or hangs, a signal came, or a disk is full.

        After a signal, a run that has begun to train is saved first.
        """

        def over() -> bool:
            return bool(self.failures or self.noted or self.unwritten) or self._hangs()

        self._pump_until(over, guard)
        can_save = not (self.failures or self.unwritten or self.hanging) and self.stop.has_steps
        if self.noted and self.is_saved_at_end and can_save:
            self._await_save(guard)
        if self._is_saved():
            self._pump_until(lambda: len(self.noted) > 1, guard, self.grace_seconds)
        elif self.failures:
            self._pump_until(lambda: bool(self.noted), guard, SETTLE_SECONDS)
            if follows_another(self.failures):
                self._find_stopped()
        if self.hanging:
            self._dump_stacks(guard)

    def _await_save(self, guard: Guard) -> None:
        """Let the run save and end; return when it has, cannot, or shall not be waited for."""
        number = self.noted[0]
        name, again = signal.Signals(number).name, "A second signal"
        if number == signal.SIGINT:
            name, again = "Ctrl-C", "A second Ctrl-C"
        self.screen.say(
            f"tfunet: {name}: the run is saved after this step, and ends. It now does: "
            f"{self.watch.doing(0)}. {again} ends it at once, without the steps since its last "
            "checkpoint."
        )
        self.stop.ask()

        def over() -> bool:
            is_told = bool(self.failures or self.unwritten) or len(self.noted) > 1
            return is_told or self._hangs()

        since, wait = time.monotonic(), WAIT_SECONDS
        self._pump_until(over, guard, wait)
        while self._alive() and not over():
            waited = time.monotonic() - since
            self.screen.say(
                f"tfunet: Waiting to save for {waited:.0f} s. The run now does: "
                f"{self.watch.doing(0)}."
            )
            wait *= 2
            self._pump_until(over, guard, since + wait - time.monotonic())

    def _is_saved(self) -> bool:
        """Whether the chief has written a checkpoint and ended, as it was asked to."""
        return (0, exit_codes.STOPPED) in self.failures

    def _dump_stacks(self, guard: Guard) -> None:
        alive = self._alive()
        stopped = [process for process in alive if process.is_stopped()]
        for process in alive:
            if process not in stopped:
                process.dump_stacks()
        self._pump_until(lambda: bool(self.noted), guard, STACKS_SECONDS)
        if stopped:
            # A stopped process writes only when it is woken, and would then go on with the others.
            for process in alive:
                if process not in stopped:
                    process.signal_group(signal.SIGKILL)
            self._pump_until(
                lambda: all(
                    process.code is not None for process in alive if process not in stopped
                ),
                guard,
                KILLED_SECONDS,
            )
            for process in stopped:
                process.dump_stacks()
            self._pump_until(lambda: bool(self.noted), guard, STACKS_SECONDS)

    def _hangs(self) -> bool:
        """Record which process hangs, if one does."""
        hanging = self.watch.hanging(time.monotonic()) if self.hang_seconds else None
        if hanging is not None:
            index, reason = hanging
            stopped = index is not None and self.processes[index].is_stopped()
            self._blame_hanging(index, f"{reason} (it is {STOPPED})" if stopped else reason)
        return hanging is not None

    def _find_stopped(self) -> None:
        """Record a stopped process that others gave up waiting for before the watchdog did."""
        for process in self._alive():
            if process.is_stopped():
                who = f"process {process.index} of {len(self.processes)}"
                doing = self.watch.doing(process.index)
                self._blame_hanging(process.index, f"{who} hangs: it is {STOPPED}, since {doing}")

    def _blame_hanging(self, index: int | None, reason: str) -> None:
        reason += "; the Python stacks of all processes are in log-*.txt"
        # If no process is behind the others, there is none to go on without.
        is_lost = index is not None
        self.hanging = RunOutcome(exit_codes.PROCESS_DIED, reason, index, is_lost=is_lost)

    def _outcome(self, failures: Sequence[tuple[int, int]], noted: Sequence[int]) -> RunOutcome:
        # What fails while the run is to be saved is told: it is not saved.
        fails = self.stop.is_asked and failures and not self._is_saved()
        if noted and not fails:
            reason = f"interrupted by {signal.Signals(noted[0]).name}"
            return RunOutcome(exit_code_of(noted), reason)
        if self.unwritten:
            return RunOutcome(exit_codes.NOT_WRITTEN, str(self.unwritten))
        if self.hanging:
            return self.hanging
        if not failures:
            return RunOutcome(exit_codes.OK)
        index, code = blame(failures)
        reason = describe_end(index, len(self.processes), code, last_words(self.logs[index].tail))
        on_purpose = code in exit_codes.ON_PURPOSE
        is_kept = on_purpose or (self.keeps_codes and code > 0)
        exit_code = code if is_kept else exit_codes.PROCESS_DIED
        is_lost = code < 0 and code != -signal.SIGABRT
        error = last_error(self.logs[index].tail) if on_purpose else ""
        return RunOutcome(exit_code, reason, index, is_lost=is_lost, error=error)

    def _end_all(self, guard: Guard) -> None:
        """Leave nothing running and nothing open: SIGTERM, some time, SIGKILL."""
        noted = min(len(self.noted), 1)
        for process in self._alive():
            process.signal_group(signal.SIGTERM)
        self._pump_until(lambda: len(self.noted) > noted, guard, self.grace_seconds)
        for process in self._alive():
            process.signal_group(signal.SIGKILL)
        self._pump_until(lambda: False, guard, KILLED_SECONDS)
        for process in self._alive():
            self.screen.say(f"tfunet: process {process.popen.pid} cannot be killed; it hangs.")
        self._close_all()

    def _close_all(self) -> None:
        deadline = time.monotonic() + DRAIN_SECONDS
        while self._pump() and time.monotonic() < deadline:
            continue
        for key in list(self.selector.get_map().values()):
            self._close(key)
        self.selector.close()
        for log in self.logs:
            log.close()

    def _pump_until(
        self, done: Callable[[], bool], guard: Guard, seconds: float | None = None
    ) -> None:
        """Pass on output and record ends, until no process is left, `done`, or the time is up."""
        deadline = None if seconds is None else time.monotonic() + seconds
        while self._alive() and not done():
            if deadline is not None and time.monotonic() > deadline:
                return
            self._pump()
            ended = [process for process in self.processes if process.has_just_ended()]
            if ended:
                self.failures += [
                    (process.index, process.code) for process in ended if process.code
                ]
                for process in ended:
                    self.watch.forget(process.index)
                guard.watch(self.processes)

    def _pump(self) -> bool:
        """Pass on what the pipes hold, after a short wait; False if there was nothing."""
        ready = self.selector.select(TICK_SECONDS)
        for key, _ in ready:
            data = os.read(key.fd, 65536)
            if not data:
                self._close(key)
                continue
            try:
                key.data[1].feed(data)
            except WriteError as error:
                self.unwritten = self.unwritten or error
        return bool(ready)

    def _close(self, key: selectors.SelectorKey) -> None:
        pipe, stream = key.data
        self.selector.unregister(pipe)
        pipe.close()
        try:
            stream.finish()
        except WriteError as error:
            self.unwritten = self.unwritten or error

    def _report(self, outcome: RunOutcome) -> None:
        index, reason = outcome.process, outcome.reason
        is_explained = False
        if index is not None:
            on_purpose = outcome.exit_code in exit_codes.ON_PURPOSE
            words = last_words(self.logs[index].tail)
            shown = [log for at, log in enumerate(self.logs) if self._is_shown(at)]
            # What is wrong with the input or the code, every process may find: it is said once.
            is_on_screen = bool(words) and any(words in log.tail for log in shown)
            is_said = on_purpose and is_on_screen
            is_repeated = is_on_screen and not outcome.is_lost
            if not self._is_shown(index) and not is_repeated:
                for line in self.logs[index].tail:
                    self.screen.say(f"[{index}] {line}")
            if on_purpose or is_on_screen:
                reason = reason.removesuffix(f": {words}")
            is_alone = len(self.processes) == 1
            is_explained = is_alone and is_said and outcome.exit_code == exit_codes.BAD_INPUT
        if not is_explained:  # Its error says all.
            self.screen.say(f"tfunet: {reason}")
        if index is not None and not is_explained:
            self.screen.say(f"tfunet: All its output is in {self.logs[index].path}")
        if index is None and outcome.exit_code in (exit_codes.INTERRUPTED, exit_codes.TERMINATED):
            step = self.stop.last_step if self._is_saved() else None
            self.screen.say(f"tfunet: {self.after_signal(step)}")
        try:
            self.folder.write_failure(outcome.reason, outcome.exit_code, index)
        except WriteError as error:
            self.screen.say(f"tfunet: {error}")
