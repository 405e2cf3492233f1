"""Labs on hosts that stay up for interactive use. A process of the first host builds each and ends it on
request.

The process continues without its worker and without the scheduler, like that of a run of a lab over several
hosts.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from ringlight.experiments.backends.emulation.lab_of_setting import processes_of
from ringlight.experiments.backends.protocol import BackendError
from ringlight.experiments.language.plan import Setting
from ringlight.experiments.record.writing import write_whole
from ringlight.extensions.hosts.backend import HostsBackend, kept_by
from ringlight.extensions.hosts.cluster import Host, OwnWorker
from ringlight.extensions.hosts.forks import fork_from_now_on
from ringlight.extensions.hosts.kept import end_all, kept, log_of, looked_after
from ringlight.extensions.hosts.readiness import free_addresses
from ringlight.testbed.lab import Lab, LabError

#: What keys of such processes begin with; in their state, what is known of the lab once it is up.
KIND, STANDS = "stand ", "stands.json"
#: Between two questions whether the lab is up, and looks at what it is made of, seconds.
_ASK_S, _LOOK_S = 0.3, 0.2


def stand(
    backend: HostsBackend, setting: Setting, scenario: str
) -> tuple[dict[str, Any], Any]:
    """Have a lab built that stays up until a user ends it. Return the lab's facts and its Dask future.

    ``host`` of the facts is the lab's first host. The lab ends with the future, unless it is left standing.
    Raises BackendError, LabError.
    """
    lots, left = backend.lots(), backend.cluster.places_left()
    lot = next(
        (lot for lot in lots if all(left[host.name] >= 1 for host in lot)), lots[0]
    )
    key = f"{KIND}{secrets.token_hex(8)}"
    future = backend.cluster.submit(
        _keep, (backend, lot, setting, scenario, key), lot[0]
    )
    while True:
        if future.done():
            error = future.exception() if future.status == "error" else None
            raise BackendError(
                f"host {lot[0].name}: {error or 'its scheduler is gone'}"
            )
        (labs,) = backend.cluster.ask(standing_here, key, hosts=lot[:1]).values()
        if labs:
            return labs[0] | {"host": lot[0].name}, future
        time.sleep(_ASK_S)


# -- on a host


def _keep(order: tuple[HostsBackend, tuple[Host, ...], Setting, str, str]) -> None:
    """As a task of Dask: build a lab that stands, or find it, and stay until it has ended.

    Raises LabError where it could not be built.
    """
    backend, lot, setting, scenario, key = order
    fork_from_now_on()
    work = partial(_build, backend, lot, setting, scenario)
    with looked_after(key, kept_by(work), OwnWorker()) as lab:
        if not (lab.state_dir / STANDS).exists():
            output = log_of(lab).decode(errors="replace").strip().splitlines()
            raise LabError(output[-1] if output else "its process was ended")


def _build(
    backend: HostsBackend,
    lot: tuple[Host, ...],
    setting: Setting,
    scenario: str,
    state: Path,
    unwanted: Callable[[], bool],
) -> None:
    """In a process of its own: build a lab, say so in a file, and end it once nobody wants it."""
    with backend.joined(lot) as spread:
        processes = processes_of(
            setting,
            backend.runtime,
            free_addresses(),
            devices=backend.devices,
            spread=None if spread is None else spread(setting),
        )
        with processes:
            facts = processes.tell_standing(
                scenario=scenario, hosts=[host.name for host in lot]
            )
            write_whole(state / STANDS, json.dumps(facts))
            # Commands of this machine may end it, too.
            while not unwanted() and processes.is_standing():
                processes.check()
                time.sleep(_LOOK_S)


def standing_here(key: str = KIND) -> list[dict[str, Any]]:
    """Return the facts of labs that stay up and begin on this host. ``key``: of the process of one lab."""
    files = [lab.state_dir / STANDS for lab in kept(key)]
    return [
        json.loads(file.read_text(encoding="utf-8")) for file in files if file.exists()
    ]


def end_standing_here(lab_id: str | None) -> list[str]:
    """End the lab with this id that stays up and begins on this host, or all for None.

    Return the ids of the ended labs.
    """
    ended = []

    def is_meant(state: Lab) -> bool:
        try:
            lab = str(
                json.loads((state.state_dir / STANDS).read_text(encoding="utf-8"))[
                    "lab"
                ]
            )
        except OSError:
            # It is still being built.
            return lab_id is None
        if lab_id in (None, lab):
            ended.append(lab)
            return True
        return False

    end_all(KIND, is_meant)
    return ended
