"""What a stranger may have put under a name that tfunet is going to write."""

import os
import socket

VICTIM = "the only copy of my thesis\n"


def _link(path, victim):
    path.symlink_to(victim)


def _dangling_link(path, victim):
    path.symlink_to(victim.with_name("created-through-a-link"))


def _hard_link(path, victim):
    os.link(victim, path)


def _pipe(path, victim):
    os.mkfifo(path)


def _folder(path, victim):
    path.mkdir()


def _socket(path, victim):
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(os.path.relpath(path))


TRAPS = {
    "link": _link,
    "dangling link": _dangling_link,
    "hard link": _hard_link,
    "pipe": _pipe,
    "folder": _folder,
    "socket": _socket,
}


def set_trap(kind, path, folder):
    """Put a trap at `path`; return a function that says whether nothing outside has changed."""
    folder.mkdir(exist_ok=True)
    victim = folder / "thesis.txt"
    victim.write_text(VICTIM)
    TRAPS[kind](path, victim)

    def is_unharmed():
        return victim.read_text() == VICTIM and os.listdir(folder) == ["thesis.txt"]

    return is_unharmed
