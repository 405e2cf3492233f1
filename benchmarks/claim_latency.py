"""Measures claims at the client: when light must move, and when it is there already. Needs root.

It brings up the six GPUs of the bundled scenario, whose optical switch is dark for 25 to 35 ms when a fibre
moves, and takes the lab down again. Every call has a connection of its own, as that of a scheduler's prolog.

- ``first``: that of a new controller, a claim of two GPUs
- ``one fibre``, ``three fibres``: a claim of two or of four GPUs on both packet switches; with four, an idle
  GPU must give way
- ``there already``: the same claims again
- ``release``: of all these
- ``swap by PUT``: ``PUT /v1/circuits`` with two GPUs changed, for comparison
"""

from __future__ import annotations

import time
from contextlib import closing
from typing import Any, Literal

from benchmarks.harness import ROOT, lab_up, milliseconds, show
from benchmarks.rest_latency import Caller

SCENARIO = ROOT / "scenarios/disaggregation.yaml"
#: Longest median, seconds.
MOVES_S, THERE_S = 0.12, 0.02
FIRST, ONE, THREE, THERE, RELEASE, SWAP = (
    "first",
    "one fibre",
    "three fibres",
    "there already",
    "release",
    "swap by PUT",
)
LIMITS_S = {FIRST: MOVES_S, ONE: MOVES_S, THREE: MOVES_S, THERE: THERE_S}
#: GPUs of the claims, by what they move.
CLAIMS = {ONE: ("g0", "g3"), THREE: ("g0", "g1", "g3", "g4")}


def claim_latency(
    rounds: int = 50, runtime: Literal["docker", "namespace"] = "docker"
) -> dict[str, Any]:
    """``rounds``: claims of each kind."""
    took_s: dict[str, list[float]] = {name: [] for name in (*LIMITS_S, RELEASE, SWAP)}
    with lab_up(SCENARIO, runtime) as lab:
        before: dict[str, list[float]] = {name: [] for name in took_s}
        _round(lab["url"], before)
        took_s[FIRST] = before[ONE][:1]
        for _ in range(rounds):
            _round(lab["url"], took_s)
    figures = {name: milliseconds(times) for name, times in took_s.items()}
    show(
        ("call", "median, ms", "longest, ms"),
        [
            (name, found["median_ms"], found["max_ms"])
            for name, found in figures.items()
        ],
    )
    missed = [
        f"{name}: {figures[name]['median_ms']} ms, not {1e3 * limit_s:g} ms"
        for name, limit_s in LIMITS_S.items()
        if figures[name]["median_ms"] > 1e3 * limit_s
    ]
    return {
        "runtime": runtime,
        "calls": figures,
        "limits_ms": {name: 1e3 * limit_s for name, limit_s in LIMITS_S.items()},
        "missed": missed,
    }


PARTS = (claim_latency,)


def _round(url: str, took_s: dict[str, list[float]]) -> None:
    """Time each call once, and leave the light as it was."""
    _, before = _call(url, "GET", "/v1/circuits")
    circuits = [circuit["ends"] for circuit in before["circuits"]]
    for name, gpus in CLAIMS.items():
        body = {"name": "bench", "gpus": gpus}
        for kind, moves in ((name, True), (THERE, False)):
            seconds, claim = _call(url, "POST", "/v1/claims", body)
            if claim["state"] != "ACTIVE" or bool(claim["fibres_moved"]) is not moves:
                raise SystemExit(f"the claim went wrong: {claim}")
            took_s[kind].append(seconds)
            took_s[RELEASE].append(_call(url, "DELETE", "/v1/claims/bench")[0])
        _call(url, "PUT", "/v1/circuits", {"circuits": circuits})
    there = dict(circuits)
    swapped = there | {"g2": there["g3"], "g3": there["g2"]}
    for light in (swapped, there):
        pairs = [list(pair) for pair in light.items()]
        seconds, _ = _call(url, "PUT", "/v1/circuits", {"circuits": pairs})
        took_s[SWAP].append(seconds)


def _call(url: str, method: str, path: str, body: Any = None) -> tuple[float, Any]:
    """Return the seconds that a call took over a connection of its own, and its answer."""
    began = time.perf_counter()
    with closing(Caller(url)) as api:
        answer = api.call(method, path, body)
    return time.perf_counter() - began, answer
