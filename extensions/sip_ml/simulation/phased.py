"""Sets the light of a workload for each of its phases while it runs, as the controller does."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from ringlight.extensions.sip_ml.allocation.dividing import Divider
from ringlight.extensions.sip_ml.allocation.phased import ActiveCircuits, phase_paths
from ringlight.extensions.sip_ml.divided.planes import Paths
from ringlight.extensions.sip_ml.phases import PhasePlan, Progress, Turn, Turns
from ringlight.extensions.sip_ml.simulation.zoo import CircuitNetwork
from ringlight.extensions.sip_ml.wholes.interconnect import PhaseLight
from ringlight.testbed.simulation.engine import Engine
from ringlight.testbed.simulation.workload import Execution


class TurnLit(NamedTuple):
    """A turn's light: when it began to be set and when it was lit, seconds; whether a circuit was ``moved``
    for it, or all that it needs stood already."""

    turn: Turn
    set_s: float
    lit_s: float
    moved: bool


class PhasedLight:
    """Lights the pairs of an execution's network turn by turn; nothing passes a pair in no lit turn.

    ``network``: one link for each pair that ever sends; a lightpath of ``rate_bps`` carries payload. Rank i
    is on GPU number ``at[i]``. ``made``: the light of each turn, those of the beginning set before.
    """

    def __init__(
        self,
        engine: Engine,
        execution: Execution,
        network: CircuitNetwork,
        plan: PhasePlan,
        iterations: int,
        places: Sequence[int],
        divider: Divider,
        rate_bps: float,
        takes: PhaseLight,
    ) -> None:
        self.made: list[TurnLit] = []
        self._engine, self._execution, self._plan = engine, execution, plan
        self._at, self._divider, self._rate_bps, self._takes = (
            places,
            divider,
            rate_bps,
            takes,
        )
        self._link = {
            (a, b): link for link, (a, b) in enumerate(network.pairs.tolist())
        }
        self._turns, self._lit = Turns(plan, iterations), ActiveCircuits()
        # Ranks in lock-step end their operations together.
        self._ranks_of: list[list[int]] = [
            [] for _ in range(int(execution.row_of.max()) + 1)
        ]
        for rank, row in enumerate(execution.row_of.tolist()):
            self._ranks_of[row].append(rank)
        self._progress = [Progress(own) for own in plan.phase_of]
        self._paths: dict[int, Paths] = {}
        self._now_bps = np.zeros(len(network.capacity_bps))
        self._changing = False
        execution.operations.on_end = self._ended

    def begin(self) -> None:
        """Light the first turns at once, as before a job starts."""
        for turn in self._turns.begin():
            self._lit.set(self._paths_of(turn))
            self._shine(TurnLit(turn, self._engine.now_s, self._engine.now_s, False))
        self._apply()

    def _ended(self, row: int, operation: int) -> None:
        ready: list[Turn] = []
        for rank in self._ranks_of[row]:
            for _ in range(self._progress[rank].end(operation)):
                over, free = self._turns.ended(rank)
                if over is not None:
                    self._put_out(over)
                ready += free
        self._set(ready)

    def _set(self, ready: Iterable[Turn]) -> None:
        for turn in ready:
            now_s = self._engine.now_s
            moved = self._lit.set(self._paths_of(turn))
            lighting = TurnLit(
                turn, now_s, now_s + (sum(self._takes) if moved else 0.0), moved
            )
            if moved:
                self._engine.at(lighting.lit_s, self._shine, lighting)
            else:
                self._shine(lighting)

    def _shine(self, lighting: TurnLit) -> None:
        self.made.append(lighting)
        for pair, own in self._paths_of(lighting.turn).items():
            self._now_bps[self._link[pair]] = len(own) * self._rate_bps
        self._change()

    def _put_out(self, turn: Turn) -> None:
        for pair in self._paths_of(turn):
            self._now_bps[self._link[pair]] = 0.0
        self._change()

    def _change(self) -> None:
        if not self._changing:
            self._changing = True
            # Once for all turns of this instant.
            self._engine.at(self._engine.now_s, self._apply)

    def _apply(self) -> None:
        self._changing = False
        self._execution.set_capacity(self._now_bps.copy())

    def _paths_of(self, turn: Turn) -> Paths:
        paths = self._paths.get(turn.phase)
        if paths is None:
            paths = phase_paths(self._divider, self._plan.phases[turn.phase], self._at)
            self._paths[turn.phase] = paths
        return paths
