"""The blind test: experiments drawn by chance, all predicted before the first is emulated.

The predictions' hash is printed and kept in the emulated run's folder before its first container starts, so
that nobody, including us, can have looked first. A run that was stopped goes on only if the same code
still predicts the same.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from ringlight.experiments.analysis.differences import FIGURES, Entry
from ringlight.experiments.analysis.explanations import cause_of
from ringlight.experiments.analysis.prediction import ideal_all_reduce_s
from ringlight.experiments.backends.protocol import Backend
from ringlight.experiments.backends.simulation.backend import SimulationBackend
from ringlight.experiments.language.expand import parse
from ringlight.experiments.language.text import ScenarioError
from ringlight.experiments.record.folder import environment_of
from ringlight.experiments.record.runs import Run
from ringlight.experiments.record.writing import write_json, writing
from ringlight.experiments.runner.command import carry_out_experiment
from ringlight.experiments.runner.progress import Reporter
from ringlight.extensions.crosscheck.command import compared, side, write
from ringlight.extensions.crosscheck.drawn import kind_of, scenario_of
from ringlight.extensions.crosscheck.sides import predicted_of

#: Key of the trivial predictor in entries and spreads.
TRIVIAL = "trivial"


def run_blind(
    experiments: int,
    seed: int,
    emulation: Backend,
    simulation: SimulationBackend,
    parent: Path,
    reporter: Reporter,
    *,
    resume: Path | None = None,
    limit_percent: float,
) -> tuple[Path, dict[str, Any]]:
    """Draw, predict, keep the predictions' hash, emulate, compare. Return the folder and crosscheck.json's
    object.

    ``resume``: folder of an emulated run that was interrupted. Raises ScenarioError, also if the predictions
    made now differ from those made then, and BackendError.
    """
    drawn = parse(scenario_of(experiments, seed), f"blind-{seed}.yaml")
    emulation.check_ready()
    done, _ = carry_out_experiment(
        drawn, simulation, parent, suffix="-simulated", reporter=reporter
    )
    simulated = done.path
    predictions = predicted_of(side(simulated))
    sha256 = hashlib.sha256(
        json.dumps(predictions, sort_keys=True).encode()
    ).hexdigest()
    with writing(simulated):
        write_json(
            simulated / "predicted.json", {"sha256": sha256, "predictions": predictions}
        )
    if (
        resume is not None
        and (kept := environment_of(resume).get("predicted_sha256")) != sha256
    ):
        raise ScenarioError(
            f"{resume}: its predictions have SHA-256 {kept}, those made now {sha256}"
        )
    reporter.say(
        f"predicted before anything is emulated: {simulated / 'predicted.json'}, SHA-256 {sha256}"
    )
    done, _ = carry_out_experiment(
        drawn,
        emulation,
        parent,
        resume=resume,
        reporter=reporter,
        facts={"predicted_sha256": sha256},
        again=("crosscheck", "--random", str(experiments), "--seed", str(seed)),
    )
    result = compared(done.path, simulated, limit_percent)
    beside_trivial(result["entries"], side(simulated).runs)
    result["blind"] = {
        "experiments": experiments,
        "seed": seed,
        "predicted_sha256": sha256,
        **spread_of(result["entries"], limit_percent),
    }
    return write(drawn, result, parent), result


def beside_trivial(entries: Sequence[Entry], simulated: Sequence[Run]) -> None:
    """Add the all-reduce of the trivial predictor, bytes over a NIC's rate, to each entry.

    A simulation has to beat this predictor, which is right if nothing is shared, waits or is slow.
    """
    runs = {run.name: run for run in simulated}
    for entry in entries:
        plan, job = runs[entry["run"]].plan, entry["job"]
        trivial_s = ideal_all_reduce_s(
            plan.setting, plan.job(job), runs[entry["run"]].jobs[job].gpus
        )
        emulated_s = entry["allreduce_s"]["emulated"]
        entry["trivial"] = {
            "allreduce_s": trivial_s,
            "difference_percent": 100 * (trivial_s / emulated_s - 1)
            if emulated_s > 0
            else 0.0,
        }


def spread_of(entries: Sequence[Entry], limit_percent: float) -> dict[str, Any]:
    """Return how far predictions were off, by kind of fabric and of ``all``, and the jobs beyond the limit.

    Of each figure, of the differences' sizes in per cent: ``median``, ``p95`` (95 of 100 are as near or
    nearer), ``most`` and ``within``, the part within the limit. ``trivial``: the same for the all-reduces of
    the trivial predictor.
    """
    kinds: dict[str, list[Entry]] = {"all": list(entries)}
    for entry in entries:
        kinds.setdefault(kind_of(entry["arm"]), []).append(entry)
    return {
        "kinds": {
            kind: {
                "jobs": len(entries_of_kind),
                **{
                    f: _spread(
                        (e[f]["difference_percent"] for e in entries_of_kind),
                        limit_percent,
                    )
                    for f in (*FIGURES, TRIVIAL)
                },
            }
            for kind, entries_of_kind in kinds.items()
        },
        "outliers": [
            {
                "run": entry["run"],
                "job": entry["job"],
                "cause": cause_of(entry),
                "explained": cause_of(entry) is not None,
                **{
                    figure: entry[figure]["difference_percent"]
                    for figure in (*FIGURES, TRIVIAL)
                },
            }
            for entry in entries
            if any(
                abs(entry[figure]["difference_percent"]) > limit_percent
                for figure in FIGURES
            )
        ],
    }


def _spread(differences: Iterable[float], limit_percent: float) -> dict[str, float]:
    sizes = sorted(abs(difference) for difference in differences)
    # The least that has 95 of 100 at or below it.
    rank = -(-95 * len(sizes) // 100)
    within = sum(size <= limit_percent for size in sizes) / len(sizes)
    return {
        "median": median(sizes),
        "p95": sizes[rank - 1],
        "most": sizes[-1],
        "within": within,
    }
