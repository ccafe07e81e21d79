"""Connects the processes that srun or mpirun started, before TensorFlow: one JSON object a line.

    process 0 (chief)              process i
      listens
            <---- hello: run, index, host, address, code hash
            ----> welcome
      when all are there:
            ----> addresses of all

The connections stay open, so that all can agree after which step to stop. No TensorFlow.
"""

import contextlib
import faulthandler
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any, NoReturn, final

from tfunet import exit_codes
from tfunet.process.launcher_variables import Place, ports_of
from tfunet.process.watchdog import Beat, Pulse, Watch, from_values, to_values

SECONDS_VARIABLE = "TFUNET_MEETING_SECONDS"
# Nodes start their processes one after the other and import from slow disks.
MEETING_SECONDS = 120.0
ANSWER_SECONDS = 10.0
STACKS_SECONDS = 1.0  # Time for the other processes to write their stacks.
# A stranger's connection keeps the chief this long; ours wait twice as long for its answer.
HELLO_SECONDS = 2.0
SIGNALS = (signal.SIGTERM, signal.SIGUSR1)
MOST_BYTES = 1 << 20


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
        seconds: How long it waits for the others; by default TFUNET_MEETING_SECONDS.
    """

    def __init__(
        self, place: Place, code: str, noted: Sequence[int], *, seconds: float | None = None
    ) -> None:
        self._place = place
        self._code = code
        self._noted = noted
        given = os.environ.get(SECONDS_VARIABLE, MEETING_SECONDS)
        self._seconds = float(given) if seconds is None else seconds
        self._deadline = time.monotonic() + self._seconds
        self._peers: dict[int, _Line] = {}
        self._agreed = threading.Condition()
        self._asked = False
        self._last_step: int | None = None
        self._answers = 0
        self._gone = 0
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
                    lambda: self._answers + self._gone >= len(self._peers), ANSWER_SECONDS
                )
        return self._last_step is not None and step >= self._last_step

    def watch(self, limit: float) -> Pulse | None:
        """Send beats to the others; if a process hangs, write this one's stacks and end it.

        The chief watches all processes and tells them if one hangs. They watch the chief, which
        may hang itself. None if `limit` (seconds, as in `Watch`) is 0.
        """
        if not limit or not self._peers:
            return None
        watched = range(self._place.count) if self._place.index == 0 else (0,)
        names = [(index, self._place.who(index)) for index in watched]
        self._watch = Watch(names, limit, time.monotonic())
        return Pulse(self._tell)

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
            self._agreed.wait_for(lambda: self._gone >= len(self._peers), ANSWER_SECONDS)

    def _listen(self, index: int, line: "_Line") -> None:
        while (message := line.receive()) is not None:
            with self._agreed:
                if message.get("stop"):
                    self._asked = True
                elif "last_step" in message:
                    self._last_step = int(message["last_step"])
                    line.send({"answer": True})
                elif message.get("answer"):
                    self._answers += 1
                elif "beat" in message and self._watch is not None:
                    self._watch.hear(index, from_values(message["beat"]), time.monotonic())
                elif message.get("hangs"):
                    _end_hanging()
                self._agreed.notify_all()
        with self._agreed:
            self._gone += 1
            if self._watch is not None:
                self._watch.forget(index)
            self._agreed.notify_all()

    def _receive_all(self) -> tuple[str, ...]:
        place = self._place
        address = address_of(place.hosts[0])
        addresses = {0: f"{address}:{_free_port(address, ports_of(place.key, 0)[1:])}"}
        with _listening(address, place) as server:
            while len(addresses) < place.count or self._forget_gone(addresses):
                server.settimeout(self._left())
                try:
                    connection, _ = server.accept()
                except TimeoutError:
                    missing = [place.who(n) for n in range(place.count) if n not in addresses]
                    self._refuse_all(
                        f"{', '.join(missing)} did not come within {self._seconds:g} s"
                    )
                line = _Line(connection)
                hello = line.receive(HELLO_SECONDS)
                if hello is None or hello.get("key") != place.key:
                    line.send({"refused": "another run meets here"})
                    line.close()
                    continue
                line.send({"welcome": True})
                index = int(hello["index"])
                if index in addresses:
                    self._forget_gone(addresses)
                who = f"process {index} of {hello['count']} on {hello['host']}"
                if index in addresses or hello["count"] != place.count:
                    self._refuse_all(f"{who} came to a run of {place.count} that has it already")
                if hello["code"] != self._code:
                    self._peers[index] = line
                    self._refuse_all(
                        f"{who} runs other code ({hello['code']}) than the chief ({self._code}): "
                        "install the same on all nodes"
                    )
                addresses[index] = hello["address"]
                self._peers[index] = line
        ordered = tuple(addresses[index] for index in range(place.count))
        for line in self._peers.values():
            line.send({"addresses": ordered})
        return ordered

    def _forget_gone(self, addresses: dict[int, str]) -> bool:
        """Forget processes that hung up and will connect again; return whether there were any."""
        gone = [index for index, line in self._peers.items() if line.is_gone()]
        for index in gone:
            self._peers.pop(index).close()
            del addresses[index]
        return bool(gone)

    def _refuse_all(self, reason: str) -> None:
        for line in self._peers.values():
            line.send({"refused": reason})
        raise ConnectionError(f"{reason}.")

    def _join(self) -> tuple[str, ...]:
        place = self._place
        chief = address_of(place.hosts[0])
        ports = ports_of(place.key, 0)[:1]
        ports += [port for port in ports_of(place.key, 0) if port not in ports]
        refused = ""
        while self._left() > 0.1:
            for port in ports:
                answer = self._try(chief, port)
                if answer is not None and "addresses" in answer:
                    return tuple(answer["addresses"])
                if answer is not None and "refused" in answer:
                    refused = str(answer["refused"])
                    if refused != "another run meets here":
                        raise ConnectionError(f"{refused}.")
            time.sleep(0.1)
        raise ConnectionError(
            f"{place.who(0)} ({chief}, ports {ports[0]} to {ports[-1]}) did not answer "
            f"{place.who(place.index)} within {self._seconds:g} s"
            f"{f': {refused}' if refused else ''}. Read its log, and check for a firewall."
        )

    def _try(self, chief: str, port: int) -> dict[str, Any] | None:
        place = self._place
        try:
            connection = socket.create_connection((chief, port), timeout=1)
        except OSError:
            return None
        # The address of the interface that reaches the chief.
        host = connection.getsockname()[0]
        line = _Line(connection)
        address = f"{host}:{_free_port(host, ports_of(place.key, place.index))}"
        hello = {"key": place.key, "index": place.index, "count": place.count, "host": place.host}
        line.send({**hello, "address": address, "code": self._code})
        answer = line.receive(2 * HELLO_SECONDS)
        if answer is not None and "welcome" in answer:
            # The chief may have started later; it says in the end which process did not come.
            answer = line.receive(self._seconds + ANSWER_SECONDS)
        if answer is None or "addresses" not in answer:
            line.close()
        else:
            self._peers[0] = line
        return answer

    def _left(self) -> float:
        return max(0.001, self._deadline - time.monotonic())


@final
class _Line:
    """A connection on which each line is a JSON object; errors of sending are ignored."""

    def __init__(self, connection: socket.socket) -> None:
        # Firewalls drop connections that are silent for hours.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self._connection = connection
        self._buffer = b""

    def send(self, message: dict[str, Any]) -> None:
        """Send one object."""
        with contextlib.suppress(OSError):
            self._connection.sendall(json.dumps(message).encode() + b"\n")

    def receive(self, seconds: float | None = None) -> dict[str, Any] | None:
        """Return the next object; None if the other end is gone, silent or sends something else."""
        self._connection.settimeout(seconds)
        try:
            while b"\n" not in self._buffer:
                data = self._connection.recv(65536)
                if not data or len(self._buffer) > MOST_BYTES:
                    return None
                self._buffer += data
            line, _, self._buffer = self._buffer.partition(b"\n")
            message = json.loads(line)
        except (OSError, ValueError):
            return None
        finally:
            with contextlib.suppress(OSError):
                self._connection.settimeout(None)
        return message if isinstance(message, dict) else None

    def is_gone(self) -> bool:
        """Return whether the other end has closed the connection."""
        self._connection.setblocking(False)
        try:
            return not self._connection.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError:
            return True
        finally:
            self._connection.setblocking(True)

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


def _end_hanging(reason: str = "") -> NoReturn:
    """Write this process's stacks and end it; the one that noticed says why, and goes first."""
    faulthandler.dump_traceback(file=sys.stderr, all_threads=True)
    if reason:
        print(f"error: {reason}. Each process wrote its Python stacks.", file=sys.stderr)
    sys.stderr.flush()
    # srun and mpirun then kill the other processes.
    time.sleep(STACKS_SECONDS if reason else ANSWER_SECONDS)
    os._exit(exit_codes.PROCESS_DIED)


