"""Settings of a job's workers and guests, as the agent and the workers take them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ringlight.controller.jobs.job import Job, guest_of, linktest_targets

#: Port on which rank 0 of a job's guests may listen, as with torchrun.
MASTER_PORT = 29500


def guest_request(job: Job) -> dict[str, Any] | None:
    """Return the request for the guest that the agent runs next to each of a job's workers; None if the
    workers do the work themselves.
    """
    guest = guest_of(job.spec)
    if guest is None:
        return None
    settings = {key: value for key, value in guest.items() if key != "deadline_s"}
    return {
        "kind": job.spec["workload"],
        "settings": {**settings, "port": job.spec.get("port", MASTER_PORT)},
    }


def holder_port(port: int) -> int:
    """Return the port of the processes that hold NICs, next to the guest's port."""
    return port - 1 if port > 1 else port + 1


def worker_spec(
    job: Job,
    rank: int,
    peers: Sequence[str],
    flow_socket: str | None = None,
    *,
    standing: bool = False,
) -> dict[str, Any]:
    """Return the settings of one worker: the job's settings, its rank, its peers' addresses, its O-NIC's
    socket.

    If light is ``standing``, the worker does not request light, but reports what it has begun to send.
    """
    spec = {
        "job": job.id,
        "rank": rank,
        "world_size": len(peers),
        "peers": list(peers),
        **job.spec,
    }
    # A job that was stored has its ranks written as text.
    slower = {
        int(number): factor
        for number, factor in (spec.pop("slower", None) or {}).items()
    }
    if (guest := guest_of(job.spec)) is not None:
        del spec[spec["workload"]]
        # Its own connections are beside those of the guest.
        port = holder_port(spec.get("port", MASTER_PORT))
        spec |= {"workload": "hold", "port": port, "deadline_s": guest["deadline_s"]}
    if spec.pop("graph", None) is not None:
        spec["slower"] = slower.get(rank, 1.0)
    elif rank in slower:
        spec["compute_s"] = slower[rank] * spec["compute_s"]
    if job.iteration:
        spec["resume"] = job.iteration
    if standing:
        spec["posted"] = True
    elif flow_socket is not None:
        spec["onic"] = flow_socket
    linktest = job.spec.get("linktest")
    if linktest is not None:
        spec["linktest"] = {
            **linktest,
            "to": linktest_targets(job.spec, len(peers))[rank],
        }
    return spec
