"""How far simulated all-reduces are from emulated ones, in every bundled scenario and in cases. Needs root.

Each file is cross-checked in workers without containers, with few iterations where none of its events needs
more. A run is held against the simulation of it whose workers are ready when they were in the run, as in its
verdict; a run without one against the prediction. What differs by more than ``LIMIT_PERCENT`` must be named
with its cause, in a run that does not call itself good; else it is ``missed``.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.harness import ROOT, need_root, show, tell
from ringlight.experiments.analysis.explanations import cause_of, signed
from ringlight.experiments.backends.emulation.backend import EmulationBackend
from ringlight.experiments.backends.protocol import BackendError
from ringlight.experiments.backends.simulation.backend import SimulationBackend
from ringlight.experiments.language.text import ScenarioError, parse_yaml, read_text
from ringlight.experiments.record.writing import write_whole
from ringlight.experiments.runner.command import load_checked
from ringlight.experiments.runner.progress import Reporter
from ringlight.extensions.crosscheck.command import run_crosscheck

LIMIT_PERCENT = 5.0
CASES = ROOT / "tests" / "data" / "agreement"
#: Their size, or a simulation of hours, is what they are about.
LARGE = ("two_hundred_fifty_six",)
BEGIN, END = "<!-- agreement -->\n", "<!-- end of agreement -->\n"
HEADS = (
    "scenario",
    "jobs",
    "largest all-reduce difference",
    "arm, job",
    "verdict",
    "cause",
)


def files() -> list[Path]:
    """Return every bundled scenario but the largest, and the cases."""
    scenarios = ROOT / "scenarios"
    found = [
        *scenarios.glob("*.yaml"),
        *scenarios.glob("examples/*.yaml"),
        *CASES.glob("*.yaml"),
    ]
    return sorted(path for path in found if path.stem not in LARGE)


def has_more(part: Any, iterations: int) -> bool:
    """Whether a job in a part of a file has more iterations, or as many as a parameter says."""
    if isinstance(part, list):
        return any(has_more(each, iterations) for each in part)
    if not isinstance(part, dict):
        return False
    own = part.get("iterations", 0)
    longer = "samples" in part or not isinstance(own, int) or own > iterations
    return longer or any(has_more(each, iterations) for each in part.values())


def checked(path: Path, iterations: int, runtime: str, parent: Path) -> dict[str, Any]:
    """Cross-check a file; a row of the table.

    ``left_out``: why it cannot be emulated; ``failed``: why its run did not come to an end.
    """
    row: dict[str, Any] = {"scenario": str(path.relative_to(ROOT))}
    why = ""
    for shortened in (
        (iterations, None)
        if has_more(parse_yaml(read_text(path), str(path)), iterations)
        else (None,)
    ):
        try:
            _, found = run_crosscheck(
                load_checked(path, auto=True),
                EmulationBackend(runtime),
                SimulationBackend(),
                parent,
                Reporter(),
                iterations=shortened,
                limit_percent=LIMIT_PERCENT,
            )
        except BackendError as error:
            return {**row, "failed": str(error), "named": False}
        except ScenarioError as error:
            why = str(error)
        else:
            result = json.loads(
                (Path(found["emulated"]["folder"]) / "result.json").read_text()
            )
            return {
                **row,
                "iterations": shortened,
                **worst_of(found, result["fidelity"]),
            }
    return {**row, "left_out": why}


@dataclass(frozen=True)
class Difference:
    """How far the simulated all-reduce of a job is from the emulated one, and what the run says of that."""

    run: str
    job: str
    percent: float
    cause: str | None

    @property
    def beyond(self) -> bool:
        return abs(self.percent) > LIMIT_PERCENT


def differences(
    found: Mapping[str, Any], fidelity: Mapping[str, Any]
) -> Iterator[Difference]:
    """Yield that of each job: by the run's own comparison, else by the cross-check ``found``."""
    causes = {
        (reason["run"], reason["job"]): reason["cause"]
        for reason in fidelity["reasons"]
        if reason["code"] == "unlike_simulation"
    }
    simulated = fidelity["simulated"]
    for run, jobs in simulated.items():
        for job, figures in jobs.items():
            # A workload's iteration has no all-reduce of its own.
            figure = "allreduce_s" if "allreduce_s" in figures else "iteration_s"
            percent = figures[figure]["difference_percent"]
            yield Difference(run, job, percent, causes.get((run, job)))
    for entry in found["entries"]:
        if entry["run"] not in simulated:
            percent = entry["allreduce_s"]["difference_percent"]
            yield Difference(entry["run"], entry["job"], percent, cause_of(entry))


