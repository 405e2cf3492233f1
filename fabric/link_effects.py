"""Effects of links on frames, besides their rate: the contract for extensions that have some.

Keys of a link in the fabric file say it (``fabric.keys.LinkKeys``), and events while jobs run.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Self


class LinkEffect:
    """An effect of a link on frames, the same in both directions, and for each by itself.

    A subclass is a frozen dataclass of plain values, without a value an effect that does nothing. What it
    does not define is as on a link without effects.

    ``delay_s``: added to the way of every frame, and ``most_delay_s`` at most, seconds. ``loses``: whether
    single frames are lost. ``varies``: whether it changes by itself as time goes by. ``acts``: whether it
    does anything at all.
    """

    @property
    def delay_s(self) -> float:
        return 0.0

    @property
    def most_delay_s(self) -> float:
        return self.delay_s

    @property
    def loses(self) -> bool:
        return False

    @property
    def varies(self) -> bool:
        return False

    @property
    def acts(self) -> bool:
        return self != type(self)()

    def frame_loss(self, frame_bytes: float) -> float:
        """Return the share of frames of so many bytes, with Ethernet's header, that are lost."""
        return 0.0

    def dilated(self, factor: float) -> Self:
        """Return the effect with all times ``factor`` times as long."""
        return self

    def course(self, passage: Any) -> Any:
        """Return what changes a simulated link from now on, of an effect that varies.

        That is a ``testbed.simulation.link_courses.LinkCourse``, and ``passage`` a ``Passage`` there.
        """
        raise NotImplementedError


#: By the key of an event that says such an effect (``fabric.keys.LinkKeys.key``).
Effects = Mapping[str, LinkEffect]


def acting(effects: Effects) -> Effects:
    """Return the effects that do anything."""
    return {key: effect for key, effect in effects.items() if effect.acts}


def dilated(effects: Effects, factor: float) -> Effects:
    """Return effects with all times ``factor`` times as long."""
    return {key: effect.dilated(factor) for key, effect in effects.items()}


def delay_s(effects: Effects) -> float:
    """Return the seconds that effects add to the way of every frame."""
    return math.fsum(effect.delay_s for effect in effects.values())


def most_delay_s(effects: Effects) -> float:
    """Return the most seconds that effects add to the way of a frame."""
    return math.fsum(effect.most_delay_s for effect in effects.values())
