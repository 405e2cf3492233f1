"""Parts of a report's page that all kinds of run share: its look, tables, and what judges the run."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fabric.units import format_rate, format_size, format_time
from scenarios.records import SIMULATED
from scenarios.schema import Document, PaperSpec, ParameterSpec

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


def how_known(result: Mapping[str, Any]) -> str:
    """What a run's own figures are: measured or simulated."""
    return "simulated" if result["runtime"] == SIMULATED else "measured"


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


def lower_first(text: str) -> str:
    return text[:1].lower() + text[1:]


def number(value: float | None, digits: int = 1, unit: str = "") -> str:
    return "–" if value is None else f"{value:,.{digits}f}{unit}"


def milliseconds(value: float | None) -> str:
    return number(value, 0 if value is None or value >= 10 else 1, " ms")


#: In place of a headline where the emulation did not hold its settings: nothing was found out.
NO_RESULT = "No result: the emulation did not hold its settings"


def header(
    scenario: Document, result: Mapping[str, Any], headline: str, chips: Iterable[tuple[str, object]]
) -> str:
    """Title, what the run is, and its most important facts as chips."""
    verdict = result["fidelity"]["verdict"]
    if verdict == "bad":
        headline = NO_RESULT
    runtime = {
        "docker": "Docker containers",
        "namespace": "network namespaces, no containers",
        SIMULATED: "none, simulated in virtual time",
    }.get(str(result["runtime"]), str(result["runtime"]))
    scale = scenario.spec.scale
    facts = [
        ("workers", runtime),
        *chips,
        ("time × ", f"{scale.time:g}"),
        ("payload ÷ ", f"{scale.payload:g}"),
    ]
    items = "".join(f"<li>{name} <b>{text(value)}</b></li>" for name, value in facts)
    if verdict != SIMULATED:
        items += f'<li>fidelity <b class="{verdict}">{verdict}</b></li>'
    partial = "" if result["complete"] else '<p class="bad"><b>This run is not complete.</b></p>'
    return (
        f'<header><p class="kicker">Ringlight run {text(result["run"])}</p>'
        f"<h1>{text(headline)}</h1>"
        f'<p class="lead">{text(scenario.spec.description)}</p>{partial}'
        f'<ul class="chips">{items}</ul></header>'
    )


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


def limits(result: Mapping[str, Any], points: Sequence[str], paper: PaperSpec | None) -> str:
    """What the run does not show: a list of HTML texts, and what the scenario says about its paper."""
    first = {
        "docker": [],
        SIMULATED: [
            "<b>Nothing here was measured: every figure of the runs was computed in virtual time.</b>",
            *(f"Left out: {text(left)}" for left in (result.get("simulation") or {}).get("left_out", ())),
        ],
    }.get(
        str(result["runtime"]),
        [
            "<b>The workers ran in network namespaces, not in containers: there was no isolation of memory "
            "or files, and nothing here shows what containers would have done.</b>"
        ],
    )
    return listed_limits([*first, *points], paper)


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


def rests_on(result: Mapping[str, Any]) -> str:
    """In place of a verdict on the testbed: what a simulation takes for granted."""
    return (
        "<h2>What the simulation rests on</h2>"
        "<p>The same fabric, schedules and planner as the emulation's. None of these was fitted to an "
        "emulated run; <code>ringlight crosscheck</code> sets the two side by side and says which is off.</p>"
        f"{assumptions(result['simulation'])}"
    )


