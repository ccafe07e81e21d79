"""Connects the processes that srun, mpirun or another launcher started, before TensorFlow.

    process 0 (chief)              process i
      listens
            <---- hello: run, index, host, address, code hash
            ----> welcome
      when all are there:
            ----> addresses of all

Each line is sealed with the secret of the run (`tfunet.process.sealed_line`). Any number of
strangers may connect: each has its own deadline, and no error of one connection ends the meeting.

The connections stay open, so that all can agree after which step to stop. No TensorFlow.
"""

import contextlib
import faulthandler
import os
import queue
import re
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, Self, final

from tfunet import exit_codes
from tfunet.files.printable import printable
from tfunet.files.typed import Count, FieldError, typed
from tfunet.process.addresses import address_of, free_port, listening
from tfunet.process.launcher_variables import Place, ports_of
from tfunet.process.sealed_line import SealedLine
from tfunet.process.secret import VARIABLE as SECRET_VARIABLE
from tfunet.process.terminal import counted
from tfunet.process.watchdog import Beat, Pulse, Watch, from_values, to_values

SECONDS_VARIABLE = "TFUNET_MEETING_SECONDS"
# Nodes start their processes one after the other and import from slow disks.
MEETING_SECONDS = 120.0
ANSWER_SECONDS = 10.0
LOST_SECONDS = 3.0  # A step fails about when the connection ends.
STACKS_SECONDS = 1.0  # Time for the other processes to write their stacks.
# A connection must have said hello so soon; ours wait twice as long for the chief's answer.
HELLO_SECONDS = 2.0
# Connections that have not said hello yet, at once; more of them wait.
MOST_STRANGERS = 64
SIGNALS = (signal.SIGTERM, signal.SIGUSR1)
ADDRESS = re.compile(r"[^\s:]{1,255}:\d{1,5}")


@dataclass(frozen=True, kw_only=True)
class Hello:
    """The first line of a process to its chief."""

    key: str
    index: int
    count: int
    host: str
    address: str
    code: str

    @classmethod
    def of(cls, message: Mapping[str, Any] | None) -> Self | None:
        """Return a message as a hello; None if a field is missing or wrong."""
        try:
            hello = typed(message, cls)
        except FieldError:
            return None
        # Process 0 is the chief itself.
        is_valid = 0 < hello.index < hello.count and ADDRESS.fullmatch(hello.address)
        return hello if is_valid else None

    @property
    def who(self) -> str:
        """The name of the process in messages."""
        return f"process {self.index} of {self.count} on {printable(self.host)}"


