"""Limits on what leaves the devices of a process. Imports no TensorFlow."""

from dataclasses import dataclass
from pathlib import Path

from tfunet.config import amount
from tfunet.swap.storage.disk import check_folder


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits on the swapped tensors of all replicas of this process; None for none, or no disk."""

    host_bytes: int | None = None
    folder: Path | None = None
    disk_bytes: int | None = None


def read_limits(
    host: str | int | None, disk: str | Path | None, disk_size: str | int | None
) -> Limits:
    """Return the limits that a user wrote.

    Raises ValueError for a wrong amount, a folder that cannot be written to, or a disk that would
    never be used.
    """
    host_bytes = None if host is None else amount.in_bytes("host", host)
    disk_bytes = None if disk_size is None else amount.in_bytes("disk_size", disk_size)
    if disk is None and disk_size is not None:
        raise ValueError(f"disk_size={disk_size!r} needs disk: give a folder too.")
    if disk is not None and host is None:
        raise ValueError(
            f"disk={str(disk)!r} is for tensors for which host has no room, and host has no limit. "
            "Give host too, such as '64GiB', or 0 to put all swapped tensors on disk."
        )
    folder = None if disk is None else check_folder(disk)
    return Limits(host_bytes=host_bytes, folder=folder, disk_bytes=disk_bytes)
