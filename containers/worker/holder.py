"""Holds a GPU's NIC for a command that the server agent runs in the same network.

The holder shows that every rank reaches every other, waits for the release with all other workers, and stays
until the server agent reports, by the file ``ended``, that the command has ended. Meanwhile it sends beacons,
and at the end it reports the bytes that the NIC has carried. The command has no part in that: it cannot
change what is said.
"""

from __future__ import annotations

import time
from pathlib import Path

from ringlight.containers.worker.beacon import Beacons
from ringlight.containers.worker.events import EventLog
from ringlight.containers.worker.nics import carried, carried_since
from ringlight.containers.worker.release import wait_for_release
from ringlight.containers.worker.rendezvous import Line, connect_all, describe, listen
from ringlight.containers.worker.spec import WorkerSpec

#: In the worker's directory, written by the server agent.
ENDED = "ended"
_LOOK_S = 0.02


def hold(spec: WorkerSpec, directory: Path, events: EventLog) -> None:
    """Hold the connections and the beacons of a rank until its command has ended.

    Raises PeerLost, NoConnection, and TimeoutError if the rank was never released or the command outlived
    ``deadline_s``.
    """
    lines = [Line(rank) for rank in range(spec.world_size) if rank != spec.rank]
    with listen(spec, time.monotonic() + spec.connect_timeout_s) as listener:
        connections = connect_all(spec, dict.fromkeys(lines, False), listener)
    peers = describe(
        [(line.peer, connection) for line, connection in connections.items()]
    )
    with Beacons(spec) as beacons:
        events.write("ready", local=spec.address, connections=peers)
        # Not watched: who is released first may have ended before this rank hears of it.
        started = wait_for_release(directory / "go", [], spec.go_timeout_s)
        before = carried()
        events.write("started", at=started)
        _until_ended(directory / ENDED, started, spec.deadline_s)
        wire = carried_since(before)
    for connection in connections.values():
        connection.close()
    events.write(
        "done",
        wire_bytes=wire,
        max_beacon_gap_s=beacons.max_gap_s,
        beacon_gaps=beacons.gaps,
    )


def _until_ended(ended: Path, started: float, deadline_s: float) -> None:
    while not ended.exists():
        if time.monotonic() > started + deadline_s:
            raise TimeoutError(
                f"its command had not ended {deadline_s:g} s after the start"
            )
        time.sleep(_LOOK_S)
