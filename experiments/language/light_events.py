"""Events of extensions that move light while jobs run."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from ringlight.fabric.extension import loaders

if TYPE_CHECKING:
    from ringlight.controller.jobs.reservation import Holder
    from ringlight.experiments.client import Api
    from ringlight.fabric.topology import Fabric

Names = Sequence[str]
Pairs = Sequence[tuple[str, str]]


@dataclass(frozen=True)
class SimulatedLight:
    """State of a simulated lab when an event of this kind comes.

    ``circuits``: pairs of port names that are lit. ``earlier``: names of the targets of the events of this kind
    that came before in the run. ``users``: holder of each taken GPU. ``lost``: GPUs that a fault has
    taken.
    """

    circuits: Pairs
    earlier: Sequence[Names]
    users: Mapping[str, Holder]
    lost: Collection[str]


@dataclass(frozen=True)
class LightEvent:
    """Kind of event that moves light. Its functions receive the names in the event's target.

    ``target``: kind of the target; ``names``: the names that follow, as messages write them. ``does``: the
    event in messages, a verb first. ``check``: raises ValueError for names that do not fit
    the fabric.

    ``move``: has a lab's controller move the light, waits until the light is there, and returns the event's
    result; ``undo``: has the controller move the light back before the next run in the lab, when all faults are
    over, also if ``move`` failed, and whether or not the light was moved. Both raise ValueError, in one line, and
    the errors of the API's client. ``circuits``: returns the circuits after the event in a simulation; raises
    ValueError with the controller's reason if the controller would refuse.
    """

    target: str
    names: tuple[str, ...]
    does: str
    check: Callable[[Fabric, Names], None]
    move: Callable[[Api, Names], Mapping[str, Any]]
    undo: Callable[[Api, Names], None]
    circuits: Callable[[Fabric, Names, SimulatedLight], Pairs]


@cache
def light_events() -> Mapping[str, LightEvent]:
    """Return the kinds of events that extensions add, by the event's ``do``.

    Raises ExtensionError if one cannot be loaded.
    """
    return {do: load() for do, load in loaders("light_events").items()}


@cache
def circuit_events() -> tuple[str, ...]:
    """Return what events do that light circuits which a file does not have at the start."""
    return ("circuits", *light_events())


@cache
def moving_events() -> tuple[str, ...]:
    """Return what events do that move light."""
    return ("regroup", *circuit_events())
