"""Measures how soon Slurm has a lab's light, and how soon a job leaves a lost GPU. Needs root, and Slurm.

It brings up the six GPUs of the bundled scenario with a Slurm cluster, configured as ``up --slurm`` does. Slurm
has the light when the follower has read it back from slurmctld and has reported that to the controller: the
event ``slurm``. Jobs write when they start.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from itertools import cycle
from pathlib import Path
from typing import Any

from benchmarks.harness import need_root, show, spread, tell
from benchmarks.rest_latency import Listener
from tests.extensions.slurm.slurm_lab import HOME, SlurmLab, slurm_lab

#: Bars: light to Slurm, milliseconds; light to a pending job, and lost GPU to its job on a spare, seconds.
LIGHT_MS, PENDING_S, SPARE_S = 50.0, 2.0, 8.0
#: g2 and g3 with their places exchanged.
SWAPPED = HOME | {"g2": "tor1:1", "g3": "tor0:3"}


def light(rounds: int = 20) -> dict[str, Any]:
    """From the light's change to Slurm's topology, and to a job that waited for a switch.

    ``rounds``: changes of each kind.
    """
    need_root()
    with slurm_lab("follow") as lab, tempfile.TemporaryDirectory() as folder:
        listener = Listener(str(lab.api.base_url))
        placements = cycle((SWAPPED, HOME))
        tell(f"{rounds} swaps of two GPUs")
        had = [_until_slurm_has(lab, listener, next(placements)) for _ in range(rounds)]
        tell(f"{rounds} jobs that wait for a switch")
        starts = [
            _pending(lab, listener, Path(folder, "starts")) for _ in range(rounds)
        ]
    return _judged(
        ("light changed, Slurm has it", "ms", 1e3, had, LIGHT_MS),
        ("light changed, pending job starts", "s", 1.0, starts, PENDING_S),
    )


def lost(rounds: int = 5) -> dict[str, Any]:
    """From the loss of a GPU to its drained node, and to its job on a spare, where light follows Slurm.

    ``rounds``: GPUs that are lost, one after another.
    """
    need_root()
    with slurm_lab("lead") as lab, tempfile.TemporaryDirectory() as folder:
        listener = Listener(str(lab.api.base_url))
        times = []
        for number in range(rounds):
            tell(f"lost GPU {number + 1} of {rounds}")
            times.append(_lost(lab, listener, Path(folder, f"starts-{number}")))
    drained, spare = zip(*times, strict=True)
    return _judged(
        ("GPU lost, node drained", "s", 1.0, drained, None),
        ("GPU lost, job runs on a spare", "s", 1.0, spare, SPARE_S),
    )


PARTS = (light, lost)


def _judged(*rows: tuple[str, str, float, Any, float | None]) -> dict[str, Any]:
    """Return the figures of rows of a name, a unit, its factor, times in seconds and a limit."""
    found: dict[str, Any] = {}
    missed = []
    for name, unit, scale, times, limit in rows:
        found[name] = {**spread(times, f"_{unit}", scale), f"limit_{unit}": limit}
        worst = found[name][f"max_{unit}"]
        if limit is not None and worst > limit:
            missed.append(f"{name}: {worst:g} {unit}, limit {limit:g} {unit}")
    heads = ("", "median", "most", "limit")
    show(heads, [_cells(name, unit, found[name]) for name, unit, *_ in rows])
    return {**found, "missed": missed}


def _cells(name: str, unit: str, figures: dict[str, Any]) -> list[str]:
    values = [figures[f"{key}_{unit}"] for key in ("median", "max", "limit")]
    return [name, *("" if value is None else f"{value:g} {unit}" for value in values)]


def _lit_at(listener: Listener, generation: int) -> float:
    """Return when the last circuit of a change was lit, CLOCK_MONOTONIC seconds."""
    _, event = listener.wait(
        lambda e: e["event"] == "circuits" and e["generation"] == generation
    )
    added = [
        xc["t_lit"] for change in event["changes"].values() for xc in change["add"]
    ]
    return float(max(added))


def _until_slurm_has(
    lab: SlurmLab, listener: Listener, circuits: dict[str, str]
) -> float:
    """Light circuits. Return the time from the last light to Slurm's topology, seconds."""
    generation = lab.light(circuits)
    lit = _lit_at(listener, generation)
    _, event = listener.wait(
        lambda e: e["event"] == "slurm" and e["generation"] == generation
    )
    leaf = lab.leaves()["tor0"]
    if leaf != ("g[0-2]" if circuits == HOME else "g[0-1,3]"):
        raise SystemExit(f"Slurm has {leaf} at tor0")
    time.sleep(0.3)
    return float(event["t"]) - lit


def _start_of(lab: SlurmLab, file: Path, number: int) -> float:
    """Return when the job that writes into a file started for the ``number``-th time, CLOCK_MONOTONIC."""
    lines: list[str] = []

    def has_started() -> bool:
        lines[:] = file.read_text().split() if file.exists() else []
        return len(lines) >= number

    lab.until(has_started, "the job's start")
    return float(lines[number - 1]) - time.time() + time.monotonic()


def _script(file: Path) -> str:
    return f"date +%s.%N >> {file}; exec sleep 300"


def _pending(lab: SlurmLab, listener: Listener, file: Path) -> float:
    """Return the time from light to the start of a job of three nodes that waited for it, seconds."""
    lab.light(HOME)
    # Slurm loses answers to commands that come while it reads a topology, and sbatch then submits twice.
    time.sleep(0.3)
    file.unlink(missing_ok=True)
    busy = [lab.submit("sleep 300", f"--nodelist={gpu}") for gpu in ("g0", "g4")]
    for job in busy:
        lab.until(lambda job=job: lab.job(job)[0] == "RUNNING", "a busy node")  # type: ignore[misc]
    waiting = lab.submit(_script(file), "-N3", "--switches=1")
    time.sleep(1.0)
    if (state := lab.job(waiting)[0]) != "PENDING":
        raise SystemExit(f"the job that needs one switch is {state}")
    generation = lab.light(HOME | {"g3": "tor0:4"})
    lit = _lit_at(listener, generation)
    started = _start_of(lab, file, 1)
    lab.cancel_all()
    return started - lit


def _lost(lab: SlurmLab, listener: Listener, file: Path) -> tuple[float, float]:
    """Return the times from the loss of a GPU to its node's drain and to its job's second start, seconds."""
    job = lab.submit(_script(file), "-N2")
    _start_of(lab, file, 1)
    gpu = lab.job(job)[1][0]
    asked = time.monotonic()
    lab.fault("lose", f"gpu {gpu}")
    _, event = listener.wait(_drains(gpu, asked))
    again = _start_of(lab, file, 2)
    if gpu in (nodes := lab.job(job)[1]):
        raise SystemExit(f"the job runs on {nodes}, of which {gpu} is lost")
    lab.fault("restore", f"gpu {gpu}")
    lab.cancel_all()
    lab.until(lambda: set(lab.states().values()) == {"IDLE"}, "idle nodes")
    return float(event["t"]) - asked, again - asked


def _drains(gpu: str, since: float) -> Callable[[dict[str, Any]], bool]:
    def is_it(event: dict[str, Any]) -> bool:
        is_new = event["event"] == "slurm" and event["t"] > since
        return is_new and gpu in event["drained"]

    return is_it
