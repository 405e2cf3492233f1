"""Effect of a restart on the light of an optical switch, and the state that the switch keeps on disk.

A switch in a testbed has its light paths in the kernel, which keeps them while the process is away. A switch
that runs alone has none: its configuration goes into :class:`ModelledPaths`, and into a file if it has a
folder.
"""

from __future__ import annotations

import fcntl
import json
import os
import random
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ringlight.fabric.optical_profiles import Profile
from ringlight.testbed.emulation.optical.commands import (
    NS,
    Admin,
    Recovery,
    Spot,
    Stored,
    TunedEgress,
)

#: Raise when the file's shape changes: a switch never goes on from a file that it would misread.
LAYOUT = 1


def booted(stored: Stored, profile: Profile, seed: int, now_ns: int) -> Stored:
    """Return the state of a switch that was off and is on again at ``now_ns`` (CLOCK_MONOTONIC nanoseconds).

    Ports that were disabled or have failed stay so, and labels stay.
    """
    if stored.recovery is Recovery.REMOVE:
        return replace(stored, cross_connects={}, notes={})
    dice = random.Random(f"{seed}/boot/{now_ns}")
    # The clock begins anew when the machine does: nothing that stood is dark for longer than new light is.
    latest_ns = now_ns + round(
        (profile.dark_s + profile.dark_jitter_s + profile.retrain_s) * NS
    )

    def ready_ns(light: TunedEgress) -> int:
        if stored.recovery is Recovery.MAINTAIN:
            return min(light.ready_ns, latest_ns)
        return latest_ns - round(dice.uniform(0, profile.dark_jitter_s) * NS)

    wires = sorted(stored.cross_connects.items(), key=str)
    return replace(
        stored,
        cross_connects={
            spot: TunedEgress(light.egress, ready_ns(light)) for spot, light in wires
        },
    )


class ModelledPaths:
    """Light paths that no packet takes. With a ``folder`` they outlive the process, not the machine's power.

    Raises ValueError for a folder that another switch has, and OSError.
    """

    def __init__(self, folder: Path | None, name: str, size: int) -> None:
        self._about: dict[str, Any] = {"layout": LAYOUT, "name": name, "size": size}
        self._lit: dict[Spot, TunedEgress] = {}
        self._admin: dict[int, Admin] = {}
        self._labels: dict[int, str] = {}
        self._recovery = Recovery.MAINTAIN
        self._notes: dict[str, Any] = {}
        self._file = None if folder is None else folder / "state.json"
        self._lock: int | None = None
        self.resumed = False
        if folder is None:
            return
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._lock = os.open(
            folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600
        )
        try:
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ValueError(
                    f"{folder}: another switch that runs keeps its state there"
                ) from None
            self._read(folder / "state.json")
        except BaseException:
            self.close()
            raise

    def _read(self, file: Path) -> None:
        try:
            document = json.loads(file.read_text())
        except FileNotFoundError:
            return
        except ValueError:
            raise ValueError(f"{file}: is not the state of a switch") from None
        about = (
            {key: document.get(key) for key in self._about}
            if isinstance(document, dict)
            else {}
        )
        if about and about != self._about:
            recorded, expected = (
                ", ".join(f"{k} {v}" for k, v in facts.items())
                for facts in (about, self._about)
            )
            raise ValueError(
                f"{file}: is of another switch ({recorded}; this one: {expected})"
            )
        try:
            self._lit = {
                (int(ingress), None): TunedEgress(int(egress), int(ready_ns))
                for ingress, egress, ready_ns in document["cross_connects"]
            }
            self._admin = {int(port): Admin.DISABLED for port in document["disabled"]}
            self._recovery = Recovery(document["recovery"])
            self._notes = {
                str(whose): note for whose, note in document["notes"].items()
            }
            self._labels = {
                int(port): str(label) for port, label in document["labels"].items()
            }
        except (AttributeError, KeyError, TypeError, ValueError):
            raise ValueError(f"{file}: is not the state of a switch") from None
        size = self._about["size"]
        outs = [light.egress for light in self._lit.values()]
        known = all(1 <= port <= size for port, _ in self._lit) and all(
            size < out <= 2 * size for out in outs
        )
        if not known or len(set(outs)) < len(outs):
            raise ValueError(
                f"{file}: no switch of {size} ports has these cross-connects"
            )
        self.resumed = True

    def connect(
        self,
        ingress: int,
        egress: int,
        ready_ns: int,
        wavelength: int | None = None,
        loss_db: float = 0.0,
    ) -> None:
        self._lit[ingress, wavelength] = TunedEgress(egress, ready_ns)

    def disconnect(self, ingress: int, wavelength: int | None = None) -> None:
        self._lit.pop((ingress, wavelength), None)

    def cross_connects(self) -> Mapping[Spot, TunedEgress]:
        return dict(self._lit)

    def set_admin(self, port: int, admin: Admin) -> None:
        self._admin[port] = admin

    def set_label(self, port: int, label: str) -> None:
        self._labels[port] = label

    def set_recovery(self, recovery: Recovery) -> None:
        self._recovery = recovery

    def set_notes(self, notes: Mapping[str, Any]) -> None:
        self._notes = dict(notes)

    def stored(self) -> Stored:
        """Return the state that a device keeps over a restart."""
        admin = {
            port: admin
            for port, admin in self._admin.items()
            if admin is not Admin.ENABLED
        }
        labels = {port: label for port, label in self._labels.items() if label}
        return Stored(dict(self._lit), admin, labels, self._recovery, dict(self._notes))

    def keep(self) -> None:
        if self._file is None:
            return
        wires = [
            [ingress, light.egress, light.ready_ns]
            for (ingress, _), light in self._lit.items()
        ]
        state: dict[str, Any] = {
            **self._about,
            "cross_connects": wires,
            # What was broken is not known to be so when it starts again.
            "disabled": [
                port for port, admin in self._admin.items() if admin is Admin.DISABLED
            ],
            "labels": dict(self.stored().labels),
            "recovery": self._recovery.value,
            "notes": self._notes,
        }
        temporary = self._file.with_name(".state.json")
        temporary.write_text(json.dumps(state) + "\n")
        temporary.replace(self._file)

    def close(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
