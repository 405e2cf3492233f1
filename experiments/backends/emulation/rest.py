"""Send a run's requests to the controller's REST API, and end the run if one is refused."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from ringlight.experiments.backends.protocol import BackendError
from ringlight.experiments.client import Api, ApiError, Unreachable
from ringlight.fabric.parts import canonical
from ringlight.testbed.faults import FaultError
from ringlight.testbed.lab import LabError

#: A worker waits so long for its peers, seconds: on a busy machine the NICs of a job's workers come up one
#: after another, and whoever waits for the job should hear from it which rank is missing.
CONNECT_S = 45.0
#: Seconds from the release call to the common start.
RELEASE_DELAY_S = 0.3
#: What the controller, the fault service and the lab's processes fail by; all else is a fault of the program.
Refusals = (ApiError, Unreachable, FaultError, LabError)

Circuits = Sequence[tuple[str, str]]


@contextmanager
def ending_runs(errors: tuple[type[Exception], ...] = Refusals) -> Iterator[None]:
    """Turn such an error raised in the block into a one-line BackendError, which ends the run."""
    try:
        yield
    except errors as error:
        raise BackendError(str(error)) from None


def set_circuits(api: Api, circuits: Circuits) -> None:
    """Light exactly these circuits and read them back. Raises BackendError where they do not stand."""
    answer = api.put(
        "/v1/circuits",
        {"circuits": [list(pair) for pair in circuits], "dry_run": False},
    )
    # A circuit goes both ways, and the controller tells its ends in an order of its own.
    present = set(map(frozenset, lit_circuits(api)))
    requested = {frozenset(pair): pair for pair in canonical(circuits)}
    if present != requested.keys():
        missing = [
            f"{a}-{b}" for ends, (a, b) in requested.items() if ends not in present
        ]
        problems = answer.get("problems") or [
            f"missing {', '.join(missing) or 'none, but more is lit'}"
        ]
        raise BackendError(f"circuits do not stand as asked: {problems[0]}")


def lit_circuits(api: Api) -> list[tuple[str, str]]:
    return canonical(circuit["ends"] for circuit in api.get("/v1/circuits")["circuits"])
