"""A private SLURM of two nodes on this machine, each in a network namespace of its own.

Standard library only, and no pytest: `python tests/slurm/cluster.py sinfo` runs one command in it.
"""

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

# This file is also a script, which does not see tests/support.
ROOT = Path(__file__).parents[2]


CHILD = ROOT / "tfunet/process/exec_on_cores.py"
PACKAGES = {"slurmctld": "slurm-wlm", "munged": "munge"}
INSTALL_SECONDS = 300
START_SECONDS = 120
# As text n10 comes first, as numbers n2 does; SLURM counts.
NODES = ("n2", "n10")
NAME = "tfunet-slurm-"
CONF = """
ClusterName=tfunet
SlurmctldHost={host}({bridge})
SlurmctldPort={controller_port}
SlurmUser=root
AuthType=auth/munge
# A job that is queued again waits until its first credential has expired, by default 2 minutes.
AuthInfo=socket={folder}/munge.socket,cred_expire=10
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
MpiDefault=none
SwitchType=switch/none
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
SlurmdParameters=config_overrides
ReturnToService=2
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
# The plugin of srun --mpi=pmix keeps a folder of the step there, which the nodes cannot share.
TmpFS={folder}/tmp-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
# Seconds that a person waits for without noticing, not those of a large cluster.
SchedulerParameters=batch_sched_delay=0,sched_interval=1,bf_interval=1
KillWait=60
MinJobAge=30
JobRequeue=1
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
{nodes}
PartitionName=low Nodes=ALL Default=YES PriorityTier=1 MaxTime=INFINITE State=UP
PartitionName=high Nodes=ALL PriorityTier=2 MaxTime=INFINITE State=UP
"""


class NoClusterError(RuntimeError):
    """What this machine lacks for a SLURM of its own."""


