"""What commands print of an experiment and of its result."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import typer

from experiments.analysis.prediction import expected_s
from experiments.analysis.rows import Row, from_json, where
from experiments.backends.emulation.backend import EmulationBackend
from experiments.backends.protocol import Backend
from experiments.backends.simulation.backend import SimulationBackend
from experiments.cli.common import fabric_document, fabric_lines, table
from experiments.language.expand import Experiment
from experiments.language.plan import Setting
from fabric.frames import describe
from fabric.units import format_size, format_time


def check_document(experiment: Experiment) -> dict[str, Any]:
    """What a sound file describes, as JSON."""
    backends: Sequence[Backend] = (EmulationBackend(), SimulationBackend())
    arms: dict[str, Any] = {}
    for plan in experiment.plans:
        if plan.arm in arms:
            arms[plan.arm]["runs"] += 1
            continue
        expected = expected_s(plan)
        arms[plan.arm] = {
            "title": plan.title,
            "fabric": plan.setting.name,
            "runs": 1,
            "refused": {
                backend.name: why for backend in backends if (why := backend.refuses(plan)) is not None
            },
            "events": [
                {"name": event.name, "do": event.do, "target": str(event.target or "")}
                for event in plan.events
            ],
            "jobs": {
                job.name: {
                    "ranks": list(job.ranks) or job.gpus,
                    "collective": job.collective,
                    "iterations": job.iterations,
                    "compute_s": job.compute_s,
                    "gradient_bytes": job.gradient_bytes,
                    "expected_s": expected.get(job.name),
                }
                for job in plan.jobs
            },
        }
    fabrics = {
        name: {**fabric_document(setting.fabric), "notes": _notes(experiment, setting)}
        for name, setting in settings_of(experiment).items()
    }
    return {
        "name": experiment.spec.name,
        "file": experiment.path,
        "runs": len(experiment.plans),
        "fabrics": fabrics,
        "arms": arms,
    }


def settings_of(experiment: Experiment) -> dict[str, Setting]:
    """The first setting of each fabric, by its name."""
    found: dict[str, Setting] = {}
    for plan in experiment.plans:
        found.setdefault(plan.setting.name, plan.setting)
    return found


def _notes(experiment: Experiment, setting: Setting) -> list[str]:
    from fabric.schema import FabricSpec

    known = {key: value for key, value in setting.section.items() if key in FabricSpec.model_fields}
    spec = FabricSpec.model_validate(known)
    return [*fabric_lines(setting.name, spec, setting.fabric), *describe(setting.fabric, setting.frames)]


def show_check(found: Mapping[str, Any]) -> None:
    """The same for a person."""
    typer.echo(
        f"{found['file']}: sound. {found['runs']} runs of {len(found['arms'])} arms on "
        f"{len(found['fabrics'])} fabrics."
    )
    rows = []
    for name, arm in found["arms"].items():
        for number, (job, entry) in enumerate(arm["jobs"].items()):
            ranks = entry["ranks"]
            rows.append(
                [
                    name if not number else "",
                    arm["fabric"] if not number else "",
                    str(arm["runs"]) if not number else "",
                    job,
                    f"{ranks} GPUs" if isinstance(ranks, int) else _short(ranks),
                    entry["collective"],
                    str(entry["iterations"]),
                    format_time(entry["compute_s"]),
                    format_size(entry["gradient_bytes"]),
                    "" if entry["expected_s"] is None else f"{entry['expected_s']:.1f} s",
                ]
            )
    head = [
        "arm",
        "fabric",
        "runs",
        "job",
        "ranks",
        "collective",
        "iterations",
        "compute",
        "gradient",
        "model",
    ]
    table(head, rows)
    for name, arm in found["arms"].items():
        for event in arm["events"]:
            typer.echo(f"{name}: {event['name']}: {event['do']} {event['target']}".rstrip())
        for backend, why in arm["refused"].items():
            typer.echo(f"{name}: not by the {backend}: {why}")
    for fabric in found["fabrics"].values():
        for line in fabric["notes"]:
            typer.echo(line)


def _short(ranks: Sequence[str]) -> str:
    return " ".join(ranks) if len(ranks) <= 8 else f"{ranks[0]} … {ranks[-1]} ({len(ranks)})"


#: Of each job, in this order: metric, head of its column, how a value is written.
_OF_JOBS: tuple[tuple[str, str, Callable[[Any], str]], ...] = (
    ("queueing_delay", "queued", lambda v: f"{v:.2f} s"),
    ("jct", "JCT", lambda v: f"{v:.2f} s"),
    ("iteration", "iteration", format_time),
    ("allreduce", "all-reduce", format_time),
    ("gpu_utilisation", "GPU use", lambda v: f"{100 * v:.0f} %"),
    ("jct_predicted", "model", lambda v: f"{v:.2f} s"),
    ("parameters_identical", "exact", lambda v: "yes" if v else "NO"),
)
#: More arms or points than this are not printed; they are in the report and in rows.csv.
_MOST_LINES = 40


def show_result(result: Mapping[str, Any]) -> None:
    """Jobs, comparisons and the verdict, for a person."""
    rows = from_json(result["rows"])
    _show_jobs(rows)
    _show_comparisons(rows)
    for entry in result["not_run"]:
        typer.echo(f"Left out: arm {entry['arm']}: {entry['why']}")
    for entry in result["failed"]:
        typer.echo(f"Failed: {entry}")
    if not result["complete"]:
        typer.echo("This experiment is not complete: some of its runs are missing.")
    if result["backend"] == "simulation":
        typer.echo("Simulated: no number here was measured, and no testbed was built.")
        return
    fidelity = result["fidelity"]
    for entry in fidelity["repeated"]:
        typer.echo(
            f"Made once more, as others had the processors: {entry['name']} ({entry['counts']} counts)"
        )
    if fidelity["verdict"] == "bad":
        typer.echo("Do not believe these figures: the emulation did not hold its settings.")
    typer.echo(f"Fidelity: {fidelity['verdict']}" + "".join(f"\n  {r['text']}" for r in fidelity["reasons"]))


def _show_jobs(rows: Sequence[Row]) -> None:
    own = [row for row in rows if row.repeat is None and row.subject.startswith("job ")]
    keys = list(dict.fromkeys((row.arm, tuple(row.point.items()), row.subject) for row in own))
    shown = [m for m in _OF_JOBS if any(row.metric == m[0] and row.value is not None for row in own)]
    lines = []
    for arm, point, subject in keys[:_MOST_LINES]:
        mine = [r for r in own if (r.arm, tuple(r.point.items()), r.subject) == (arm, point, subject)]
        values = {row.metric: row.value for row in mine if row.label != "published"}
        at = ", ".join(f"{path}={value}" for path, value in point)
        cells = ["" if values.get(m) is None else written(values[m]) for m, _, written in shown]
        lines.append([arm, at, subject.removeprefix("job "), *cells])
    if lines:
        table(["arm", "point", "job", *(head for _, head, _ in shown)], lines, numeric=3)
    if len(keys) > _MOST_LINES:
        typer.echo(f"… and {len(keys) - _MOST_LINES} more, in rows.csv and in the report.")


def _show_comparisons(rows: Sequence[Row]) -> None:
    found = [
        row
        for row in where(rows, repeat=None)
        if row.metric.endswith(("_ratio", "_reduction")) and not row.metric.startswith("gpu_utilisation.")
    ]
    lines = [
        [
            row.arm,
            row.subject,
            ", ".join(f"{path}={value}" for path, value in row.point.items()),
            row.metric,
            f"{row.value:.4f}" if row.unit == "1" else f"{row.value:.1f} {row.unit}",
            "" if row.spread is None else f"± {row.spread:.3g}",
            row.label if row.label != "published" else f"{row.label}, {row.standing}",
        ]
        for row in found[:_MOST_LINES]
        if isinstance(row.value, int | float)
    ]
    if lines:
        table(["arm", "of", "point", "metric", "value", "95 %", "known how"], lines, numeric=4)
