"""Parts of the study's page."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from experiments.language.spec import PaperSpec, ParameterSpec
from experiments.report.page import table, tag, text


def number(value: float | None, digits: int = 1, unit: str = "") -> str:
    return "–" if value is None else f"{value:,.{digits}f}{unit}"


def of_paper(paper: PaperSpec | None, part: str) -> str:
    """What the scenario's paper says there, after a space, as HTML; nothing without a paper."""
    said = "" if paper is None else paper.says.get(part, "")
    return f" {text(said)}" if said else ""


def listed_limits(points: Iterable[str], paper: PaperSpec | None) -> str:
    """What cannot be claimed: HTML texts, then what the scenario says cannot be claimed about its paper."""
    about = {} if paper is None else paper.limits
    listed = [*points, *(f"<b>{text(claim)}.</b> {text(why)}" for claim, why in about.items())]
    return f"<h2>What cannot be claimed</h2><ul>{''.join(f'<li>{point}</li>' for point in listed)}</ul>"


def _written(value: object) -> str:
    """A parameter's value; a list item by item."""
    if not isinstance(value, list | tuple):
        return text(value)
    return "<br>".join(text(" ".join(map(str, v)) if isinstance(v, list | tuple) else v) for v in value)


def parameters(named: Mapping[str, ParameterSpec], written: str, remark: str = "") -> str:
    """A scenario's parameters, and its file as ``written``, folded away; ``remark``: HTML before them."""
    rows = [
        "<tr>"
        f"<td><code>{text(name)}</code></td><td style='white-space:nowrap'>{_written(entry.value)}</td>"
        f"<td>{tag(entry.source)}{' ' + tag('fitted') if entry.fitted_to else ''}</td>"
        f"<td class='wide'>{text(entry.why)}</td></tr>"
        for name, entry in named.items()
    ]
    return (
        f"<h2>Parameters and where they come from</h2>{remark}"
        f"{table(['name', 'value', 'source', 'why'], rows, 9)}"
        f"<details><summary>The scenario as run</summary><pre>{text(written)}</pre></details>"
    )


def environment_footer(environment: Mapping[str, Any], paper: PaperSpec | None) -> str:
    after = "" if paper is None else f"After {text(paper.citation)}. "
    rows = []
    for key, value in environment.items():
        if isinstance(value, Mapping):
            rows += [f"<tr><td>{text(key)}.{text(k)}</td><td>{text(v)}</td></tr>" for k, v in value.items()]
        else:
            rows.append(f"<tr><td>{text(key)}</td><td>{text(value)}</td></tr>")
    return (
        f"<footer><details><summary>Environment</summary>{table(['what', 'value'], rows, 9)}</details>"
        f"<p>{after}Made by Ringlight from the files of this run folder; "
        "<code>result.json</code> has every number, labelled measured, simulated, analytic, published or "
        "setting.</p>"
        "</footer>"
    )
