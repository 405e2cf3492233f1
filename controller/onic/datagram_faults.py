"""Emulate a control network that delays, loses, copies, reorders and partitions datagrams.

Acts on what an agent sends, and for ``blocked`` peers also on what it receives. Seeded, so a run can be
repeated. Not imported unless the agent was started with faults allowed.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ringlight.controller.onic.wire import parse_address
from ringlight.fabric.control_faults import ControlFaults, check_time

Address = tuple[str, int]


#: Those of the faults that are in force for every message.
_OF_MESSAGES = ("delay_s", "loss", "duplicate", "reorder")


@dataclass
class DatagramFaults:
    """Faults of a control network in force. Times are seconds of one steady clock.

    A reordered message is held back by ``reorder_delay_s`` more; nothing passes to or from ``blocked``.
    """

    faults: ControlFaults = field(default_factory=ControlFaults)
    reorder_delay_s: float = 0.002
    seed: int = 0
    blocked: frozenset[Address] = frozenset()
    counts: dict[str, int] = field(
        default_factory=lambda: dict.fromkeys(
            ("lost", "duplicated", "reordered", "blocked"), 0
        )
    )

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self._flying: list[tuple[float, int, bytes, Address]] = []
        self._number = 0

    def change(self, changes: Mapping[str, Any]) -> None:
        """Replace the values in ``changes``, and begin the random numbers anew.

        Raises ValueError for an unknown name or a bad value; then all stays as it is.
        """
        values = dict(changes)
        seed = values.pop("seed", self.seed)
        if not isinstance(seed, int):
            raise ValueError("seed must be a whole number")
        blocked = (
            frozenset(_addresses(values.pop("blocked")))
            if "blocked" in values
            else self.blocked
        )
        reorder_delay_s = _number(
            "reorder_delay_s", values.pop("reorder_delay_s", self.reorder_delay_s)
        )
        check_time("reorder_delay_s", reorder_delay_s)
        if unknown := values.keys() - set(_OF_MESSAGES):
            raise ValueError(f"there is no fault called {min(unknown)}")
        numbers: dict[str, Any] = {
            name: _number(name, value) for name, value in values.items()
        }
        self.faults = replace(self.faults, **numbers)
        self.reorder_delay_s, self.seed, self.blocked = reorder_delay_s, seed, blocked
        self._random = random.Random(seed)

    def document(self) -> dict[str, Any]:
        """Return all values that :meth:`change` takes, by name."""
        return {
            **{name: getattr(self.faults, name) for name in _OF_MESSAGES},
            "reorder_delay_s": self.reorder_delay_s,
            "seed": self.seed,
            "blocked": [f"{host}:{port}" for host, port in sorted(self.blocked)],
        }

    def send(self, now_s: float, data: bytes, peer: Address) -> None:
        """Puts a message under way; :meth:`due` gives what arrives."""
        faults = self.faults
        if self.blocks(peer):
            return
        if faults.loss and self._random.random() < faults.loss:
            self.counts["lost"] += 1
            return
        copies = 1
        if faults.duplicate and self._random.random() < faults.duplicate:
            self.counts["duplicated"] += 1
            copies = 2
        for _ in range(copies):
            due_s = now_s + faults.delay_s
            if faults.reorder and self._random.random() < faults.reorder:
                self.counts["reordered"] += 1
                due_s += self.reorder_delay_s
            self._number += 1
            heapq.heappush(self._flying, (due_s, self._number, data, peer))

    def blocks(self, peer: Address) -> bool:
        """Return whether all datagrams to and from ``peer`` are dropped, and count the
        datagram if they are.
        """
        if peer not in self.blocked:
            return False
        self.counts["blocked"] += 1
        return True

    def next_deadline(self) -> float | None:
        """Return the time in seconds at which :meth:`due` must be called next; None without datagrams."""
        return self._flying[0][0] if self._flying else None

    def due(self, now_s: float) -> Iterable[tuple[bytes, Address]]:
        while self._flying and self._flying[0][0] <= now_s:
            _, _, data, peer = heapq.heappop(self._flying)
            yield data, peer


def _addresses(value: object) -> list[Address]:
    if not isinstance(value, list):
        raise ValueError("blocked must be a list of HOST:PORT")
    return [parse_address(item) for item in value]


def _number(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{name} must be a number")
    return float(value)
