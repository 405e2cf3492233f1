"""Number the states of the light, so that nobody changes light that somebody else has changed since they read it.

The number of a state is its generation. It grows with every change of light, whoever makes it, and over restarts
of the controller.
"""

from __future__ import annotations

import collections
import threading
from collections.abc import Mapping
from dataclasses import dataclass

from ringlight.controller.errors import ConflictError
from ringlight.fabric.parts import Port

#: Most changes of light that one run of the controller numbers.
EACH_START = 1_000_000_000
#: Changes that are remembered with the caller.
_KEPT = 1000
#: Who changed light of which no change is remembered.
_UNKNOWN = "not by a client of this controller since it was started"
#: Changes that a refusal names.
_NAMED = 3

#: GPU to the packet-switch ports that its light reached before and reaches now; None if it has none.
Moved = dict[str, tuple[str | None, str | None]]


class LightMovedError(ConflictError):
    """The light is of another generation than the caller of a change expected."""


@dataclass(frozen=True)
class LightChanged:
    """Change of light: the generation that it led to, its caller, its switches, and its effect in words."""

    generation: int
    who: str
    switches: frozenset[str]
    text: str


def moved_gpus(
    before: Mapping[Port, Port | None], now: Mapping[Port, Port | None]
) -> Moved:
    """Return the nodes whose light reaches another packet-switch port now, with both ports.

    ``before``, ``now``: the electrical port lit to each packet-switch port, None if dark.
    """
    then, later = _ports(before), _ports(now)
    return {
        node: (then.get(node), later.get(node))
        for node in sorted(then.keys() | later.keys())
        if then.get(node) != later.get(node)
    }


def _ports(ends: Mapping[Port, Port | None]) -> dict[str, str]:
    return {end.node: str(port) for port, end in ends.items() if end is not None}


def in_words(moved: Moved, switches: Mapping[str, int]) -> str:
    """Return what a change did, for people.

    ``switches``: number of cross-connects that were removed or added, by optical switch.
    """
    if not moved:
        return f"changed {', '.join(switches)}"
    return ", ".join(
        f"moved {node} from {before or 'the dark'} to {after or 'the dark'}"
        for node, (before, after) in moved.items()
    )


class History:
    """The newest changes of light, with their callers. Safe from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._changes: collections.deque[LightChanged] = collections.deque(maxlen=_KEPT)

    def note(self, change: LightChanged) -> None:
        with self._lock:
            self._changes.append(change)

    def check(self, expected: int, present: int, of: str | None = None) -> None:
        """Raise LightMovedError, naming who changed the light since, unless it is the expected generation.

        ``of``: the switch whose light was expected, None for all circuits.
        """
        if expected == present:
            return
        if expected > present:
            raise LightMovedError(
                f"the light is of generation {present}, and has not been of generation {expected}; read it again"
            )
        with self._lock:
            since = [
                change
                for change in self._changes
                if change.generation > expected
                and (of is None or of in change.switches)
            ]
        shown = "; ".join(f"{change.who} {change.text}" for change in since[-_NAMED:])
        earlier = f"{len(since) - _NAMED} changes, then " if len(since) > _NAMED else ""
        by_whom = f"{earlier}{shown}" if since else _UNKNOWN
        raise LightMovedError(
            f"the light is of generation {present}, not {expected}: it has changed since ({by_whom}); read it again"
        )
