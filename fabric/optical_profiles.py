"""Timing and loss of the kinds of optical switch that can be emulated, with each figure's source.

Sources: [S320] Calient S320 hardware guide p. 44: reconfiguring all 320 ports takes at most 200 ms when the
controller deletes before it adds. [Polatis] lab figures of a 320x320 Series 7000 in public client code:
50 ms for a single connection, insertion loss 1.5 dB typical and 2.7 dB at most, repeatability 0.1 dB, dark
fibre may be switched. [SONiC] SONiC-OCS sample data of a 3D-MEMS switch: 1.58 to 1.85 dB. [Li] Li et al.,
JOCN 16(3), 2024, abstract: their wavelength-selective switches (WSS) are liquid crystal on silicon.
[WSS] JLT 24(2), 2006: a WSS loses 6 to 18 dB; that liquid crystal on silicon takes tens to hundreds of
milliseconds is common knowledge, not a figure of [Li]. [ring]: later code of WRHT's first author for other
networks: 25 us for setting up light (TravisDai/LHAS@4b608a1 configs/approved_reference_parameters.json), and
1 dB lost at the ring that drops it (TravisDai/onoc-fcnn-allocation@083825a physhb.py). The WRHT paper's own
figures could not be read. [assumed]: our choice, within what the source allows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import cache
from typing import Literal

from ringlight.fabric.extension import ExtensionError, InstalledExtension, entries

#: How a switch whose management protocol names ports does that: by number, or by places, with 8 ports in a
#: module, and 8 modules in a shelf where shelves are counted.
PortNames = Literal["number", "1.module.port", "shelf.module.port"]


@dataclass(frozen=True)
class Profile:
    """Behaviour of a switch in time (seconds) and in light (dB, dBm).

    A command occupies the device for ``command_s`` + ``command_per_xc_s`` for each cross-connect that it
    changes; only then does anything happen to the light. A new cross-connect is dark for ``dark_s`` plus a
    uniform jitter of up to ``dark_jitter_s``; then its ports are TUNED. The receiver at the far end needs
    another ``retrain_s`` before it passes packets, which the switch cannot see, and which is part of the dark
    time. Drivers wait for light as long as their switch's profile says.
    """

    name: str
    command_s: float
    command_per_xc_s: float
    dark_s: float
    dark_jitter_s: float
    retrain_s: float
    loss_min_db: float
    loss_typ_db: float
    loss_max_db: float
    repeatability_db: float
    launch_dbm: float = 0.0
    dark_dbm: float = -60.0
    los_dbm: float = -30.0
    port_names: PortNames = "1.module.port"

    def dark_bounds_s(self, commands: int = 1) -> tuple[float, float, float]:
        """Return the least, typical and most seconds without packets while a cross-connect is moved.

        ``commands``: 1 when one command removes and adds, 2 when a second one adds as soon as the first has
        removed. The client's own time between the two is not included.
        """
        between = (commands - 1) * (self.command_s + self.command_per_xc_s)
        least = between + self.dark_s + self.retrain_s
        return least, least + self.dark_jitter_s / 2, least + self.dark_jitter_s

    def losing(self, loss_db: float | None) -> Profile:
        """Return the same device with exactly that insertion loss (dB) on every path; None for its own."""
        if loss_db is None:
            return self
        return replace(
            self,
            loss_min_db=loss_db,
            loss_typ_db=loss_db,
            loss_max_db=loss_db,
            repeatability_db=0.0,
        )

    def dark_for(self, dark_s: float | None) -> Profile:
        """Return the same device whose new cross-connects are all dark for exactly so many seconds.

        None stands for the device's own time.
        """
        return (
            self if dark_s is None else replace(self, dark_s=dark_s, dark_jitter_s=0.0)
        )

    def dilated(self, factor: float) -> Profile:
        """Return the same device in a run whose time passes ``factor`` times slower."""
        return replace(
            self,
            command_s=self.command_s * factor,
            command_per_xc_s=self.command_per_xc_s * factor,
            dark_s=self.dark_s * factor,
            dark_jitter_s=self.dark_jitter_s * factor,
            retrain_s=self.retrain_s * factor,
        )

    def declared(self) -> dict[str, float | str]:
        """Return the description of the device for a controller: the fields and the dark bounds (s)."""
        least, typical, most = self.dark_bounds_s()
        return asdict(self) | {
            "dark_min_s": least,
            "dark_typ_s": typical,
            "dark_max_s": most,
        }


#: 3D-MEMS. 10 ms + 320 · 0.5 ms + 25 ms + 5 ms = 200 ms, the whole-fabric figure of
#: [S320]; its split over command, cross-connect, mirrors and jitter, and the launch power, are [assumed].
#: Loss: [SONiC]. Re-training: [assumed] an optical receiver without auto-negotiation.
MEMS = Profile(
    "mems",
    command_s=0.010,
    command_per_xc_s=0.0005,
    dark_s=0.025,
    dark_jitter_s=0.005,
    retrain_s=0.005,
    loss_min_db=1.58,
    loss_typ_db=1.7,
    loss_max_db=1.85,
    repeatability_db=0.1,
)

#: Piezo beam steering: [Polatis]. The 50 ms are taken as dark time, since mirrors of an unlit path move in
#: place; command time, jitter, lower end of the loss and re-training are [assumed].
PIEZO = Profile(
    "piezo",
    command_s=0.005,
    command_per_xc_s=0.0001,
    dark_s=0.050,
    dark_jitter_s=0.005,
    retrain_s=0.005,
    loss_min_db=1.0,
    loss_typ_db=1.5,
    loss_max_db=2.7,
    repeatability_db=0.1,
)

#: Liquid crystal on silicon (LCoS), the WSS of [Li]: 100 ms, in the middle of the range in [WSS]. How it is
#: split, the jitter, and the loss at the low end of the range are [assumed]; re-training as above.
LCOS = Profile(
    "lcos",
    command_s=0.010,
    command_per_xc_s=0.0001,
    dark_s=0.100,
    dark_jitter_s=0.010,
    retrain_s=0.005,
    loss_min_db=6.0,
    loss_typ_db=7.0,
    loss_max_db=9.0,
    repeatability_db=0.3,
)

#: Micro-ring resonators, the WSS of a WRHT node: [ring], without what the network around them loses. That the
#: command takes no time, that there is no jitter and no re-training, and the range of loss are [assumed].
MRR = Profile(
    "mrr",
    command_s=0.0,
    command_per_xc_s=0.0,
    dark_s=25e-6,
    dark_jitter_s=0.0,
    retrain_s=0.0,
    loss_min_db=1.0,
    loss_typ_db=1.0,
    loss_max_db=1.5,
    repeatability_db=0.1,
)

#: No delay and no loss: what is left is the emulator's own time.
IDEAL = Profile("ideal", 0, 0, 0, 0, 0, 0, 0, 0, 0)


@cache
def profiles() -> Mapping[str, Profile]:
    """Return all profiles by name, the core's first.

    Raises ExtensionError, also for a profile that has another name than it is listed by.
    """
    return {
        name: _profile(name, *listed) for name, listed in entries("profiles").items()
    }


def _profile(name: str, installed: InstalledExtension, value: str) -> Profile:
    profile: Profile = installed.load(value)
    if profile.name != name:
        owner = installed.extension.name
        raise ExtensionError(
            f"extension {owner}: profiles: {value} is called {profile.name!r}, and listed as {name!r}"
        )
    return profile
