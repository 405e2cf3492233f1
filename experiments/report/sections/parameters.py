"""The parameters and where they come from, the scales, and the file as run."""

from __future__ import annotations

from dataclasses import replace

from ringlight.experiments.language.spec import ParameterSpec
from ringlight.experiments.report.page import folded, table_of, tag, text
from ringlight.experiments.report.view import Draw, View
from ringlight.fabric.units import format_size, format_time

ORDER = 95
TITLE = "Parameters and where they come from"
FOLDED = True
#: A parameter's name, and what the file says of it.
Named = tuple[str, ParameterSpec]


def render(view: View, draw: Draw) -> str:
    shown = table_of(
        view.experiment.spec.parameters.items(),
        [
            ("name", lambda named: f"<code>{text(named[0])}</code>"),
            ("value", lambda named: _written(named[1].value)),
            ("source", _source),
            ("why", lambda named: text(named[1].why)),
        ],
        9,
    )
    written = folded("The experiment as run", f"<pre>{text(view.experiment.text)}</pre>")
    return f"{_scale(view)}{shown}{written}"


def _scale(view: View) -> str:
    jobs = [job for plan in view.experiment.plans for job in plan.jobs]
    loops = {job.training and replace(job.training, seed=0) for job in jobs}
    one = ""
    if len(loops) == 1 and (loop := loops.pop()) is not None:
        one = f" So one iteration computes for {format_time(loop.compute_s)} and all-reduces "
        one += f"{format_size(loop.gradient_bytes)}."
    return (
        f"<p>As emulated with D = {view.scale.time:g} and S = {view.scale.payload:g}: rates are divided by "
        f"D·S, times multiplied by D, gradients divided by S.{one}</p>"
    )


def _source(named: Named) -> str:
    _, entry = named
    fitted = tag(f"fitted to {', '.join(map(text, entry.fitted_to))}") if entry.fitted_to else ""
    return f"{tag(entry.source)} {fitted}"


def _written(value: object) -> str:
    """A list item by item."""
    if not isinstance(value, list | tuple):
        return text(value)
    return "<br>".join(text(" ".join(map(str, v)) if isinstance(v, list | tuple) else v) for v in value)
