"""The mirrors of an emulated optical switch: its cross-connects, and the light on each of them."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Mapping

from ringlight.fabric.optical_profiles import Profile
from ringlight.testbed.emulation.optical.commands import (
    NS,
    Dark,
    Light,
    Spot,
    TunedEgress,
    Wire,
)


class Mirrors:
    """The cross-connects of a switch with ``size`` ingress ports. Same seed and calls give the same light.

    ``wavelengths``: how many it tells apart; 0 if it passes every colour alike. ``cross_connects``: those of
    the beginning.
    """

    def __init__(
        self,
        size: int,
        wavelengths: int,
        profile: Profile,
        seed: int,
        cross_connects: Mapping[Spot, TunedEgress],
    ) -> None:
        self._size, self._profile, self._seed = size, profile, seed
        self._colours: tuple[int | None, ...] = tuple(range(wavelengths)) or (None,)
        self._random = random.Random(seed)
        self._lit: dict[Spot, TunedEgress] = dict(cross_connects)
        self._feeder: dict[Spot, int] = {
            (light.egress, colour): ingress
            for (ingress, colour), light in self._lit.items()
        }
        #: How often each ingress was given a new direction, since the process began.
        self.moves: Counter[int] = Counter()

    def tune(
        self, wire: Wire, now_ns: int, late_ns: int = 0, ghost: bool = False
    ) -> tuple[Light, int]:
        """Find the path of a cross-connect. Return its light, and when it is tuned, nanoseconds."""
        profile = self._profile
        dark_s = profile.dark_s + profile.dark_jitter_s * self._random.random()
        tuned = now_ns + round(dark_s * NS) + late_ns
        self._lit[wire.spot] = TunedEgress(
            wire.egress, tuned + round(profile.retrain_s * NS), ghost
        )
        self._feeder[wire.egress, wire.wavelength] = wire.ingress
        self.moves[wire.ingress] += 1
        return self.light_of(wire), tuned

    def cut(self, spot: Spot) -> Dark:
        """End the cross-connect of an ingress. Return the effect."""
        del self._feeder[self._lit.pop(spot).egress, spot[1]]
        return Dark(*spot)

    def put_off(self, wire: Wire, late_ns: int) -> None:
        """Delay the light of a cross-connect; does nothing if it does not exist."""
        light = self.find(wire)
        if light is not None:
            self._lit[wire.spot] = light._replace(ready_ns=light.ready_ns + late_ns)

    def wires(self) -> tuple[Wire, ...]:
        """Return every cross-connect, tuned or not, in order of ingress and wavelength."""
        return tuple(
            [
                Wire(spot[0], light.egress, spot[1])
                for spot, light in sorted(self._lit.items())
            ]
        )

    def find(self, wire: Wire) -> TunedEgress | None:
        """Return the light of a cross-connect, None if it does not exist."""
        light = self._lit.get(wire.spot)
        return light if light is not None and light.egress == wire.egress else None

    def wire_at(self, port: int, wavelength: int | None) -> Wire | None:
        """Return the cross-connect that a port takes part in on a wavelength, None without one."""
        ingress = port if port <= self._size else self._feeder.get((port, wavelength))
        light = None if ingress is None else self._lit.get((ingress, wavelength))
        return (
            None
            if ingress is None or light is None
            else Wire(ingress, light.egress, wavelength)
        )

    def wires_at(self, port: int) -> list[Wire]:
        """Return the cross-connects that a port takes part in, by wavelength."""
        return [
            wire
            for colour in self._colours
            if (wire := self.wire_at(port, colour)) is not None
        ]

    def since_ns(self, wire: Wire) -> int | None:
        """Return the time since which a cross-connect passes packets, nanoseconds, or None if it does not
        exist."""
        light = self.find(wire)
        return None if light is None else light.ready_ns

    def tuned_ns(self, wires: Iterable[Wire], now_ns: int) -> int:
        """Return the time at which the mirrors of all these cross-connects are tuned, nanoseconds, or
        ``now_ns`` if none exists."""
        ready = [self.since_ns(wire) for wire in wires]
        retrain_ns = round(self._profile.retrain_s * NS)
        return max(
            (ready_ns - retrain_ns for ready_ns in ready if ready_ns is not None),
            default=now_ns,
        )

    def is_ghost(self, wire: Wire) -> bool:
        """Return whether a cross-connect is shown but has no light."""
        light = self.find(wire)
        return light is not None and light.ghost

    def is_tuned(self, wire: Wire, now_ns: int) -> bool:
        """Return whether the mirrors of a cross-connect are tuned, False if it does not exist."""
        light = self.find(wire)
        return light is not None and now_ns >= light.ready_ns - round(
            self._profile.retrain_s * NS
        )

    def insertion_loss_db(self, ingress: int, egress: int) -> float:
        """Return the factory insertion loss of a path in dB: triangular between the profile's least, typical
        and greatest."""
        profile = self._profile
        if profile.loss_min_db == profile.loss_max_db:
            return profile.loss_min_db
        dice = random.Random(f"{self._seed}/{ingress}/{egress}")
        return dice.triangular(
            profile.loss_min_db, profile.loss_max_db, profile.loss_typ_db
        )

    def loss_db(self, wire: Wire) -> float:
        """Return the loss (dB) of a cross-connect since it was last tuned: the path's own loss and the
        mirrors' error."""
        loss_db, spread = (
            self.insertion_loss_db(wire.ingress, wire.egress),
            self._profile.repeatability_db,
        )
        if spread:
            # Drawn from the moment of tuning, so that a restarted device reads the same.
            ready = self._lit[wire.spot].ready_ns
            dice = random.Random(f"{self._seed}/{wire.ingress}/{wire.egress}/{ready}")
            loss_db += dice.uniform(-spread, spread)
        return max(0.0, loss_db)

    def light_of(self, wire: Wire) -> Light:
        """Return the effect that makes an existing cross-connect."""
        ready_ns = self._lit[wire.spot].ready_ns
        return Light(
            wire.ingress, wire.egress, ready_ns, wire.wavelength, self.loss_db(wire)
        )
