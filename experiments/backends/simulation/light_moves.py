"""Events of extensions that move light in a simulated run."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from ringlight.controller.jobs.reservation import Holder
from ringlight.experiments.backends.simulation.fabric_now import FabricNow
from ringlight.experiments.language.light_events import SimulatedLight, light_events
from ringlight.experiments.language.plan import EventPlan


class LightMoves:
    """Events of a run that have moved light so far."""

    def __init__(self) -> None:
        self._targets: dict[str, list[tuple[str, ...]]] = {}

    def circuits(
        self,
        event: EventPlan,
        fabric: FabricNow,
        users: Mapping[str, Holder],
        lost: Collection[str],
    ) -> Sequence[tuple[str, str]]:
        """Return the circuits after an event. ``users``: holder of each taken GPU; ``lost``: GPUs that are lost.

        Raises ValueError if the controller would refuse.
        """
        assert event.target is not None
        earlier, names = self._targets.setdefault(event.do, []), event.target.names
        now = SimulatedLight(fabric.circuits, tuple(earlier), users, lost)
        after = light_events()[event.do].circuits(fabric.whole, names, now)
        earlier.append(names)
        return after
