"""Count what the impaired links of a lab do to frames during a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ringlight.experiments.record.events import Record
from ringlight.extensions.impairments.records import LinksCounted
from ringlight.testbed.faults import FaultClient

#: Key of the counters of a lab's devices.
COUNTERS = "impaired"


class FrameLog:
    """From its making to :meth:`records`. ``agent``: address of the lab's server agent.

    Raises FaultError, as :meth:`records`.
    """

    def __init__(self, agent: str) -> None:
        self._agent = agent
        self._before = self._counters()

    def records(self, **where: Any) -> list[Record]:
        """Return one record if frames came to impaired links. ``where``: time and run of the record."""
        links = since(self._counters(), self._before)
        return [LinksCounted(links=links, **where)] if links else []

    def _counters(self) -> list[dict[str, Any]]:
        with FaultClient(self._agent) as faults:
            return faults.counters().get(COUNTERS, [])


def since(
    now: Sequence[Mapping[str, Any]], before: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Return what impaired links did to frames since ``before``, only for links that frames arrived at."""
    known = {(counters["from"], counters["to"]): counters for counters in before}
    changes = []
    for counters in now:
        then = known.get((counters["from"], counters["to"]), {})
        made = {
            key: value if isinstance(value, str) else value - then.get(key, 0)
            for key, value in counters.items()
        }
        if made["frames"]:
            changes.append(made)
    return changes
