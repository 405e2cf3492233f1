"""The parameters and where they come from, the scales, and the file as run."""

from __future__ import annotations

from experiments.language.spec import ParameterSpec
from experiments.report.page import table, tag, text
from experiments.report.report import Draw
from experiments.report.view import View
from fabric.units import format_size, format_time

ORDER = 95
NEEDS: tuple[str, ...] = ()


def render(view: View, draw: Draw) -> str:
    named = view.experiment.spec.parameters
    rows = [_row(name, entry) for name, entry in named.items()]
    shown = table(["name", "value", "source", "why"], rows, 9) if rows else ""
    return (
        f"<h2>Parameters and where they come from</h2>{_scale(view)}{shown}"
        f"<details><summary>The experiment as run</summary><pre>{text(view.experiment.text)}</pre></details>"
    )


def _scale(view: View) -> str:
    jobs = [job for plan in view.experiment.plans for job in plan.jobs]
    compute = {job.compute_s for job in jobs}
    gradients = {job.gradient_bytes for job in jobs}
    one = (
        f" So one iteration computes for {format_time(compute.pop())} and all-reduces "
        f"{format_size(gradients.pop())}."
        if len(compute) == len(gradients) == 1
        else ""
    )
    scale = view.scale
    return (
        f"<p>As emulated with D = {scale.time:g} and S = {scale.payload:g}: rates are divided by D·S, times "
        f"multiplied by D, gradients divided by S.{one}</p>"
    )


def _row(name: str, entry: ParameterSpec) -> str:
    fitted = tag(f"fitted to {', '.join(map(text, entry.fitted_to))}") if entry.fitted_to else ""
    return (
        f"<tr><td><code>{text(name)}</code></td><td>{_written(entry.value)}</td>"
        f"<td>{tag(entry.source)} {fitted}</td><td class='wide'>{text(entry.why)}</td></tr>"
    )


def _written(value: object) -> str:
    """A list item by item."""
    if not isinstance(value, list | tuple):
        return text(value)
    return "<br>".join(text(" ".join(map(str, v)) if isinstance(v, list | tuple) else v) for v in value)