class Cluster:
    """Two nodes with four CPUs each; `environment` is what SLURM's commands need."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        number = os.getpid()
        self.bridge = f"tfb{number}"
        self.network = f"10.{200 + number % 50}.{number // 50 % 250}"
        self.addresses = {name: f"{self.network}.{name[1:]}" for name in NODES}
        self.environment = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}
        # A job of ours must not look like a step of the job that this test itself may run in.
        for name in [
            variable for variable in self.environment if variable.startswith(("SLURM_", "SBATCH_"))
        ]:
            if name != "SLURM_CONF":
                del self.environment[name]
        self._controller_port, *self._node_ports = _free_ports(1 + len(NODES))
        self._daemons: dict[str, subprocess.Popen] = {}

    def start(self) -> None:
        """Return when both nodes are idle."""
        self._make_network()
        (self.folder / "state").mkdir()
        (self.folder / "munge.key").write_bytes(os.urandom(128))
        (self.folder / "munge.key").chmod(0o400)
        nodes = "\n".join(
            f"NodeName={name} NodeHostname={name} NodeAddr={self.addresses[name]} Port={port} "
            "CPUs=4 RealMemory=8000"
            for name, port in zip(NODES, self._node_ports, strict=True)
        )
        (self.folder / "slurm.conf").write_text(
            CONF.format(
                host=_host(),
                bridge=f"{self.network}.1",
                controller_port=self._controller_port,
                folder=self.folder,
                nodes=nodes,
            )
        )
        files = {
            kind: f"--{kind}-file={self.folder}/munge.{kind}" for kind in ("key", "pid", "log")
        }
        seed = f"--seed-file={self.folder}/munge.seed"
        socket_option = f"--socket={self.folder}/munge.socket"
        self._start(
            "munged", "munged", "--foreground", "--force", socket_option, seed, *files.values()
        )
        self._wait_for("munged", (self.folder / "munge.socket").exists)
        self.start_controller()
        # As on real nodes, a host's name leads to the address by which the others reach it.
        hosts = self.folder / "hosts"
        names = "".join(f"{address} {name}\n" for name, address in self.addresses.items())
        hosts.write_text(f"127.0.0.1 localhost\n{names}")
        for name in NODES:
            (self.folder / f"spool-{name}").mkdir()
            (self.folder / f"tmp-{name}").mkdir()
            # Not `ip netns exec`: that mounts another /sys, in which slurmd finds no cgroups.
            space = f"--net=/run/netns/{self._namespace(name)}"
            become = f"hostname {name}; mount --bind {hosts} /etc/hosts; exec slurmd -D -N {name}"
            node = ["unshare", "--mount", "--uts", "sh", "-e", "-c", become]
            self._start(name, "nsenter", space, *node)
        self._wait_for("nodes", lambda: self.run("sinfo", "-h", "-o", "%T").split() == ["idle"])

    def start_controller(self) -> None:
        """Start slurmctld; after `stop_controller` it goes on from its state."""
        self._start("slurmctld", "slurmctld", "-D")
        self._wait_for("slurmctld", lambda: "is UP" in self.run("scontrol", "ping"))

    def stop_controller(self) -> None:
        """End slurmctld as its service does: it writes its state first."""
        daemon = self._daemons.pop("slurmctld")
        daemon.terminate()
        daemon.wait()

    def run(self, *command: str, **options: object) -> str:
        """Return what a command prints, in this cluster; an error is part of it."""
        done = subprocess.run(
            command,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=200,
            **options,
        )
        return done.stdout

    def stop(self) -> None:
        """Kill all that runs in it, and take the network and the folder away."""
        for daemon in self._daemons.values():
            daemon.kill()
            daemon.wait()
        _remove(os.getpid())

    def _start(self, name: str, *command: str) -> None:
        cores = ",".join(map(str, os.sched_getaffinity(0)))
        # The kernel kills it if this process is killed.
        start = [sys.executable, "-I", "-S", str(CHILD), str(os.getpid()), cores, *command]
        with (self.folder / f"{name}.out").open("ab") as output:
            self._daemons[name] = subprocess.Popen(
                start,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def _wait_for(self, what: str, ready: object) -> None:
        deadline = time.monotonic() + START_SECONDS
        while not ready():
            for name, daemon in self._daemons.items():
                if daemon.poll() is not None:
                    output = (self.folder / f"{name}.out").read_text()
                    raise RuntimeError(f"{name} ended with {daemon.returncode}: {output[-500:]}")
            if time.monotonic() > deadline:
                logs = [file.read_text()[-2000:] for file in self.folder.glob("slurm*.log")]
                raise RuntimeError(f"{what} did not start in {START_SECONDS} s:\n{''.join(logs)}")
            time.sleep(0.1)

    def _make_network(self) -> None:
        _ip("link", "add", self.bridge, "type", "bridge")
        _ip("address", "add", f"{self.network}.1/24", "dev", self.bridge)
        _ip("link", "set", self.bridge, "up")
        for name in NODES:
            space, outside = self._namespace(name), f"tfv{os.getpid()}{name}"[:15]
            _ip("netns", "add", space)
            _ip("link", "add", outside, "type", "veth", "peer", "name", "eth0", "netns", space)
            _ip("link", "set", outside, "master", self.bridge, "up")
            _ip("-n", space, "address", "add", f"{self.addresses[name]}/24", "dev", "eth0")
            _ip("-n", space, "link", "set", "eth0", "up")
            _ip("-n", space, "link", "set", "lo", "up")

    def _namespace(self, name: str) -> str:
        return f"{NAME}{os.getpid()}-{name}"


@contextlib.contextmanager
def running_cluster():
    """Yield a started Cluster, and leave nothing of it; NoClusterError says what is missing."""
    _install()
    remove_stale()
    folder = Path(tempfile.gettempdir()) / f"{NAME}{os.getpid()}"
    folder.mkdir(mode=0o755)
    cluster = Cluster(folder)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


def remove_stale() -> None:
    """Take away what clusters of killed processes left."""
    text = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True).stdout
    folders = " ".join(folder.name for folder in Path(tempfile.gettempdir()).glob(f"{NAME}*"))
    for number in {int(digits) for digits in re.findall(rf"{NAME}(\d+)", f"{text} {folders}")}:
        if not Path(f"/proc/{number}").exists():
            _remove(number)


def _install() -> None:
    """Install what is missing, where that is allowed; idempotent, as apt-get is."""
    missing = [package for program, package in PACKAGES.items() if not shutil.which(program)]
    if os.geteuid() != 0:
        raise NoClusterError("a SLURM of our own needs root")
    if missing:
        if not shutil.which("apt-get"):
            raise NoClusterError(f"{' and '.join(missing)} are missing, and there is no apt-get")
        print(f"Installing {' and '.join(missing)} ...", file=sys.stderr, flush=True)
        # At run level 1 Debian's packages start no service of the whole machine.
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
        install = ["apt-get", "install", "--yes", "--no-install-recommends"]
        update = ["apt-get", "update"]
        for command in ([*install, *missing], *(update, [*install, *missing]) * 3):
            done = subprocess.run(
                command, env=environment, capture_output=True, text=True, timeout=INSTALL_SECONDS
            )
            if done.returncode == 0 and "install" in command:
                break
        else:
            raise NoClusterError(f"apt-get cannot install them: {done.stderr.strip()[-300:]}")
    if not shutil.which("ip"):
        raise NoClusterError("the command ip (package iproute2) is missing")


def _remove(number: int) -> None:
    folder = Path(tempfile.gettempdir()) / f"{NAME}{number}"
    # Twice: a process may have started another one while we read the list.
    for _ in range(2):
        for process in _processes_of(folder):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
    for name in NODES:
        subprocess.run(["ip", "netns", "delete", f"{NAME}{number}-{name}"], capture_output=True)
    subprocess.run(["ip", "link", "delete", f"tfb{number}"], capture_output=True)
    shutil.rmtree(folder, ignore_errors=True)


def _processes_of(folder: Path) -> list[int]:
    """Return the processes that were told of the cluster in `folder`, this one apart."""
    mark = f"SLURM_CONF={folder}/slurm.conf".encode()
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if mark in path.read_bytes().split(b"\0") and int(path.parent.name) != os.getpid():
                found.append(int(path.parent.name))
    return found


def _ip(*arguments: str) -> None:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True)
    if done.returncode != 0:
        raise NoClusterError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")


def _host() -> str:
    return socket.gethostname().partition(".")[0]


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for listener in sockets:
            listener.bind(("", 0))
        return [listener.getsockname()[1] for listener in sockets]


if __name__ == "__main__":
    with running_cluster() as started:
        sys.exit(subprocess.run(sys.argv[1:], env=started.environment).returncode)
