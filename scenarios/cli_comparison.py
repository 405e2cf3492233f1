"""What ``check``, ``run`` and ``report`` print of a comparison."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import typer

from experiments.cli.common import fabric_document, fabric_lines, show_json, table
from scenarios.comparison import Comparison, job_settings


def show_check(comparison: Comparison, as_json: bool) -> None:
    """What a sound scenario of this kind describes."""
    ranks = comparison.world_size
    requests = {name: job_settings(comparison, name) for name in comparison.settings}
    iterations = comparison.iterations(ranks)
    expected = {name: comparison.expected_s(name, request) for name, request in requests.items()}
    if as_json:
        fabrics = {
            name: {
                **fabric_document(setting.fabric),
                "collective": comparison.collective(name),
                "steps": comparison.steps(name).steps,
                "light_use": None if (use := comparison.light_use(name)) is None else asdict(use),
                "predicted_completion_s": expected[name],
            }
            for name, setting in comparison.settings.items()
        }
        show_json(
            {
                "name": comparison.spec.name,
                "kind": "comparison",
                "compute_s": comparison.compute_s,
                "gradient_bytes": comparison.gradient_bytes,
                "iterations": iterations,
                "fabrics": fabrics,
            }
        )
        return
    from fabric.frames import describe
    from fabric.units import format_size, format_time

    typer.echo(
        f"{comparison.path}: sound. {ranks} GPUs on each of {len(comparison.settings)} fabrics; "
        f"an iteration computes {format_time(comparison.compute_s)} and all-reduces "
        f"{format_size(comparison.gradient_bytes)}."
    )
    rows = [
        [
            name,
            comparison.spec.fabrics[name].title,
            len(setting.fabric.packet_switches) or "",
            len(setting.fabric.optical_switches) or "",
            comparison.collective(name),
            comparison.steps(name).steps,
            iterations,
            f"{expected[name]:.1f} s",
        ]
        for name, setting in comparison.settings.items()
    ]
    head = ["fabric", "", "packet switches", "WSSs", "all-reduce", "steps", "iterations"]
    table([*head, "by model, without set-up"], rows, numeric=2)
    for name, setting in comparison.settings.items():
        if (use := comparison.light_use(name)) is not None:
            typer.echo(f"Light on {name}: {use}")
        for line in describe(setting.fabric, setting.frames):
            typer.echo(line)
    for name, setting in comparison.settings.items():
        for line in fabric_lines(f"fabrics.{name}", comparison.spec.fabrics[name], setting.fabric):
            typer.echo(line)
    for name, trouble in comparison.spec.trouble.items():
        typer.echo(f"Trouble {name}, on {trouble.fabric}: {trouble.title}")
    sweep = comparison.spec.sweep
    if sweep is not None:
        points = len(sweep.control_delay) * len(sweep.tuning) * len(sweep.gradient)
        typer.echo(f"Sweep on {sweep.fabric}: {points} points of {sweep.iterations} all-reduces")


def show_comparison(result: dict[str, Any]) -> None:
    """The table of a finished comparison."""
    compared = result["comparison"]
    ratios = compared["ratios"] if compared else {}
    published = ((compared or {}).get("published") or {}).get("ratios", {})
    own = len({found["collective"] for found in result["fabrics"].values()}) > 1
    rows = []
    for name, found in result["fabrics"].items():
        ratio = ratios.get(name)
        rows.append(
            [
                f"{name}: {found['title']}",
                *([found["collective"], found["steps"]] if own else []),
                f"{found['completion_s']:.2f} s",
                f"{1000 * found['iteration_s']:.1f} ms",
                f"{1000 * found['allreduce_s']:.1f} ms",
                f"{ratio['training_time']:.4f}" if ratio else "",
                f"{ratio['predicted']['training_time']:.4f}" if ratio else "",
                f"{published[name]:.4f}" if name in published else "",
                "" if found["accuracy"] is None else f"{100 * found['accuracy']:.2f} %",
                {True: "yes", False: "NO", None: ""}[found["parameters_identical"]],
            ]
        )
    head = [
        "fabric",
        *(["all-reduce by", "steps"] if own else []),
        "training",
        "iteration",
        "all-reduce",
        "ratio",
        "model",
        "paper",
        "accuracy",
        "identical",
    ]
    table(head, rows, numeric=2 if own else 1)
    for name, found in result["fabrics"].items():
        light, flows, ring = found["light"], found["flows"], found["ring"]
        if light and flows:
            setup, payload = flows["setup_ms"], found["payload"]
            lost = (
                f"; {light['collisions']} collisions, {light['receiver_overlaps']} receiver overlaps, "
                f"{payload['lost_bytes']} bytes lost, {payload['retransmitted_segments']} segments sent again"
                if payload
                else f"; {light['receiver_overlaps']} receiver overlaps"
            )
            typer.echo(
                f"{name}: {flows['count']} flows, set-up {setup['p50']:.2f} ms (p99 {setup['p99']:.2f}){lost}"
            )
        if ring:
            spread = ring["set_up_ms"]
            told = f", {spread['p50']:.2f} ms each (p99 {spread['p99']:.2f})" if spread else ""
            typer.echo(
                f"{name}: {ring['wavelengths_used']} of {ring['wavelengths']} wavelengths, light set "
                f"{ring['set_ups_per_allreduce']} times in an all-reduce{told}"
            )
    for found in result["trouble"].values():
        identical = "identical" if found["parameters_identical"] else "NOT identical"
        spans = found["iteration_s"]
        pace = ", ".join(f"{when} {1000 * s:.0f} ms" for when, s in spans.items() if s is not None)
        light = found["light"] or {}
        typer.echo(
            f"{found['title']}: iteration {pace.replace('_', ' ')}; parameters {identical}, "
            f"{light.get('collisions', 0)} collisions"
        )
    if result["sweep"]:
        for found in result["sweep"]["break_even"]:
            typer.echo(break_even_line(found, result["sweep"]["tolerance"]))
    if compared and compared["limit"] is not None:
        for name, ratio in ratios.items():
            kept = "within" if ratio["within_limit"] else "ABOVE"
            typer.echo(f"{name}: {ratio['training_time']:.4f} is {kept} the limit of {compared['limit']:g}")


def break_even_line(found: Mapping[str, Any], tolerance: float) -> str:
    """Where one size of gradient stops paying, by measurement and by the model."""
    beyond = found["setup_ms"] < found["least_measured_setup_ms"]
    return (
        f"{found['real_gradient_bytes'] / 1e6:g} MB: an all-reduce takes {tolerance:g} times as long as "
        f"without set-ups at a set-up of {found['stands_for_ms']:.3f} ms{', extrapolated' if beyond else ''} "
        f"(model {found['analytic_stands_for_ms']:.3f} ms, real time)"
    )
