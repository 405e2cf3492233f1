"""Workers and Open vSwitch go before other programs while a lab lives.

Containers compete as one group with each of the machine's other programs, whatever their niceness; at the
usual weight one busy neighbour halves what all workers get, and their timers wake late. Nothing is done if
Docker leaves its groups to systemd: their common group is that of all services, which is not ours to favour.

Open vSwitch's daemon, which forwards all packets that the kernel does not forward, is started at niceness
-10. That counts only within its session if the kernel groups processes by session (sched(7), autogroup), so
the session is given the same.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
#: File of the group's weight below :data:`CGROUPS` (control groups of version 1 and 2), the kernel's default,
#: and ours.
WEIGHTS = (("cpu/docker/cpu.shares", 1024, 10240), ("docker/cpu.weight", 100, 1000))
PROCESSES = Path("/proc")
OVS_PID = Path("/var/run/openvswitch/ovs-vswitchd.pid")
#: Niceness of a session: the kernel's default, and ours.
NICENESS = (0, -10)


def favour() -> None:
    """Give both the greater weight, unless another one was chosen. No harm if that is not allowed."""
    _change(to_ours=True)


def restore() -> None:
    """Set the usual weight again if the present one is ours."""
    _change(to_ours=False)


def _change(*, to_ours: bool) -> None:
    # There is no group before Docker's first container, no session without autogroup, and none of the files
    # may be written to from inside a container.
    for name, usual, ours in WEIGHTS:
        with suppress(OSError):
            _replace(
                CGROUPS / name,
                int,
                usual if to_ours else ours,
                ours if to_ours else usual,
            )
    with suppress(OSError, ValueError):
        session = PROCESSES / str(int(OVS_PID.read_text())) / "autogroup"
        there, target = NICENESS if to_ours else NICENESS[::-1]
        _replace(session, lambda text: int(text.rpartition(" ")[2]), there, target)


def _replace(path: Path, read: Callable[[str], int], there: int, target: int) -> None:
    if read(path.read_text()) == there:
        path.write_text(str(target))
