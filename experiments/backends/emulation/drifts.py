"""Switches that others changed under a run, as the controller tells of them: flow tables and light."""

from __future__ import annotations

import time
from collections.abc import Iterator
from http import HTTPStatus
from typing import Any

from ringlight.experiments.client import Api, ApiError
from ringlight.experiments.language.plan import RunPlan
from ringlight.experiments.record.events import Record
from ringlight.experiments.record.lab_records import SwitchDrifted, SwitchMended

#: Seconds between two looks: the controller keeps its events.
LOOK_S = 1.0
#: What differs by the controller's event that says so, and by the one that says that it is over.
_BEGINS = {"flow_drift": "flow table", "drift": "light"}
_ENDS = {"flows_mended": "flow table", "drift_over": "light"}


class DriftLog:
    """Reports of the controller about switches that drift, from now on, as records of one run."""

    def __init__(self, api: Api, plan: RunPlan) -> None:
        self._api, self._plan = api, plan
        self._after, self._heard_s = 0, time.monotonic()
        self._next_s = 0.0
        #: Since when what of which switch differs.
        self._since: dict[tuple[str, str], float] = {}

    def anew(self) -> None:
        """There is another controller, which numbers its events from 1."""
        self._after = 0

    def look(self, *, now: bool = False) -> Iterator[Record]:
        """Yield the records since the last look; nothing within LOOK_S seconds of that look, unless ``now``
        is true.

        Raises ApiError, Unreachable.
        """
        if not now and time.monotonic() < self._next_s:
            return
        self._next_s = time.monotonic() + LOOK_S
        for event in self._kept():
            self._after = event["id"]
            if event["t"] <= self._heard_s:
                continue
            self._heard_s = t = event["t"]
            run, kind = self._plan.name, event["event"]
            if (what := _BEGINS.get(kind)) is not None:
                name, text = event["switch"], event["text"]
                self._since.setdefault((name, what), t)
                yield SwitchDrifted(
                    t=t,
                    run=run,
                    switch=name,
                    what=what,
                    text=text,
                    planned=self._planned(name),
                )
            elif (what := _ENDS.get(kind)) is not None and event.get("problem") is None:
                name = event["switch"]
                if (since := self._since.pop((name, what), None)) is not None:
                    yield SwitchMended(
                        t=t, run=run, switch=name, what=what, after_s=t - since
                    )

    def _kept(self) -> list[dict[str, Any]]:
        try:
            return self._api.events(self._after)
        except ApiError as error:
            if error.status != HTTPStatus.SERVICE_UNAVAILABLE:
                raise
            # Too many listen now; the controller keeps them.
            return []

    def _planned(self, switch: str) -> bool:
        targets = (event.target for event in self._plan.events)
        return any(
            target is not None and target.kind == "switch" and target.names == (switch,)
            for target in targets
        )
