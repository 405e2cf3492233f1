"""Workers go before other programs: the weight of Docker's control group while a lab lives.

Containers compete as one group with each of the machine's other programs, whatever their niceness; at the
usual weight one busy neighbour halves what all workers get, and their timers wake late. Nothing is done where
Docker leaves its groups to systemd: their common group is that of all services, which is not ours to favour.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
#: File of the group's weight below :data:`CGROUPS` (control groups of version 1 and 2), the kernel's default,
#: and ours.
WEIGHTS = (("cpu/docker/cpu.shares", 1024, 10240), ("docker/cpu.weight", 100, 1000))


def favour_workers() -> None:
    """Give the containers' group the greater weight, unless somebody chose one. No harm if it cannot be."""
    _change(to_ours=True)


def restore() -> None:
    """Give the group its usual weight back, if it has ours."""
    _change(to_ours=False)


def _change(*, to_ours: bool) -> None:
    for name, usual, ours in WEIGHTS:
        path = CGROUPS / name
        # There is none before Docker's first container, and none to be written to inside a container.
        with suppress(OSError):
            wanted, there = (ours, usual) if to_ours else (usual, ours)
            if int(path.read_text()) == there:
                path.write_text(str(wanted))
