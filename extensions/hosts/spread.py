"""A lab over several hosts: planned on its first host, which has the other hosts build their parts."""

from __future__ import annotations

import random
import secrets
import shutil
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import CancelledError
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from ringlight.extensions.hosts.cluster import Cluster, Host
from ringlight.extensions.hosts.cut import Cut
from ringlight.extensions.hosts.kept import take_left
from ringlight.extensions.hosts.part import (
    PROGRAM,
    PartOrder,
    free_door,
    keep_part,
    key_of,
    numbers_taken,
    tls_files,
)
from ringlight.extensions.hosts.parts.plan import (
    FILE,
    MTU_BYTES,
    VXLAN_NUMBERS,
    VXLAN_PORT,
    CutEnds,
    Parts,
    Place,
    Tls,
    log_of_part,
)
from ringlight.testbed.deaths import Death
from ringlight.testbed.faults import FaultClient, FaultError
from ringlight.testbed.lab import LabError
from ringlight.testbed.processes import UP_S

#: Longest wait for parts whose testbeds have been told to end, and for what they leave to be gone, seconds.
_ENDED_S, _GONE_S = 5.0, 30.0
#: Between two looks at the workers of a lab's hosts, seconds.
_BLIND_S = 2.0
#: What their deaths are called.
_WORKER_KIND = "Dask worker of host"
#: How often VXLAN numbers are drawn.
_DRAWS = 20


@dataclass(frozen=True)
class Over:
    """Over how many hosts a lab is, and how light goes between them.

    ``number``: VXLAN number of the first cut fibre, from which the others follow; None: chance draws it.
    ``mtu_bytes``: IP packets of workers that fit the network between the hosts. ``wireguard``: only if hosts
    reach each other over WireGuard.
    """

    hosts: int
    udp_port: int = VXLAN_PORT
    number: int | None = None
    mtu_bytes: int = MTU_BYTES
    wireguard: bool = False


def first_taken(
    cluster: Cluster, hosts: Sequence[Host], over: Over, count: int
) -> str | None:
    """Return which of a lab's VXLAN numbers a host has in use already, and for what.

    Returns None if the numbers are free, or are still to be drawn. Raises LabError.
    """
    if over.number is None:
        return None
    numbers = range(over.number, over.number + count)
    if numbers.stop > VXLAN_NUMBERS:
        return f"--vxlan-number {over.number}: its {count} fibres need numbers below {VXLAN_NUMBERS}"
    taken = cluster.ask(numbers_taken, over.udp_port, list(numbers), hosts=hosts)
    lines = (
        f"host {name}: {why}; choose others with --vxlan-number"
        for name, why in taken.items()
        if why
    )
    return next(lines, None)


class AgentOfAll(FaultClient):
    """Client of the server agent of a lab's first part, for what it knows of other hosts."""

    def loads(self) -> dict[str, dict[str, float]]:
        """Return the load of each other host's processors since the last call, by host. Raises FaultError."""
        loads: dict[str, dict[str, float]] = self._call("GET", "/v1/hosts/load")
        return loads

    def clocks(self) -> dict[str, dict[str, float]]:
        """Return how many seconds later each other host's clock is (``offset_s``), known to within
        ``error_s``, by host. Raises FaultError.
        """
        clocks: dict[str, dict[str, float]] = self._call("GET", "/v1/hosts/clocks")
        return clocks


