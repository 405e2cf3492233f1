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
from ringlight.fabric.control_faults import ControlFaults

Address = tuple[str, int]


@dataclass(frozen=True)
class FaultSettings(ControlFaults):
    """A reordered message is held back by ``reorder_delay_s`` more; nothing passes to or from ``blocked``.
    Raises ValueError.
    """

    reorder_delay_s: float = 0.002
    seed: int = 0
    blocked: frozenset[Address] = frozenset()

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("delay_s", "reorder_delay_s"):
            if not 0 <= getattr(self, name) <= 60:
                raise ValueError(f"{name} must be from 0 to 60 seconds")


def changed(settings: FaultSettings, changes: Mapping[str, Any]) -> FaultSettings:
    """Return ``settings`` with the values in ``changes``.

    Raises ValueError for an unknown name or a bad value.
    """
    values: dict[str, Any] = {}
    for name, value in changes.items():
        if name == "blocked":
            values[name] = frozenset(_addresses(value))
        elif name == "seed":
            if not isinstance(value, int):
                raise ValueError("seed must be a whole number")
            values[name] = value
        elif name in FaultSettings.__dataclass_fields__:
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise ValueError(f"{name} must be a number")
            values[name] = float(value)
        else:
            raise ValueError(f"there is no fault called {name}")
    return replace(settings, **values)


def _addresses(value: object) -> list[Address]:
    if not isinstance(value, list):
        raise ValueError("blocked must be a list of HOST:PORT")
    return [parse_address(item) for item in value]


@dataclass
class DatagramFaults:
    """Faults of a control network in force. Times are seconds of one steady clock."""

    settings: FaultSettings = field(default_factory=FaultSettings)
    counts: dict[str, int] = field(
        default_factory=lambda: dict.fromkeys(("lost", "duplicated", "reordered", "blocked"), 0)
    )

    def __post_init__(self) -> None:
        self._random = random.Random(self.settings.seed)
        self._flying: list[tuple[float, int, bytes, Address]] = []
        self._number = 0

    def set(self, settings: FaultSettings) -> None:
        self.settings = settings
        self._random = random.Random(settings.seed)

    def send(self, now_s: float, data: bytes, peer: Address) -> None:
        """Puts a message under way; :meth:`due` gives what arrives."""
        settings = self.settings
        if self.blocks(peer):
            return
        if settings.loss and self._random.random() < settings.loss:
            self.counts["lost"] += 1
            return
        copies = 1
        if settings.duplicate and self._random.random() < settings.duplicate:
            self.counts["duplicated"] += 1
            copies = 2
        for _ in range(copies):
            due_s = now_s + settings.delay_s
            if settings.reorder and self._random.random() < settings.reorder:
                self.counts["reordered"] += 1
                due_s += settings.reorder_delay_s
            self._number += 1
            heapq.heappush(self._flying, (due_s, self._number, data, peer))

    def blocks(self, peer: Address) -> bool:
        """Return whether all datagrams to and from ``peer`` are dropped, and count the
        datagram if they are.
        """
        if peer not in self.settings.blocked:
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
