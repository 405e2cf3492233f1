"""Set the light of one job for each of its phases, when its workers report the end of the previous one.

A turn's circuits are set once nothing is on its way on what they take the place of (``sip_ml.phases``).
O-NICs of its ranks hold meanwhile what they have to send; those of others send on, over circuits that stay.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from ringlight.controller.errors import ControllerError
from ringlight.extensions.sip_ml.allocation.phased import ActiveCircuits
from ringlight.extensions.sip_ml.divided.planes import Lightpath, Paths
from ringlight.extensions.sip_ml.light.demand import Phased
from ringlight.extensions.sip_ml.light.dividing import RETRY_S, WATCH_S, DemandLoop
from ringlight.extensions.sip_ml.light.documents import Decision
from ringlight.extensions.sip_ml.phases import Turn, Turns

log = logging.getLogger(__name__)

#: Longest wait for a worker's word before it is looked whether the controller is to end, seconds.
WORD_S = 0.5
#: Pause in which other ranks' words may come, seconds: they end an operation some milliseconds apart.
GATHER_S = 0.015


def first_paths(phased: Phased) -> Paths:
    """Return the lightpaths of all turns that have light before anything was sent."""
    return _together(phased, Turns(phased.plan, phased.iterations).begin())


def _together(
    phased: Phased, turns: Collection[Turn]
) -> dict[tuple[int, int], tuple[Lightpath, ...]]:
    return {
        pair: own for turn in turns for pair, own in phased.paths[turn.phase].items()
    }


class PhaseLoop(DemandLoop):
    """The light of a job that follows its phases."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        assert self.light.phased is not None
        self._phased = self.light.phased
        self._turns = Turns(self._phased.plan, self._phased.iterations)
        self._standing = ActiveCircuits()
        #: Turns that are not over and may have light.
        self._active = set(self._turns.begin())
        self._known = dict.fromkeys(self.light.nodes, 0)
        self._looked = 0.0
        self._pause_s = 0.0

    def first(self) -> Decision:
        return self._light_turns(sorted(self._active), nodes=None, counted=False)

    def _round(self, at_once: bool) -> tuple[float, bool]:
        """Wait until a worker has ended a turn, then set the light of turns that may have it.

        Return the seconds to the next round, and whether light must be set then.
        """
        try:
            ended_turns = self._agent.turns(self._known, 0.0 if at_once else WORD_S)
            if not at_once and any(
                self._known.get(node, n) != n for node, n in ended_turns.items()
            ):
                # A driver makes one change at a time: what ends together shall not wait for each other.
                time.sleep(GATHER_S)
                ended_turns = self._agent.turns(self._known, 0.0)
        except ControllerError as error:
            self._note(str(error))
            return RETRY_S, at_once
        over, ready = self._heard(ended_turns)
        if at_once:
            # The state of the O-NICs and the switches is not known, or is not all that it should be.
            ready, self._setting = sorted(self._active), {}
        self.lights.recall()
        if not over and not ready:
            return 0.0, self._lost_light()
        phases = [self._phased.plan.phases[turn.phase] for turn in (*over, *ready)]
        nodes = sorted(
            {self.light.nodes[rank] for phase in phases for rank in phase.ranks}
        )
        decision = self._light_turns(
            ready, nodes=None if at_once else nodes, counted=bool(ready)
        )
        return (0.0, False) if decision.problem is None else (RETRY_S, True)

    def _heard(self, ended_turns: Mapping[str, int]) -> tuple[list[Turn], list[Turn]]:
        """Return the turns that have ended, and the turns that may have light now.

        ``ended_turns``: number of turns that each node's worker has ended.
        """
        over, ready = [], []
        for rank, node in enumerate(self.light.nodes):
            # A worker is not trusted: it ends no more turns than it has.
            before = self._known[node]
            self._known[node] = max(before, ended_turns.get(node, 0))
            for _ in range(before, self._known[node]):
                if self._turns.present(rank) is None:
                    break
                ended, free = self._turns.ended(rank)
                over += [] if ended is None else [ended]
                ready += free
        self._active.difference_update(over)
        self._active.update(ready)
        return over, [turn for turn in ready if turn in self._active]

    def _light_turns(
        self, ready: Sequence[Turn], *, nodes: Collection[str] | None, counted: bool
    ) -> Decision:
        began = time.monotonic()
        kept = _together(self._phased, self._active.difference(ready))
        lit_paths = kept | _together(self._phased, ready)
        for turn in ready:
            self._standing.set(self._phased.paths[turn.phase])
        sent = sum(
            sum(self._phased.plan.phases[turn.phase].demand.values()) for turn in ready
        )
        return self._set(
            began,
            kept,
            lit_paths,
            self._standing.paths,
            int(sent),
            counted=counted,
            nodes=nodes,
            guard_s=self._phased.guard_s,
            anew=False,
            turns=ready,
        )

    def _lost_light(self) -> bool:
        """Return whether light that was set has been lost.

        The switches are read at most every ``WATCH_S`` seconds.
        """
        if (now := time.monotonic()) - self._looked < WATCH_S:
            return False
        self._looked = now
        gone = (
            self.lights.compare(self._setting, skip_failed=True)
            if self._setting
            else []
        )
        self._note(gone[0] if gone else None)
        return bool(gone or self.lights.failed)
