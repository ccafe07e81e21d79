"""Reads TF_CONFIG, by which a person or Kubernetes names the processes of a run. Pure."""

import json
from dataclasses import dataclass
from typing import Any

FORM = '{"cluster": {"worker": ["host1:2222", "host2:2222"]}, "task": {"type": "worker", ...}}'


@dataclass(frozen=True, kw_only=True)
class Workers:
    """The processes that TF_CONFIG names: the chief, then the workers.

    Args:
        index: Index of this process.
        addresses: "host:port" of every process.
    """

    index: int
    addresses: tuple[str, ...]

    @property
    def hosts(self) -> tuple[str, ...]:
        """The host of every process."""
        return tuple(_host_of(address) for address in self.addresses)


def read_tf_config(text: str) -> Workers | None:
    """Return what a value of TF_CONFIG says; None if it names no processes.

    Raises ValueError for a wrong form, and for processes that do not train.
    """
    if not text.strip():
        return None
    try:
        table = json.loads(text)
        cluster, task = table.get("cluster") or {}, table.get("task") or {}
        members = {role: _texts(addresses) for role, addresses in cluster.items()}
        role, number = str(task.get("type", "worker")), int(task.get("index", 0))
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"TF_CONFIG must look like {FORM}; got {text[:200]!r}.") from error
    if not members:
        return None
    for name in (*members, role):
        if name not in ("chief", "worker"):
            raise ValueError(
                f"TF_CONFIG has tasks of type {name!r}. Here all processes train: give it tasks of "
                "the types chief and worker only, or unset TF_CONFIG."
            )
    chiefs = members.get("chief", [])
    is_after_chief = role == "worker" and bool(chiefs)
    return Workers(index=number + is_after_chief, addresses=(*chiefs, *members.get("worker", [])))


def _texts(addresses: Any) -> list[str]:
    if not isinstance(addresses, list) or not all(
        isinstance(address, str) for address in addresses
    ):
        raise TypeError("not a list of addresses")
    return addresses


def _host_of(address: str) -> str:
    host, colon, port = address.rpartition(":")
    return (host if colon and port.isdecimal() else address).strip("[]")