@final
class Meeting:
    """One process's connections to the others of its run, and their agreement to stop.

    `addresses` holds "host:port" of every process by index; the ports were free at the start.
    Raises ConnectionError, naming process and host, if one does not come in time or belongs to
    another run or code.

    Args:
        place: This process.
        code: Hash of the code that it runs.
        noted: Signals that it received, filled by a handler.
        secret: What all processes of the run know, and nobody else (`tfunet.process.secret`).
        seconds: How long it waits for the others; by default TFUNET_MEETING_SECONDS.
    """

    def __init__(
        self,
        place: Place,
        code: str,
        noted: Sequence[int],
        secret: bytes,
        *,
        seconds: float | None = None,
    ) -> None:
        self._place = place
        self._code = code
        self._noted = noted
        self._secret = secret
        given = os.environ.get(SECONDS_VARIABLE, MEETING_SECONDS)
        self._seconds = float(given) if seconds is None else seconds
        self._deadline = time.monotonic() + self._seconds
        self._peers: dict[int, SealedLine] = {}
        self._num_strangers = 0
        self._agreed = threading.Condition()
        self._asked = False
        self._last_step: int | None = None
        self._answers = 0
        self._gone: list[int] = []
        self._watch: Watch | None = None
        if place.count == 1:
            self.addresses: tuple[str, ...] = ("localhost:0",)
        elif place.index == 0:
            self.addresses = self._receive_all()
        else:
            self.addresses = self._join()
        for index, line in self._peers.items():
            threading.Thread(target=self._listen, args=(index, line), daemon=True).start()

    def stops_after(self, step: int) -> bool:
        """Whether all processes stop after `step`, because one of them got a signal.

        All processes call it after each step. None can finish step k+1 before the chief starts it,
        because the chief's gradients are missing. So a chief that is asked during step k tells all
        that k+1 is the last step before it starts k+1.
        """
        if self._place.index != 0:
            if self._noted and not self._asked:
                self._asked = True
                self._peers[0].send({"stop": True})
        elif (self._noted or self._asked) and self._last_step is None:
            self._last_step = step + 1 if self._peers else step
            with self._agreed:
                for line in self._peers.values():
                    line.send({"last_step": self._last_step})
                self._agreed.wait_for(
                    lambda: self._answers + len(self._gone) >= len(self._peers), ANSWER_SECONDS
                )
        return self._last_step is not None and step >= self._last_step

    def watch(self, limit: float, doing: str = "start") -> Pulse | None:
        """Send beats to the others; if a process hangs, write this one's stacks and end it.

        The chief watches all processes and tells them if one hangs. They watch the chief, which
        may hang itself. None if `limit` (seconds, as in `Watch`) is 0. `doing` is what this process
        does until it says `begin`.
        """
        if not limit or not self._peers:
            return None
        watched = range(self._place.count) if self._place.index == 0 else (0,)
        names = [(index, self._place.who(index)) for index in watched]
        self._watch = Watch(names, limit, time.monotonic())
        return Pulse(self._tell, doing)

    def _tell(self, beat: Beat) -> None:
        if self._watch is None:
            return
        with self._agreed:
            for line in self._peers.values():
                line.send({"beat": to_values(beat)})
            if self._place.index == 0:
                self._watch.hear(0, beat, time.monotonic())
            # A process that hears only the chief cannot tell which one waits for which.
            look = self._watch.hanging if self._place.index == 0 else self._watch.silent
            hanging = look(time.monotonic())
            if hanging is None:
                return
            for line in self._peers.values():
                line.send({"hangs": True})
        _end_hanging(hanging[1])

    def await_end(self) -> None:
        """On the chief, wait until the others have left: the launcher ends all with the first."""
        with self._agreed:
            self._agreed.wait_for(lambda: len(self._gone) >= len(self._peers), ANSWER_SECONDS)

    def lost(self) -> str:
        """Return the name of the first process whose connection has ended, after a moment; "" if
        all are there.
        """
        with self._agreed:
            self._agreed.wait_for(lambda: self._gone, LOST_SECONDS)
            return self._place.who(self._gone[0]) if self._gone else ""

    def _listen(self, index: int, line: SealedLine) -> None:
        while (message := line.receive()) is not None:
            with self._agreed:
                try:
                    self._take(index, line, message)
                except (TypeError, ValueError):  # Other code than ours.
                    break
                finally:
                    self._agreed.notify_all()
        with self._agreed:
            self._gone.append(index)
            if self._watch is not None:
                self._watch.forget(index)
            self._agreed.notify_all()

    def _take(self, index: int, line: SealedLine, message: Mapping[str, Any]) -> None:
        if message.get("stop"):
            self._asked = True
        elif "last_step" in message and index == 0:
            self._last_step = typed(message["last_step"], Count, "last_step")
            line.send({"answer": True})
        elif message.get("answer"):
            self._answers += 1
        elif "beat" in message and self._watch is not None:
            self._watch.hear(index, from_values(message["beat"]), time.monotonic())
        elif message.get("hangs"):
            _end_hanging()

    def _receive_all(self) -> tuple[str, ...]:
        place = self._place
        address = address_of(place.hosts[0])
        addresses = {0: f"{address}:{free_port(address, ports_of(place.key, 0)[1:])}"}
        arrivals: queue.Queue[tuple[SealedLine, Hello]] = queue.Queue()
        with (
            listening(address, ports_of(place.key, 0), place.who(0)) as server,
            self._greeting(server, arrivals),
        ):
            while len(addresses) < place.count or self._forget_gone(addresses):
                try:
                    line, hello = arrivals.get(timeout=self._left())
                except queue.Empty:
                    missing = [place.who(n) for n in range(place.count) if n not in addresses]
                    self._refuse_all(
                        f"{', '.join(missing)} did not come within {self._seconds:g} s"
                        f"{self._about_strangers()}"
                    )
                line.send({"welcome": True})
                if hello.index in addresses:
                    self._forget_gone(addresses)
                if hello.index in addresses or hello.count != place.count:
                    self._refuse_all(
                        f"{hello.who} came to a run of {place.count} that has it already", line
                    )
                self._peers[hello.index] = line
                if hello.code != self._code:
                    self._refuse_all(
                        f"{hello.who} runs other code ({printable(hello.code)}) than the chief "
                        f"({self._code}): install the same on all nodes"
                    )
                addresses[hello.index] = hello.address
        ordered = tuple(addresses[index] for index in range(place.count))
        for line in self._peers.values():
            line.send({"addresses": ordered})
        return ordered

    @contextlib.contextmanager
    def _greeting(
        self, server: socket.socket, arrivals: "queue.Queue[tuple[SealedLine, Hello]]"
    ) -> Iterator[None]:
        """Take connections in the block; each is heard in a thread of its own."""
        room = threading.Semaphore(MOST_STRANGERS + self._place.count)
        is_over = threading.Event()

        def greet(connection: socket.socket) -> None:
            hello = None
            with contextlib.suppress(OSError):
                line = SealedLine(connection, self._secret, is_chief=True)
                deadline = time.monotonic() + HELLO_SECONDS
                if line.open(deadline):
                    hello = Hello.of(line.receive(deadline))
            room.release()
            if hello is None or hello.key != self._place.key:
                self._num_strangers += 1
                connection.close()
            else:
                arrivals.put((line, hello))

        def accept() -> None:
            while not is_over.is_set():
                # An error of one connection, or no descriptor or thread left for now.
                try:
                    connection, _ = server.accept()
                    room.acquire()  # Waits while there are too many.
                    threading.Thread(target=greet, args=(connection,), daemon=True).start()
                except (OSError, RuntimeError):
                    is_over.wait(0.05)

        threading.Thread(target=accept, daemon=True).start()
        try:
            yield
        finally:
            is_over.set()
            # Wakes the thread that waits in `accept`, which closing does not.
            with contextlib.suppress(OSError):
                server.shutdown(socket.SHUT_RDWR)

    def _about_strangers(self) -> str:
        if not self._num_strangers:
            return ""
        return (
            f"; {counted(self._num_strangers, 'connection')} did not show the secret of this "
            f"run, which all its processes read in the folder of the run, or in {SECRET_VARIABLE}"
        )

    def _forget_gone(self, addresses: dict[int, str]) -> bool:
        """Forget processes that hung up and will connect again; return whether there were any."""
        gone = [index for index, line in self._peers.items() if line.is_gone()]
        for index in gone:
            self._peers.pop(index).close()
            del addresses[index]
        return bool(gone)

    def _refuse_all(self, reason: str, *others: SealedLine) -> None:
        for line in (*self._peers.values(), *others):
            line.send({"refused": reason})
        raise ConnectionError(f"{reason}.")

    def _join(self) -> tuple[str, ...]:
        place = self._place
        chief = address_of(place.hosts[0])
        ports = ports_of(place.key, 0)
        while self._left() > 0.1:
            for port in ports:
                answer = self._try(chief, port)
                addresses = (answer or {}).get("addresses")
                if answer is not None and _are_addresses(addresses, place.count):
                    return tuple(answer["addresses"])
                if answer is not None and "refused" in answer:
                    raise ConnectionError(f"{printable(str(answer['refused']))}.")
            time.sleep(0.1)
        raise ConnectionError(
            f"{place.who(0)} ({chief}, ports {ports[0]} to {ports[-1]}) did not answer "
            f"{place.who(place.index)} within {self._seconds:g} s{self._about_strangers()}. Read "
            "its log, and check for a firewall."
        )

    def _try(self, chief: str, port: int) -> dict[str, Any] | None:
        """Return what the chief answers at a port; None if the chief is not there."""
        place = self._place
        try:
            connection = socket.create_connection((chief, port), timeout=1)
        except OSError:
            return None
        line = SealedLine(connection, self._secret, is_chief=False)
        deadline = time.monotonic() + 2 * HELLO_SECONDS
        answer = None
        if line.open(deadline):
            # The address of the interface that reaches the chief.
            host = line.host()
            address = f"{host}:{free_port(host, ports_of(place.key, place.index))}"
            hello = {"key": place.key, "index": place.index, "count": place.count}
            line.send({**hello, "host": place.host, "address": address, "code": self._code})
            answer = line.receive(deadline)
        if answer is None:
            # Another run, or a stranger, listens there.
            self._num_strangers += 1
        elif "welcome" in answer:
            # The chief may have started later; it says in the end which process did not come.
            answer = line.receive(time.monotonic() + self._seconds + ANSWER_SECONDS)
        if answer is None or not _are_addresses(answer.get("addresses"), place.count):
            line.close()
        else:
            self._peers[0] = line
        return answer

    def _left(self) -> float:
        return max(0.001, self._deadline - time.monotonic())


def _are_addresses(values: Any, count: int) -> bool:
    """Whether a message holds the address of every process."""
    return (
        isinstance(values, list)
        and len(values) == count
        and all(isinstance(value, str) and ADDRESS.fullmatch(value) for value in values)
    )


def _end_hanging(reason: str = "") -> NoReturn:
    """Write this process's stacks and end it; the one that noticed says why, and goes first."""
    faulthandler.dump_traceback(file=sys.stderr, all_threads=True)
    if reason:
        print(f"error: {reason}. Each process wrote its Python stacks.", file=sys.stderr)
    sys.stderr.flush()
    # srun and mpirun then kill the other processes.
    time.sleep(STACKS_SECONDS if reason else ANSWER_SECONDS)
    os._exit(exit_codes.PROCESS_DIED)
