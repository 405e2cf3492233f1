"""Times of the flows of an O-NIC that are over, the newest ones, read by a cursor."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

from ringlight.controller.onic.effects import Finished
from ringlight.controller.onic.wavelength_map import whole

TRACE_FLOWS = 8192


class FlowTrace:
    """Record of flows that had light."""

    def __init__(self) -> None:
        self._flows: deque[dict[str, Any]] = deque(maxlen=TRACE_FLOWS)
        self._number = 0

    def add(self, effect: Finished, peer: str | None) -> None:
        """Add a flow that is over. ``peer``: the IP address of its destination, if it is known."""
        self._number += 1
        self._flows.append(
            {
                "flow": effect.flow[1],
                "peer": peer,
                "port": effect.port,
                "wavelength": effect.wavelength,
                "t_open": effect.opened_s,
                "t_request": effect.request_s,
                "t_grant": effect.grant_s,
                "t_lit": effect.lit_s,
                "t_close": effect.close_s,
                "t_released": effect.released_s,
                "waited": effect.waited,
            }
        )

    def read(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Return the flows after the ``cursor`` of a request, and the next cursor. Raises ValueError."""
        cursor = request.get("cursor", 0)
        if not whole(cursor, 0, 1 << 62):
            raise ValueError("cursor must be a whole number")
        first = self._number - len(self._flows)
        flows = list(self._flows)[max(0, cursor - first) :]
        return {
            "flows": flows,
            "cursor": self._number,
            "dropped": max(0, first - cursor),
        }
