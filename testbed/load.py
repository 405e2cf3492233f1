"""Load of the machine's processors: how busy they were, and how much of their time processes outside a lab
took.

A lab's own are its processes (by their label), Open vSwitch and Docker, the process that measures, and the
kernel's threads: the kernel forwards packets in them. All other processes are outside it, also those of
another lab.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from ringlight.testbed.lab import ENVIRONMENT

#: Command names of the machine's services that work for labs.
SERVICES = ("ovs-vswitchd", "ovsdb-server", "dockerd", "containerd")
_KERNEL_THREAD = 0x00200000

#: Process id, time of its start (clock ticks), command name: a process changes what it is when it executes.
_Key = tuple[int, int, str]


@dataclass(frozen=True)
class Shares:
    """Shares (0..1) of the time of all processors.

    ``busy``: all that was not idle, ``stolen`` included, which is what the hypervisor gave to other machines.
    ``others``: what processes took that are no part of the lab.
    """

    busy: float = 0.0
    stolen: float = 0.0
    others: float = 0.0

    @property
    def taken(self) -> float:
        """Return the share of time that the lab could not have had: stolen or taken by others."""
        return self.stolen + self.others


class ProcessorLoad:
    """Shares of the processors' time from one reading to the next.

    A process that begins and ends between two readings is not seen, nor is the last bit of one that ends.
    """

    def __init__(self, lab_id: str) -> None:
        self._label = f"{ENVIRONMENT}={lab_id}".encode()
        self._foreign: dict[_Key, bool] = {}
        self._machine = machine_ticks()
        self._processes = self._others()

    def shares(self) -> Shares:
        """Return the shares of the processors' time since the last call, or since this object was made."""
        before, self._machine = self._machine, machine_ticks()
        known, self._processes = self._processes, self._others()
        total, idle, stolen = (
            now - then for now, then in zip(self._machine, before, strict=True)
        )
        if total <= 0:
            return Shares()
        # One that was not there at the last reading has begun since.
        other_ticks = sum(
            ticks - known.get(process, 0) for process, ticks in self._processes.items()
        )
        return Shares(1 - idle / total, stolen / total, min(1.0, other_ticks / total))

    def _others(self) -> dict[tuple[int, int], int]:
        """Return the clock ticks that each process outside the lab has used, by its id and start."""
        ticks: dict[tuple[int, int], int] = {}
        seen: dict[_Key, bool] = {}
        for entry in os.scandir("/proc"):
            if not entry.name.isdigit():
                continue
            try:
                stat = Path(entry.path, "stat").read_text(
                    encoding="utf-8", errors="replace"
                )
            except OSError:
                # It has ended meanwhile.
                continue
            name, _, rest = stat.partition("(")[2].rpartition(")")
            fields = rest.split()
            key = int(entry.name), int(fields[19]), name
            kernel = int(fields[6]) & _KERNEL_THREAD
            seen[key] = (
                self._foreign[key]
                if key in self._foreign
                else not kernel and self._is_foreign(*key)
            )
            if seen[key]:
                ticks[key[:2]] = int(fields[11]) + int(fields[12])
        self._foreign = seen
        return ticks

    def _is_foreign(self, pid: int, _start: int, name: str) -> bool:
        if pid == os.getpid() or name.startswith(SERVICES):
            return False
        try:
            return self._label not in Path(f"/proc/{pid}/environ").read_bytes().split(
                b"\0"
            )
        except OSError:
            return False


def machine_ticks() -> tuple[int, int, int]:
    """Return the clock ticks of all processors since the machine started: in all, idle and stolen
    (proc(5)).
    """
    with open("/proc/stat", encoding="ascii") as file:
        fields = [int(field) for field in file.readline().split()[1:9]]
    return sum(fields), fields[3] + fields[4], fields[7]