def address_of(host: str) -> str:
    """Return the IP address of a host; if DNS does not know it, SLURM is asked."""
    with contextlib.suppress(OSError):
        return socket.gethostbyname(host)
    if shutil.which("scontrol"):
        shown = subprocess.run(
            ["scontrol", "show", "node", host, "--oneliner"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=ANSWER_SECONDS * 3,
        ).stdout
        for word in shown.split():
            name, _, value = word.partition("=")
            if name == "NodeAddr":
                with contextlib.suppress(OSError):
                    return socket.gethostbyname(value)
    raise ConnectionError(
        f"The host {host!r} has no address: neither DNS nor SLURM knows it. Give addresses: "
        "TFUNET_HOSTS=10.0.0.1,10.0.0.2"
    )


def _listening(address: str, place: Place) -> socket.socket:
    ports = ports_of(place.key, 0)
    for port in ports:
        try:
            return socket.create_server((address, port), backlog=place.count)
        except OSError:
            continue
    raise ConnectionError(
        f"{place.who(0)} cannot listen on any of the ports {ports[0]} to {ports[-1]} of {address}."
    )


def _free_port(address: str, ports: Sequence[int]) -> int:
    """Return the first free one of `ports` at an address, or any other free port."""
    for port in (*ports, 0):
        with contextlib.suppress(OSError), socket.create_server((address, port)) as server:
            return int(server.getsockname()[1])
    raise ConnectionError(f"{sys.argv[0]}: {address} has no free port.")