def fidelity(compute_s: float, result: Mapping[str, Any]) -> str:
    """Whether the testbed can be believed; of a simulation, what it rests on."""
    if result["runtime"] == SIMULATED:
        return rests_on(result)
    found = result["fidelity"]
    verdict = found["verdict"]
    meaning = {
        "good": "The emulation gave what it was set to give.",
        "doubtful": "Read the figures with care: the emulation strayed from its settings.",
        "bad": "Do not believe the figures: the emulation did not hold its settings.",
    }[verdict]
    reasons = "".join(f"<li>{text(reason['text'])}</li>" for reason in found["reasons"])
    links = [
        row(
            [
                text(link["link"]),
                text(link["direction"]),
                format_rate(link["set_bps"]),
                format_rate(link["measured_bps"]),
                f"{100 * link['ratio']:.1f} %",
                _percent(link["stolen"]),
                _percent(link["others"]),
            ],
            2,
        )
        for link in found["links"]
    ]
    timer = found["timer"]
    late = (
        f"woke {timer['median_ms']:.2f} ms late at the median, {timer['p99_ms']:.2f} ms at the 99th "
        f"percentile, {timer['max_ms']:.1f} ms at worst; one iteration computes for "
        f"{format_time(compute_s)}"
        if timer["median_ms"] is not None
        else "were not measured"
    )
    missing = found["samples_missing"]
    cpu = [
        row(
            [
                text(name),
                f"{100 * (1 - busy['mean_busy']):.0f} %",
                f"{100 * (1 - busy['p95_busy']):.0f} %",
                *(
                    _percent(busy[f"{how}_{what}"])
                    for what in ("stolen", "others")
                    for how in ("mean", "p95")
                ),
                *([f"{100 * missing.get(name, 0):.1f} %"] if missing else []),
            ],
            1,
        )
        for name, busy in found["cpu"].items()
    ]
    head = ["run", *(f"{what} CPU, {how}" for what in ("idle", "stolen", "others'") for how in _MEAN_WORST)]
    head += ["samples missing"] if missing else []
    return (
        "<h2>Can this be believed?</h2>"
        f'<div class="verdict {verdict}"><b>{verdict.capitalize()}.</b> <span>{meaning}</span>'
        f"{f'<ul>{reasons}</ul>' if reasons else ''}</div>{_repeated(found['repeated'])}"
        "<h3>Links against their settings</h3>"
        "<p>TCP payload received while all links of a kind were full at once. Packet headers take 0.7 % of "
        "frames of 9,000 bytes and 1.6 % of such of 4,000; a miss above 5 % is doubtful, above 10 % bad.</p>"
        f"{_links(found['links'], table(_LINK_HEAD, links, 2))}"
        f"<h3>Timers and processors</h3><p>The timers that stand for GPU computation {late}.</p>"
        f"{table(head, cpu, 1)}"
        "<p>Shares of all processors. Stolen is what the hypervisor gave to other machines, others' what "
        "processes took that are no part of the lab; either may be why a link or a timer is late.</p>"
    )


_MEAN_WORST = ("mean", "worst 5 %")
_LINK_HEAD = ["link", "direction", "set", "measured", "ratio", "stolen CPU", "others' CPU"]


def _percent(share: float | None) -> str:
    return "not measured" if share is None else f"{100 * share:.1f} %"


def _repeated(entries: Sequence[Mapping[str, Any]]) -> str:
    """What was made once more by itself: why, both figures, and which counts."""
    if not entries:
        return ""
    rows = [
        row(
            [
                text(entry["name"]),
                text(entry["reasons"][0]["text"])
                + (f" (and {more} more)" if (more := len(entry["reasons"]) - 1) else ""),
                *(_attempt(entry[which]) for which in ("first", "second")),
                "first" if entry["counts"] in ("first", entry["first"].get("run")) else "second",
            ],
            2,
        )
        for entry in entries
    ]
    return (
        "<h3>Made once more</h3><p>Others, or the hypervisor, had the processors, and that showed. Of two "
        "attempts the one counts from which less was taken, whatever its figures. Once a second attempt at a "
        "run was disturbed too, no further run was repeated.</p>"
        f"{table(['what', 'why', 'first', 'second', 'counts'], rows, 2)}"
    )


def _attempt(attempt: Mapping[str, Any]) -> str:
    lost = f"{100 * attempt['taken']:.0f} % of the processors taken"
    if "completion_s" in attempt:
        times = ", ".join(f"{text(job)} {time:.1f} s" for job, time in attempt["completion_s"].items())
        return f"{times}; {lost}"
    return f"{100 * attempt['least']:.1f} to {100 * attempt['most']:.1f} % of the settings; {lost}"


#: More links than these are folded away in a page.
_MOST_LINKS = 24


def _links(links: Sequence[Mapping[str, Any]], shown: str) -> str:
    if len(links) <= _MOST_LINKS:
        return shown
    ratios = sorted(100 * link["ratio"] for link in links)
    middle = ratios[len(ratios) // 2]
    return (
        f"<details><summary>{len(links)} rates, {ratios[0]:.1f} to {ratios[-1]:.1f} % of their settings, "
        f"median {middle:.1f} %</summary>{shown}</details>"
    )


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


def settings(scenario: Document, result: Mapping[str, Any]) -> str:
    scale, set_to = scenario.spec.scale, result["settings"]
    remark = (
        f"<p>Emulated with D = {scale.time:g} and S = {scale.payload:g}: rates are divided by D·S, times "
        f"multiplied by D, gradients divided by S. So one iteration computes for "
        f"{format_time(set_to['compute_s'])} and all-reduces {format_size(set_to['gradient_bytes'])}.</p>"
    )
    return parameters(scenario.spec.parameters, scenario.text, remark)


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
