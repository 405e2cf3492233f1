"""Parts of a report's page that all kinds of run share: its look, tables, and what judges the run."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from experiments.language.spec import PaperSpec, ParameterSpec

if TYPE_CHECKING:
    from experiments.report.drawing import Plot

_STYLE = """
:root { color-scheme: light dark;
  --paper: #fbfbfa; --ink: #1b2129; --quiet: #667080; --rule: #d5d9df; --face: #f0f2f4; --card: #fff;
  --accent: #a8660a; --good: #23744b; --doubtful: #97650a; --bad: #b3292f;
  --sans: "Inter", "Segoe UI", system-ui, -apple-system, "Helvetica Neue", Arial, sans-serif;
  --mono: ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace; }
@media (prefers-color-scheme: dark) { :root {
  --paper: #14171b; --ink: #e8eaed; --quiet: #98a2b0; --rule: #343b45; --face: #20262d; --card: #1a1e24;
  --accent: #e8b04a; --good: #62c495; --doubtful: #e3b04b; --bad: #f07a7f; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink); font: 16px/1.55 var(--sans);
  -webkit-text-size-adjust: 100%; }
main { max-width: 58rem; margin: 0 auto; padding: 3rem 1.4rem 5rem; }
header p.kicker { color: var(--accent); font-size: .8rem; letter-spacing: .09em; text-transform: uppercase;
  font-weight: 600; margin: 0 0 .5rem; }
h1 { font-size: 2.05rem; line-height: 1.16; letter-spacing: -.02em; margin: 0 0 .8rem; text-wrap: balance; }
h2 { font-size: 1.3rem; letter-spacing: -.01em; margin: 3.4rem 0 .5rem; }
h3 { font-size: 1rem; margin: 2rem 0 .4rem; }
p { margin: .5rem 0 .9rem; max-width: 44rem; }
p.lead { font-size: 1.1rem; }
.quiet, small { color: var(--quiet); }
p.quiet { font-size: .85rem; }
.chips { display: flex; flex-wrap: wrap; gap: .4rem; margin: 1rem 0 0; padding: 0; list-style: none;
  font-size: .82rem; }
.chips li { border: 1px solid var(--rule); border-radius: 99px; padding: .12rem .7rem; color: var(--quiet); }
.chips b { color: var(--ink); font-weight: 600; }
.good { color: var(--good) !important; } .doubtful { color: var(--doubtful) !important; }
.bad { color: var(--bad) !important; }
.hero { display: grid; grid-template-columns: repeat(auto-fit, minmax(13rem, 1fr)); gap: .9rem;
  margin: 2rem 0 1rem; }
.hero div { background: var(--card); border: 1px solid var(--rule); border-radius: 12px;
  padding: 1rem 1.15rem; }
.hero dt { font-size: .85rem; color: var(--quiet); margin: 0; }
.hero dd { margin: .1rem 0 0; font-size: 2rem; font-weight: 650; letter-spacing: -.025em;
  font-variant-numeric: tabular-nums; }
.hero dd small { font-size: .95rem; font-weight: 500; letter-spacing: 0; }
.hero p { margin: .15rem 0 0; font-size: .85rem; color: var(--quiet); }
.scroll { overflow-x: auto; margin: .8rem 0 1rem; }
table { border-collapse: collapse; width: 100%; font-size: .92rem; font-variant-numeric: tabular-nums; }
th { text-align: left; font-weight: 600; color: var(--quiet); font-size: .8rem; vertical-align: bottom; }
th, td { padding: .42rem .9rem .42rem 0; border-bottom: 1px solid var(--rule); }
td { vertical-align: top; }
th.n, td.n { text-align: right; white-space: nowrap; }
tr.strong td { font-weight: 650; }
tr.group td { padding-top: 1.1rem; font-weight: 650; border-bottom-color: var(--quiet); }
td.wide { min-width: 20rem; }
figure { margin: 1.2rem 0 1.8rem; }
figure svg { width: 100%; height: auto; display: block; }
figcaption { color: var(--quiet); font-size: .85rem; max-width: 46rem; margin-top: .3rem; }
.verdict { border: 1px solid var(--rule); border-left: 5px solid currentColor; border-radius: 8px;
  background: var(--card); padding: .9rem 1.1rem; margin: 1rem 0; }
.verdict b { font-size: 1.1rem; } .verdict > * { color: var(--ink); } .verdict b { color: inherit; }
.verdict p { margin: .25rem 0 0; } ul { padding-left: 1.15rem; max-width: 45rem; } li { margin: .3rem 0; }
.tag { font-size: .72rem; border: 1px solid var(--rule); border-radius: 5px; padding: .05rem .38rem;
  color: var(--quiet); white-space: nowrap; font-weight: 500; }
code { font: .88em var(--mono); background: var(--face); border-radius: 4px; padding: .1em .32em; }
details { border: 1px solid var(--rule); border-radius: 10px; padding: .55rem .95rem; margin: .8rem 0;
  background: var(--card); }
summary { cursor: pointer; font-weight: 600; font-size: .92rem; }
pre { font: .8rem/1.5 var(--mono); overflow-x: auto; }
footer { margin-top: 4rem; padding-top: 1rem; border-top: 1px solid var(--rule); color: var(--quiet);
  font-size: .85rem; }
@media print { main { padding: 0; } details { display: none; } h2 { break-after: avoid; } }
"""


def page(title: str, parts: Iterable[str]) -> str:
    """The whole page of these parts; empty ones are left out."""
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{text(title)}</title><style>{_STYLE}</style></head>\n<body><main>\n"
        + "\n".join(part for part in parts if part)
        + "\n</main></body></html>\n"
    )


def text(value: object) -> str:
    return html.escape(str(value))


def tag(label: str) -> str:
    return f'<span class="tag">{label}</span>'


def row(cells: Iterable[str], numeric: int, classes: str = "", tag: str = "td") -> str:
    """One table row; from cell ``numeric`` on, cells are right-aligned."""
    done = (f"<{tag}{' class=n' if i >= numeric else ''}>{cell}</{tag}>" for i, cell in enumerate(cells))
    return f"<tr{f' class={classes}' if classes else ''}>{''.join(done)}</tr>"


def table(head: Sequence[str], rows: Sequence[str], numeric: int) -> str:
    return (
        f'<div class="scroll"><table><thead>{row(head, numeric, tag="th")}</thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )


def picture(plot: Plot | None) -> str:
    if plot is None:
        return ""
    return f"<figure>{plot.svg}<figcaption>{text(plot.caption)}</figcaption></figure>"


def number(value: float | None, digits: int = 1, unit: str = "") -> str:
    return "–" if value is None else f"{value:,.{digits}f}{unit}"


def milliseconds(value: float | None) -> str:
    return number(value, 0 if value is None or value >= 10 else 1, " ms")


#: In place of a headline where the emulation did not hold its settings: nothing was found out.
NO_RESULT = "No result: the emulation did not hold its settings"


def hero(cards: Sequence[tuple[str, str, str]]) -> str:
    """Big figures: (what, figure as HTML, remark as HTML)."""
    items = "".join(
        f"<div><dt>{what}</dt><dd>{figure}</dd><p>{remark}</p></div>" for what, figure, remark in cards
    )
    return f'<dl class="hero">{items}</dl>' if cards else ""


def of_paper(paper: PaperSpec | None, part: str) -> str:
    """What the scenario's paper says there, after a space, as HTML; nothing without a paper."""
    said = "" if paper is None else paper.says.get(part, "")
    return f" {text(said)}" if said else ""


def listed_limits(points: Iterable[str], paper: PaperSpec | None) -> str:
    """What cannot be claimed: HTML texts, then what the scenario says cannot be claimed about its paper."""
    about = {} if paper is None else paper.limits
    listed = [*points, *(f"<b>{text(claim)}.</b> {text(why)}" for claim, why in about.items())]
    return f"<h2>What cannot be claimed</h2><ul>{''.join(f'<li>{point}</li>' for point in listed)}</ul>"


def assumptions(simulation: Mapping[str, Any]) -> str:
    """The table of what a simulation takes for granted."""
    rows = [
        f"<tr><td>{text(entry['what'])}</td><td style='white-space:nowrap'>{text(entry['value'])}</td>"
        f"<td class='wide'>{text(entry['why'])}</td></tr>"
        for entry in simulation["assumptions"]
    ]
    return table(["assumption", "value", "why"], rows, 9)


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
