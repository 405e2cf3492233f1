"""A lab: one emulated testbed, the names and labels of all that it makes, and whether its owner lives.

Everything that a lab makes can be found by its id: interfaces, namespaces and bridges are called
``rl<id>-…``, containers carry the label ``ringlight.lab=<id>``, bridges and queue settings of Open vSwitch
``external_ids:ringlight=<id>``, processes the environment variable ``RINGLIGHT_LAB=<id>``; BPF maps are
pinned under ``/sys/fs/bpf/ringlight/<id>`` and files kept under ``/run/ringlight/<id>``.

A lab is alive while some process holds its lock. The lock is the kernel's and goes with the process, however
it ends; what a lab without a living owner left behind is stale and may be removed.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import secrets
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

CONTAINER_LABEL = "ringlight.lab"
GPU_LABEL = "ringlight.gpu"
JOB_LABEL = "ringlight.job"
RANK_LABEL = "ringlight.rank"
OVS_LABEL = "ringlight"
ENVIRONMENT = "RINGLIGHT_LAB"
#: What the NICs of a GPU are called where the GPU is; the second leads to a device.
NIC, SECOND_NIC = "eth0", "eth1"
STATE_ROOT = Path("/run/ringlight")
BPF_ROOT = Path("/sys/fs/bpf/ringlight")
INTERFACE_NAME_MAX = 15
LOCK_RETRY_S = 0.3

_ALPHABET = "abcdefghijklmnopqrstuvwxyz0123456789"
_ID = re.compile(r"[a-z0-9]{3,4}")


class LabError(RuntimeError):
    """A lab cannot be made or used; one line with the reason."""


@dataclass(frozen=True)
class Lab:
    """The names of one lab. ``id``: 3 or 4 lower-case letters and digits. Raises LabError."""

    id: str

    def __post_init__(self) -> None:
        if not _ID.fullmatch(self.id):
            raise LabError(
                f"lab id {self.id!r} is not 3 or 4 lower-case letters and digits"
            )

    @property
    def prefix(self) -> str:
        return f"rl{self.id}-"

    @property
    def state_dir(self) -> Path:
        return STATE_ROOT / self.id

    @property
    def bpf_dir(self) -> Path:
        return BPF_ROOT / self.id

    @property
    def link_group(self) -> int:
        """The kernel's interface group of this lab: one request removes all interfaces of a group."""
        return 0x52000000 + int(self.id, 36) + (36**4 if len(self.id) == 4 else 0)

    def _short(self, name: str) -> str:
        """Return ``name`` after the prefix, or a digest of it if the kernel's limit is exceeded."""
        if len(self.prefix) + len(name) <= INTERFACE_NAME_MAX:
            return self.prefix + name
        room = INTERFACE_NAME_MAX - len(self.prefix)
        return self.prefix + hashlib.sha256(name.encode()).hexdigest()[:room]

    def interface(self, node: str, port: int) -> str:
        """Return the interface in the machine's own namespace that stands for a port. It has at most 15
        characters.
        """
        return self._short(f"{node}-{port}")

    def bridge(self, node: str) -> str:
        """Return the Open vSwitch bridge of a node. It has at most 15 characters, as its local port is an
        interface.
        """
        return self._short(node)

    def namespace(self, node: str) -> str:
        return self.prefix + node

    def container(self, worker: str) -> str:
        return self.prefix + worker

    def environment(self) -> dict[str, str]:
        """Return the environment for a process of this lab."""
        return {**os.environ, ENVIRONMENT: self.id}

    def make_state_dir(self) -> Path:
        STATE_ROOT.mkdir(mode=0o755, exist_ok=True)
        # The process that removes the last lab also removes their root, perhaps between these two lines.
        self.state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        return self.state_dir

    def hold(self) -> TextIO:
        """Keep the lab from being taken for stale until the returned file is closed or the process ends.

        Any number of processes may hold a lab. Raises LabError while it is being cleaned.
        """
        state = self.make_state_dir()
        try:
            return _lock(
                state / "lock",
                fcntl.LOCK_SH,
                f"lab {self.id} is being cleaned; try another id",
            )
        except OSError:
            # A full disk has room for a directory, and none for a file in it.
            with suppress(OSError):
                state.rmdir()
            raise

    def own(self) -> TextIO:
        """Hold the lab like :meth:`hold`, as its builder. Return the lock's file.

        Raises LabError if another process builds the lab.
        """
        self.make_state_dir()
        taken = f"lab {self.id} is already in use; stop it or choose another id"
        return _lock(self.state_dir / "owner.lock", fcntl.LOCK_EX, taken)

    def is_alive(self) -> bool:
        """Return whether a process holds or owns the lab."""
        return any(_is_locked(self.state_dir / name) for name in ("lock", "owner.lock"))


def new_lab() -> Lab:
    """Return a lab with an id that no state directory uses."""
    while True:
        lab = Lab("".join(secrets.choice(_ALPHABET) for _ in range(4)))
        if not lab.state_dir.exists():
            return lab


def _lock(path: Path, kind: int, taken: str) -> TextIO:
    file = path.open("a+", encoding="ascii")
    deadline = time.monotonic() + LOCK_RETRY_S
    while True:
        try:
            fcntl.flock(file, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            # Somebody who asks whether the lab is alive has the lock for a moment, too.
            if time.monotonic() < deadline:
                time.sleep(0.01)
                continue
            file.close()
            raise LabError(taken) from None
        return file


def _is_locked(path: Path) -> bool:
    try:
        file = path.open("a+", encoding="ascii") if path.exists() else None
    except FileNotFoundError:
        return False
    if file is None:
        return False
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False
