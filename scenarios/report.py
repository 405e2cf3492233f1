"""One self-contained HTML page about a run: a person reads it without the run folder or a network."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fabric.units import format_rate, format_size, format_time
from scenarios.schema import Scenario

if TYPE_CHECKING:
    from scenarios.plots import Plot

PAPER = "Yan et al., OFC 2022"

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


def render(
    scenario: Scenario, result: Mapping[str, Any], environment: Mapping[str, Any], plots: Sequence[Plot]
) -> str:
    """The page. ``result`` is the object of result.json, ``plots`` what :func:`plots.draw_all` drew."""
    figures = {plot.name: plot for plot in plots}
    parts = [
        _header(scenario, result, environment),
        _hero(result),
        _completion(scenario, result),
        *(_case(name, case, figures) for name, case in result["cases"].items()),
        _live(result["live"], figures) if result["live"] else "",
        _variants(result),
        _fidelity(scenario, result),
        _limits(scenario, result),
        _settings(scenario, result),
        _environment(environment),
    ]
    title = html.escape(f"Ringlight: {scenario.spec.name}")
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{title}</title><style>{_STYLE}</style></head>\n<body><main>\n"
        + "\n".join(part for part in parts if part)
        + "\n</main></body></html>\n"
    )


def _text(value: object) -> str:
    return html.escape(str(value))


def _tag(label: str) -> str:
    return f'<span class="tag">{label}</span>'


def _row(cells: Iterable[str], numeric: int, classes: str = "", tag: str = "td") -> str:
    """One table row; from cell ``numeric`` on, cells are right-aligned."""
    done = (f"<{tag}{' class=n' if i >= numeric else ''}>{cell}</{tag}>" for i, cell in enumerate(cells))
    return f"<tr{f' class={classes}' if classes else ''}>{''.join(done)}</tr>"


def _table(head: Sequence[str], rows: Sequence[str], numeric: int) -> str:
    return (
        f'<div class="scroll"><table><thead>{_row(head, numeric, tag="th")}</thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )


def _figure(plot: Plot | None) -> str:
    if plot is None:
        return ""
    return f"<figure>{plot.svg}<figcaption>{_text(plot.caption)}</figcaption></figure>"


def _lower_first(text: str) -> str:
    return text[:1].lower() + text[1:]


def _number(value: float | None, digits: int = 1, unit: str = "") -> str:
    return "–" if value is None else f"{value:,.{digits}f}{unit}"


def _header(scenario: Scenario, result: Mapping[str, Any], environment: Mapping[str, Any]) -> str:
    fidelity = result["fidelity"]["verdict"]
    runtime = {
        "docker": "Docker containers",
        "namespace": "network namespaces, no containers",
    }.get(str(result["runtime"]), str(result["runtime"]))
    fabric = scenario.fabric
    chips = [
        ("workers", runtime),
        ("GPUs", len(fabric.gpus)),
        ("packet switches", len(fabric.packet_switches)),
        ("optical switches", len(fabric.optical_switches)),
        ("time × ", f"{scenario.spec.scale.time:g}"),
        ("payload ÷ ", f"{scenario.spec.scale.payload:g}"),
    ]
    items = "".join(f"<li>{name} <b>{_text(value)}</b></li>" for name, value in chips)
    items += f'<li>fidelity <b class="{fidelity}">{fidelity}</b></li>'
    partial = "" if result["complete"] else '<p class="bad"><b>This run is not complete.</b></p>'
    return (
        f'<header><p class="kicker">Ringlight run {_text(result["run"])}</p>'
        f"<h1>{_text(_headline(result))}</h1>"
        f'<p class="lead">{_text(scenario.spec.description)}</p>{partial}'
        f'<ul class="chips">{items}</ul></header>'
    )


def _headline(result: Mapping[str, Any]) -> str:
    best = max(result["cases"].values(), key=lambda case: case["reduction_percent"], default=None)
    if best is None or best["reduction_percent"] <= 0:
        return "Regrouping with light"
    fragmented, regrouped = best["completion_s"]["fragmented"], best["completion_s"]["regrouped"]
    return f"Moving the light made training {fragmented / regrouped:.1f} times as fast"


def _hero(result: Mapping[str, Any]) -> str:
    cards = []
    for name, case in result["cases"].items():
        published = case["published"]
        beside = f"paper {published['reduction_percent']:.1f} %, " if published else ""
        cards.append(
            f"<div><dt>Case {_text(name)}: {_text(_lower_first(case['title']))}</dt>"
            f"<dd>−{case['reduction_percent']:.1f} <small>% time</small></dd>"
            f"<p>{beside}model {case['predicted']['reduction_percent']:.1f} %</p></div>"
        )
    live = result["live"]
    if live:
        limit = "" if live["limit_ms"] is None else f"limit {live['limit_ms']:.0f} ms; "
        kept = "no connection lost" if live["connections_unchanged"] else "connections changed"
        cards.append(
            "<div><dt>Regroup while training</dt>"
            f"<dd>{live['blackout_ms']:.0f} <small>ms blackout</small></dd><p>{limit}{kept}</p></div>"
        )
    return f'<dl class="hero">{"".join(cards)}</dl>' if cards else ""


def _completion(scenario: Scenario, result: Mapping[str, Any]) -> str:
    rows = []
    for name, case in result["cases"].items():
        rows.append(f'<tr class="group"><td colspan="4">Case {_text(name)}: {_text(case["title"])}</td></tr>')
        measured, predicted, published = case["completion_s"], case["predicted"], case["published"]
        n = len(case["repeats"])
        times = f", median of {n}" if n > 1 else ""
        rows.append(
            _row(
                [
                    f"{_text(case['watched'])} job {_tag('measured' + times)}",
                    _number(measured["fragmented"], 1, " s"),
                    _number(measured["regrouped"], 1, " s"),
                    _number(case["reduction_percent"], 1, " %"),
                ],
                1,
                "strong",
            )
        )
        if n > 1:
            spread = case["reduction_spread_points"]
            each = ", ".join(f"{repeat['reduction_percent']:.1f}" for repeat in case["repeats"])
            rows.append(_row([f"single runs {_tag('measured')}", "", "", f"{each} (spread {spread:.1f})"], 1))
        rows.append(
            _row(
                [
                    f"model {_tag('analytic')}",
                    _number(predicted["completion_s"]["fragmented"], 1, " s"),
                    _number(predicted["completion_s"]["regrouped"], 1, " s"),
                    _number(predicted["reduction_percent"], 1, " %"),
                ],
                1,
            )
        )
        if published:
            rows.append(
                _row(
                    [
                        f"paper {_tag('published')}",
                        _number(published["completion_s"]["fragmented"], 0, " s"),
                        _number(published["completion_s"]["regrouped"], 0, " s"),
                        _number(published["reduction_percent"], 1, " %"),
                    ],
                    1,
                )
            )
    table = _table(["completion time", "fragmented", "regrouped", "reduction"], rows, 1)
    return (
        "<h2>Completion time</h2>"
        "<p>From the common release of both jobs to the end of the last rank's last iteration. The "
        "emulated job is shorter than the paper's; reductions compare, seconds do not. One set of "
        f"parameters serves all cases.</p>{table}"
    )


def _case(name: str, case: Mapping[str, Any], figures: Mapping[str, Plot]) -> str:
    rows = []
    for job, placements in case["jobs"].items():
        for placement, figure in placements.items():
            rows.append(
                _row(
                    [
                        f"{_text(job)}, {placement}",
                        " ".join(figure["gpus"]),
                        _number(figure["completion_s"], 1, " s"),
                        _number(1000 * figure["iteration_s"], 0, " ms"),
                        _number(1000 * figure["allreduce_s"], 0, " ms"),
                        _number(100 * figure["utilisation"], 0, " %"),
                        _loss(figure),
                        "yes" if figure["parameters_identical"] else '<b class="bad">no</b>',
                    ],
                    2,
                )
            )
    head = [
        "job",
        "ring order",
        "completion",
        "iteration",
        "all-reduce",
        "GPU use",
        "loss",
        "ranks identical",
    ]
    gain = case["utilisation"]["regrouped"] / case["utilisation"]["fragmented"]
    return (
        f"<h2>Case {_text(name)}: {_text(_lower_first(case['title']))}</h2>"
        f"<p>Regrouped, the {_text(case['watched'])} job's all-reduce takes "
        f"<b>{case['allreduce_over_ideal']:.2f} times</b> the ring's ideal of "
        f"{1000 * case['ideal_allreduce_s']:.0f} ms, and its GPUs compute "
        f"{100 * case['utilisation']['regrouped']:.0f} % of the time, {gain:.1f} times as much as before.</p>"
        f"{_figure(figures.get(f'topology-{name}'))}{_figure(figures.get(f'figure3-{name}'))}"
        f"{_table(head, rows, 2)}"
        '<p class="quiet">All measured; iteration and all-reduce are medians over ranks. Ranks identical: '
        "all ranks ended with the same parameters bit by bit, equal to the same training in one process.</p>"
    )


def _loss(figure: Mapping[str, Any]) -> str:
    if figure["loss_first"] is None:
        return "–"
    return f"{figure['loss_first']:.2f} → {figure['loss_last']:.2f}"


def _live(live: Mapping[str, Any], figures: Mapping[str, Plot]) -> str:
    before, after = live["iteration_s"]["before"], live["iteration_s"]["after"]
    watched = live["watched"]
    predicted = live["predicted"]
    rows = [
        _row(
            [
                "beacon gap",
                "longest silence between two ranks of which one moved",
                _ms(live["beacon_gap_ms"]),
            ],
            2,
        ),
        _row(
            [
                "dark on the wire",
                "longest dark time that the optical switch reports",
                _ms(live["wire_dark_ms"]),
            ],
            2,
        ),
        _row(
            [
                "TCP stall",
                "longest time without a byte inside an all-reduce around the regroup; usual without one: "
                f"{_ms(live['tcp_stall_usual_ms'])}",
                _ms(live["tcp_stall_ms"]),
            ],
            2,
        ),
        _row(
            [
                "blackout",
                "the worst of these; a stall counts in full where it exceeds the usual one",
                _ms(live["blackout_ms"]),
            ],
            2,
            "strong",
        ),
        _row(["whole regroup", "controller's first step to its last", _ms(live["regroup_ms"])], 2),
    ]
    facts = [
        ("All ranks finished", live["all_ranks_finished"]),
        ("parameters identical to the one-process reference", live["parameters_identical"]),
        ("same TCP connections from start to end", live["connections_unchanged"]),
    ]
    said = "; ".join(
        f'{text}: <b class="{"good" if holds else "bad"}">{"yes" if holds else "no"}</b>'
        for text, holds in facts
    )
    pace = (
        f"Its iterations went from {1000 * before:.0f} to {1000 * after:.0f} ms "
        f"(model: {1000 * predicted['fragmented'][watched]:.0f} to "
        f"{1000 * predicted['regrouped'][watched]:.0f} ms on average over the job)."
        if before and after
        else ""
    )
    return (
        "<h2>Regrouping while the jobs train</h2>"
        f"<p>After {live['after_iterations']} iterations of the {_text(watched)} job the controller moved "
        f"{live['fibres_moved']} fibres under both running jobs. {pace}</p><p>{said}.</p>"
        f"{_figure(figures.get('live-regroup'))}{_table(['blackout', 'what it is', 'measured'], rows, 2)}"
    )


def _ms(value: float | None) -> str:
    return _number(value, 0 if value is None or value >= 10 else 1, " ms")


def _variants(result: Mapping[str, Any]) -> str:
    if not result["variants"]:
        return ""
    rows = []
    for variant in result["variants"].values():
        job = variant["watched"]
        base = result["cases"].get(variant["case"])
        if base:
            rows.append(
                _row(
                    [
                        f"as in case {_text(variant['case'])}",
                        " ".join(base["jobs"][job]["fragmented"]["gpus"]),
                        _number(base["completion_s"]["fragmented"], 1, " s"),
                        _number(base["predicted"]["completion_s"]["fragmented"], 1, " s"),
                    ],
                    2,
                )
            )
        rows.append(
            _row(
                [
                    _text(variant["title"]),
                    " ".join(variant["jobs"][job]["gpus"]),
                    _number(variant["completion_s"], 1, " s"),
                    _number(variant["predicted"]["completion_s"], 1, " s"),
                ],
                2,
            )
        )
    head = [
        "fragmented run",
        "ring order of the watched job",
        f"completion {_tag('measured')}",
        f"model {_tag('analytic')}",
    ]
    return (
        "<h2>What the ring's order does</h2><p>The same GPUs on the same switches. An alternating ring "
        "crosses between the packet switches at every step, a contiguous one only once in each direction.</p>"
        f"{_table(head, rows, 2)}"
    )


def _fidelity(scenario: Scenario, result: Mapping[str, Any]) -> str:
    fidelity = result["fidelity"]
    verdict = fidelity["verdict"]
    meaning = {
        "good": "The emulation gave what it was set to give.",
        "doubtful": "Read the figures with care: the emulation strayed from its settings.",
        "bad": "Do not believe the figures: the emulation did not hold its settings.",
    }[verdict]
    reasons = "".join(f"<li>{_text(reason)}</li>" for reason in fidelity["reasons"])
    links = [
        _row(
            [
                _text(link["link"]),
                _text(link["direction"]),
                format_rate(link["set_bps"]),
                format_rate(link["measured_bps"]),
                f"{100 * link['ratio']:.1f} %",
            ],
            2,
        )
        for link in fidelity["links"]
    ]
    timer = fidelity["timer"]
    late = (
        f"woke {timer['median_ms']:.2f} ms late at the median, {timer['p99_ms']:.2f} ms at the 99th "
        f"percentile, {timer['max_ms']:.1f} ms at worst; one iteration computes for "
        f"{format_time(scenario.compute_s)}"
        if timer["median_ms"] is not None
        else "were not measured"
    )
    cpu = [
        _row(
            [
                _text(name),
                f"{100 * (1 - busy['mean_busy']):.0f} %",
                f"{100 * (1 - busy['p95_busy']):.0f} %",
                f"{100 * fidelity['samples_missing'].get(name, 0):.1f} %",
            ],
            1,
        )
        for name, busy in fidelity["cpu"].items()
    ]
    return (
        "<h2>Can this be believed?</h2>"
        f'<div class="verdict {verdict}"><b>{verdict.capitalize()}.</b> <span>{meaning}</span>'
        f"{f'<ul>{reasons}</ul>' if reasons else ''}</div>"
        "<h3>Links against their settings</h3>"
        "<p>TCP payload received while all links of a kind were full at once. Packet headers take 0.7 % at "
        f"MTU 9000; a miss above 5 % is doubtful, above 10 % bad.</p>"
        f"{_table(['link', 'direction', 'set', 'measured', 'ratio'], links, 2)}"
        f"<h3>Timers and processors</h3><p>The timers that stand for GPU computation {late}.</p>"
        f"{_table(['run', 'idle CPU, mean', 'idle CPU, worst 5 %', 'samples missing'], cpu, 1)}"
    )


def _limits(scenario: Scenario, result: Mapping[str, Any]) -> str:
    points = [
        "The paper states neither link rates nor batch size, data set, iterations or its changes to VGG16. "
        "The oversubscription, batch and iterations here were derived from its four completion times, so "
        "agreement with those times supports the explanation (fair sharing of one oversubscribed link by "
        "alternating rings); it is no independent confirmation of the paper.",
        "GPU time is waiting of a fixed length; real GPUs vary and overlap computation with communication.",
        f"Traffic is TCP ({_text(scenario.spec.tcp.congestion_control)}), not RoCEv2.",
        "The network trained is a small numpy model; its gradient is padded to the scaled size. Losses show "
        "that training works, not how VGG16 would do.",
        "Seconds are those of the emulation. Ratios carry over to the real rates; absolute times do not.",
        "The dark time is that of the emulated optical switch's profile. The paper does not state its own, "
        "nor whether reconfiguration is inside its completion times.",
    ]
    if result["runtime"] != "docker":
        points.insert(
            0,
            "<b>The workers ran in network namespaces, not in containers: there was no isolation of memory "
            "or files, and nothing here shows what containers would have done.</b>",
        )
    return "<h2>What cannot be claimed</h2><ul>" + "".join(f"<li>{point}</li>" for point in points) + "</ul>"


def _settings(scenario: Scenario, result: Mapping[str, Any]) -> str:
    rows = [
        "<tr>"
        f"<td><code>{_text(name)}</code></td><td style='white-space:nowrap'>{_text(entry.value)}</td>"
        f"<td>{_tag(entry.source)}</td><td class='wide'>{_text(entry.why)}</td></tr>"
        for name, entry in scenario.spec.parameters.items()
    ]
    scale, settings = scenario.spec.scale, result["settings"]
    return (
        "<h2>Parameters and where they come from</h2>"
        f"<p>Emulated with D = {scale.time:g} and S = {scale.payload:g}: rates are divided by D·S, times "
        f"multiplied by D, gradients divided by S. So one iteration computes for "
        f"{format_time(settings['compute_s'])} and all-reduces {format_size(settings['gradient_bytes'])}.</p>"
        f"{_table(['name', 'value', 'source', 'why'], rows, 9)}"
        f"<details><summary>The scenario as run</summary><pre>{_text(scenario.text)}</pre></details>"
    )


def _environment(environment: Mapping[str, Any]) -> str:
    rows = []
    for key, value in environment.items():
        if isinstance(value, Mapping):
            rows += [
                f"<tr><td>{_text(key)}.{_text(k)}</td><td>{_text(v)}</td></tr>" for k, v in value.items()
            ]
        else:
            rows.append(f"<tr><td>{_text(key)}</td><td>{_text(value)}</td></tr>")
    return (
        f"<footer><details><summary>Environment</summary>{_table(['what', 'value'], rows, 9)}</details>"
        f"<p>After {PAPER}. Made by Ringlight from the files of this run folder; "
        "<code>result.json</code> has every number, labelled measured, analytic, published or setting.</p>"
        "</footer>"
    )
