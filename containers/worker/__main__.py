"""The training worker: ``python3 -m ringlight.containers.worker DIRECTORY``.

DIRECTORY holds ``spec.json`` and, later, ``go``; the worker appends to ``events.jsonl`` there. If the
directory has the socket of an agent that gives orders, the worker stays (``resident``). Exit codes: 0 done, 1
own failure, 2 bad spec, 3 a peer was lost, 143 terminated.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
from pathlib import Path

# A rank uses no BLAS, whose threads start when numpy loads.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from ringlight.containers.worker.events import EventLog
from ringlight.containers.worker.peer import PeerLost, ReduceFailed
from ringlight.containers.worker.rendezvous import NoConnection
from ringlight.containers.worker.resident import ORDERS, reside
from ringlight.containers.worker.spec import BadSpec, read_spec

EXIT_FAILED, EXIT_BAD_SPEC, EXIT_PEER_LOST, EXIT_TERMINATED = 1, 2, 3, 143

log = logging.getLogger("worker")


def main(directory: Path) -> int:
    """Run the workload that the spec in ``directory`` names; returns the exit code."""
    try:
        events = EventLog(directory / "events.jsonl")
    except OSError as error:
        log.error("%s: %s", error.filename, error.strerror)
        return EXIT_FAILED
    try:
        spec = read_spec(directory / "spec.json")
    except BadSpec as error:
        return _fail(events, EXIT_BAD_SPEC, str(error), None)
    try:
        # Imported here, so that a bad spec is told at once and a link test loads no model.
        if spec.workload == "linktest":
            from ringlight.containers.worker.linktest import linktest as workload
        elif spec.workload == "hold":
            from ringlight.containers.worker.holder import hold as workload
        elif spec.workload == "graph":
            from ringlight.containers.worker.run import run_graph as workload
        else:
            from ringlight.containers.worker.gradients import train as workload
        workload(spec, directory, events)
    except BadSpec as error:
        return _fail(events, EXIT_BAD_SPEC, str(error), None)
    except PeerLost as error:
        return _fail(events, EXIT_PEER_LOST, str(error), error.rank, error.at_s)
    except ReduceFailed as error:
        # Who says so knows whose fault it is: there is no other cause to wait for.
        return _fail(events, EXIT_FAILED, str(error), error.rank)
    except (NoConnection, ArithmeticError, TimeoutError, OSError) as error:
        return _fail(events, EXIT_FAILED, str(error), None)
    return 0


def _fail(
    events: EventLog,
    code: int,
    reason: str,
    peer: int | None,
    at_s: float | None = None,
) -> int:
    """Log a failure, write it as an event, and return ``code``. ``at_s``: when it happened (monotonic
    seconds); None: now.
    """
    log.error("%s", reason)
    when = {} if at_s is None else {"t": at_s}
    events.write("failed", reason=reason, peer=peer, **when)
    return code


def _terminate(_number: int, _frame: object) -> None:
    sys.exit(EXIT_TERMINATED)


if __name__ == "__main__":
    logging.basicConfig(format="%(message)s", level=logging.INFO)
    # As process 1 of a container, Python would otherwise ignore SIGTERM.
    signal.signal(signal.SIGTERM, _terminate)
    if len(sys.argv) != 2:
        log.error("usage: python3 -m ringlight.containers.worker DIRECTORY")
        sys.exit(EXIT_BAD_SPEC)
    place: Path | int = Path(sys.argv[1])
    if isinstance(place, Path) and (place / ORDERS).is_socket():
        place = reside(place)
    sys.exit(main(place) if isinstance(place, Path) else place)