class SpreadLab:
    """The parts of one lab except the first, which consists of the lab's own processes
    (``testbed.other_parts.OtherParts``).

    ``hosts``: in the order of the cut's parts. Methods raise LabError, one line naming the host.
    """

    def __init__(
        self,
        cluster: Cluster,
        hosts: Sequence[Host],
        cut: Cut,
        section: Mapping[str, Any],
        over: Over,
    ) -> None:
        self._cluster, self._hosts, self._cut, self._section = (
            cluster,
            tuple(hosts),
            cut,
            section,
        )
        self._over = over
        self._token = secrets.token_hex(16)
        self._futures: dict[str, Any] = {}
        #: IP packets of workers are no longer.
        self.mtu_bytes = over.mtu_bytes
        #: The last of each part's log, by host, once it has ended.
        self.logs: dict[str, bytes] = {}
        self._state: Path | None = None
        self._blind: frozenset[str] = frozenset()
        self._next_look_s = 0.0

    def begin(self, state: Path, runtime: str, options: Sequence[str]) -> list[str]:
        """Have the other parts built. Return the words that start the testbed of the first part.

        ``options``: of all testbeds.
        """
        self._state = state
        parts = self._plan()
        parts.write(state / FILE)
        for number, host in list(enumerate(self._hosts))[1:]:
            order = PartOrder(
                parts.as_read_by(number),
                self._section,
                runtime,
                tuple(options),
                time.time() + UP_S,
            )
            self._futures[host.name] = self._cluster.submit(keep_part, order, host)
        return [*PROGRAM, str(state / FILE)]

    def _plan(self) -> Parts:
        first = self._first_number()
        files = self._cluster.ask(tls_files, hosts=self._hosts[:1])[self._hosts[0].name]
        places = tuple(
            Place(
                host.name,
                host.ip,
                self._cluster.ask(free_door, host.ip, hosts=[host])[host.name],
                nodes,
            )
            for host, nodes in zip(self._hosts, self._cut.hosts, strict=True)
        )
        fibres = tuple(
            CutEnds(
                first + fibre.number - 1,
                str(fibre.link.a),
                str(fibre.link.b),
                fibre.hosts,
            )
            for fibre in self._cut.fibres
        )
        tls = None if files is None else Tls(**files)
        return Parts(
            self._token, places, fibres, self._over.udp_port, self._over.mtu_bytes, tls
        )

    def _first_number(self) -> int:
        """Return the first VXLAN number: as stated, or drawn until all numbers from there on are free on all
        hosts.

        Raises LabError if they are not free.
        """
        count, stated = len(self._cut.fibres), self._over.number
        for _ in range(_DRAWS):
            first = (
                random.randrange(1, VXLAN_NUMBERS - count) if stated is None else stated
            )
            why = first_taken(
                self._cluster, self._hosts, replace(self._over, number=first), count
            )
            if why is None:
                return first
            if stated is not None:
                break
        raise LabError(str(why))

    def check(self) -> None:
        """Check the other parts. Raises LabError if one could not be built, or has ended."""
        for name, future in self._futures.items():
            if not future.done() or future.status == "cancelled":
                # Cancelled: the scheduler is gone, and the part may well come up.
                continue
            error = future.exception() if future.status == "error" else None
            raise LabError(f"host {name}: {error or 'its part has ended'}")

    def ended(self) -> list[Death]:
        """Return the Dask workers of hosts that are gone, or back, since the last call."""
        now_s = time.monotonic()
        if now_s < self._next_look_s:
            return []
        self._next_look_s = now_s + _BLIND_S
        there = self._cluster.present()
        before, self._blind = (
            self._blind,
            frozenset(host.name for host in self._hosts if host.ip not in there),
        )
        how = "the host's part goes on, and is blind until it has one again"
        gone = [
            Death(now_s, _WORKER_KIND, host, how)
            for host in sorted(self._blind - before)
        ]
        return [
            *gone,
            *(
                Death(now_s, _WORKER_KIND, host)
                for host in sorted(before - self._blind)
            ),
        ]

    def facts(self) -> Mapping[str, Any]:
        """Return the differences of the hosts' clocks. Raises FaultError."""
        return {"clocks": self._agent.clocks()}

    def loads(self) -> list[Mapping[str, float]]:
        """Return the load of each other host's processors since the last call, none if the first part does
        not answer.
        """
        # A host that does not answer is missed elsewhere.
        with suppress(FaultError):
            return list(self._agent.loads().values())
        return []

    def end(self, state: Path, logs: Path) -> None:
        """Wait for the other parts, which the ended first part has ordered to end, and keep their logs.

        A part that does not end is given up, which also ends it. ``state``: the lab's, ``logs``: folder.
        """
        self._await_end()
        # If no task was left to bring a part's log, the part has sent it to the first one.
        for file in state.glob(log_of_part("*")):
            with suppress(OSError):
                shutil.copyfile(file, logs / file.name)
        for host, output in self.logs.items():
            with suppress(OSError):
                (logs / log_of_part(host)).write_bytes(output)

    @cached_property
    def _agent(self) -> AgentOfAll:
        """The server agent of the first part."""
        assert self._state is not None
        return AgentOfAll(f"unix:{self._state / 'agent.sock'}")

    def _await_end(self) -> None:
        """Wait for the other parts, and take their logs."""
        deadline = time.monotonic() + _ENDED_S
        for name, future in self._futures.items():
            try:
                self.logs[name] = future.result(
                    timeout=max(0.1, deadline - time.monotonic())
                )
            except (LabError, OSError, TimeoutError, CancelledError):
                # Said by check(), or it does not end, or its worker or the scheduler is gone.
                future.cancel()
        self._take_left(
            [
                host
                for host in self._hosts
                if host.name in {*self._futures} - {*self.logs}
            ]
        )
        self._futures.clear()

    def _take_left(self, hosts: Sequence[Host]) -> None:
        """Wait until nothing is left on hosts that can be asked, also of a part that no task looks after."""
        deadline = time.monotonic() + _GONE_S
        for host in hosts:
            left: bytes | None = b""
            while left is not None and time.monotonic() < deadline:
                now = self._cluster.present().get(host.ip)
                if now is None:
                    break
                try:
                    (left,) = self._cluster.ask(
                        take_left,
                        key_of(self._token),
                        hosts=[replace(host, address=now)],
                    ).values()
                except LabError:
                    # Its worker has just gone, too.
                    break
                if left:
                    self.logs[host.name] = left
                time.sleep(0.0 if left is None else 0.2)
