"""Settings of the process that an emulated optical switch is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ringlight.fabric.optical_profiles import Profile
from ringlight.testbed.emulation.optical.commands import (
    Recovery,
)
from ringlight.testbed.emulation.optical.far_light import LightPlan

#: Silence after which a client is dropped, seconds, unless another is set.
IDLE_TIMEOUT_S = 300.0


@dataclass(frozen=True)
class Settings:
    """``listen``: host and port of the SCPI server, None for none; ``netns``: namespace of the faceplate
    interfaces; ``pins``: directory in bpffs of the switch alone, None for one that moves no packets: light
    comes in at all of its ports, and it remembers in ``folder`` what it was told.

    ``serve``: other management protocols, each with its host and port; ``users``: passwords by user, for
    those with a login. ``rest``: host and port of the switch's own REST (:mod:`.rest`), ``rest_tokens``: the
    name of each token that it takes, None where none is needed. ``recovery``: what a start does to light
    that stood, None for what it was last told.

    Of a WSS: ``wavelengths``, where the ``lasers`` of the lab are pinned, and which is plugged into each
    faceplate port; without ``lasers`` the light itself tells its colour (802.1Q tag channel + 1). ``light``:
    of the lab around it; without it every fibre brings full light and every receiver gets enough.
    """

    name: str
    size: int
    profile: Profile
    listen: tuple[str, int] | None = None
    netns: str | None = None
    pins: Path | None = None
    seed: int = 0
    failed_ports: tuple[int, ...] = ()
    idle_timeout_s: float = IDLE_TIMEOUT_S
    wavelengths: int = 0
    lasers: Path | None = None
    laser_of_port: Mapping[int, int] = field(default_factory=dict)
    light: LightPlan | None = None
    serve: tuple[tuple[str, tuple[str, int]], ...] = ()
    users: Mapping[str, str] = field(default_factory=dict)
    rest: tuple[str, int] | None = None
    rest_tokens: Mapping[str, str] | None = None
    folder: Path | None = None
    recovery: Recovery | None = None