def worst_of(found: Mapping[str, Any], fidelity: Mapping[str, Any]) -> dict[str, Any]:
    """The job whose all-reduce is farthest off, and whether that is named."""
    every = list(differences(found, fidelity))
    worst = max(every, key=lambda one: abs(one.percent))
    beyond = [one for one in every if one.beyond]
    verdict = fidelity["verdict"]
    return {
        "jobs": len(every),
        "difference_percent": round(worst.percent, 2),
        "of": f"{worst.run}, {worst.job}",
        "verdict": verdict,
        "cause": worst.cause if worst.beyond else None,
        "beyond": len(beyond),
        "named": not beyond or (verdict != "good" and all(one.cause for one in beyond)),
    }


def said_of(row: Mapping[str, Any]) -> str:
    """What a row says in a line."""
    if "jobs" in row:
        return f"{signed(row['difference_percent'])} % ({row['of']}, {row['verdict']})"
    return str(row.get("failed") or row["left_out"])


def table_of(rows: Iterable[Mapping[str, Any]]) -> list[list[str]]:
    """Cells of the rows that could be emulated."""
    return [
        [
            f"`{row['scenario']}`",
            str(row["jobs"]),
            f"{signed(row['difference_percent'])} %",
            row["of"],
            row["verdict"],
            row["cause"] or ("–" if not row["beyond"] else "unexplained"),
        ]
        for row in rows
        if "jobs" in row
    ]


def written(page: str, rows: Iterable[Mapping[str, Any]], command: str) -> str:
    """Return the page with its block made anew. Raises ValueError where it has none."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"there is no {BEGIN.strip()} … {END.strip()}")
    lines = [HEADS, ["---"] * len(HEADS), *table_of(rows)]
    table = "".join(f"| {' | '.join(cells)} |\n" for cells in lines)
    return f"{before}{begin}{table}\nMade by `{command}`.\n{end}{after}"


def agreement(
    file: list[Path] = [],
    iterations: int = 4,
    runtime: str = "namespace",
    page: Path | None = None,
    rows_in: Path | None = None,
) -> dict[str, Any]:
    """``file``: only these; ``page``: write the table into this one, between its marks; ``rows_in``: a JSON
    file with rows of earlier runs of this benchmark, to which those of this run are added, and from which the
    table is then made."""
    need_root()
    kept = (
        json.loads(rows_in.read_text())
        if rows_in is not None and rows_in.exists()
        else {}
    )
    with tempfile.TemporaryDirectory() as folder:
        for path in [one.resolve() for one in file] or files():
            row = checked(path, iterations, runtime, Path(folder))
            tell(f"{row['scenario']}: {said_of(row)}")
            kept[row["scenario"]] = row
            if rows_in is not None:
                write_whole(rows_in, json.dumps(kept, indent=1))
    rows = [kept[name] for name in sorted(kept)]
    show(HEADS, table_of(rows))
    if page is not None:
        write_whole(
            page,
            written(
                page.read_text(),
                rows,
                "python -m benchmarks agreement --page " + str(page),
            ),
        )
    missed = [
        f"{row['scenario']}: {said_of(row)}"
        for row in rows
        if not row.get("named", True)
    ]
    return {"limit_percent": LIMIT_PERCENT, "rows": rows, "missed": missed}


PARTS = (agreement,)
