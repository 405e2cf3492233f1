"""The report of a study: one HTML page that a person reads without the run folder or a network."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from experiments.report import page as parts_of
from experiments.report.page import hero, page, picture, row, tag, text
from experiments.study.parts import environment_footer, listed_limits, number, of_paper, parameters
from experiments.study.spec import Study
from experiments.study.systems import CHARGES, RINGS, SYSTEMS, WRHT
from experiments.study.verdict import wins_up_to
from fabric.units import format_rate, format_size, format_time

if TYPE_CHECKING:
    from experiments.report.drawing import Plot

_SIMULATED, _ANALYTIC = tag("simulated"), tag("analytic")


def render(
    study: Study, result: Mapping[str, Any], environment: Mapping[str, Any], plots: Sequence[Plot]
) -> str:
    """The page. ``result`` is the object of result.json, ``plots`` what was drawn."""
    figures = {plot.name: plot for plot in plots}
    parts = [
        _header(study, result),
        hero(_cards(study, result)),
        _verdict(result),
        _systems(study, result),
        _messages(study, result, figures),
        _crossovers(study, result, figures),
        _along(study, result, figures),
        _steps(study, result),
        _memory(study, result),
        _reach(study, result, figures),
        _left_out(study, result),
        _published(study, result, figures),
        _agreement(result),
        _limits(study),
        parameters(study.spec.parameters, study.text),
        environment_footer(environment, study.spec.paper),
    ]
    return page(f"Ringlight: {study.spec.name}", parts)


def table(head: Sequence[str], rows: Sequence[str], numeric: int) -> str:
    """As :func:`experiments.report.page.table`, with heads that wrap: they say much here."""
    wrapped = [f'<span style="white-space:normal">{title}</span>' for title in head]
    return parts_of.table(wrapped, rows, numeric)


def _titled(system: str) -> str:
    """A system's name on one line."""
    return f'<span style="white-space:nowrap">{text(SYSTEMS[system].title)}</span>'


def _header(study: Study, result: Mapping[str, Any]) -> str:
    sweeps = study.sweeps
    facts = [
        ("nodes", f"{min(sweeps.nodes):,}–{max(sweeps.nodes):,}"),
        ("wavelengths", f"{min(sweeps.wavelengths)}–{max(sweeps.wavelengths)}"),
        ("a wavelength", format_rate(sweeps.base.rate)),
        ("set-up", format_time(sweeps.base.set_up)),
        ("simulations", f"{result['agreement']['runs_compared']:,}"),
        ("every number", "simulated or analytic"),
    ]
    items = "".join(f"<li>{name} <b>{text(value)}</b></li>" for name, value in facts)
    partial = "" if result["complete"] else '<p class="bad"><b>This study is not complete.</b></p>'
    return (
        f'<header><p class="kicker">Ringlight study {text(result["run"])}</p>'
        "<h1>Where does WRHT win, and where does it lose?</h1>"
        f'<p class="lead">{text(study.spec.description)}</p>{partial}<ul class="chips">{items}</ul></header>'
    )


def _size(size: float | None) -> str:
    if size is None:
        return "–"
    if size == 0:
        return "never"
    return "any size" if size == math.inf else format_size(size)


def _cards(study: Study, result: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    base = study.sweeps.base
    pairs = {
        (pair["system"], pair["other"], pair["charge"]): pair for pair in result["crossovers"]["systems"]
    }
    cards = []
    for other, title in (
        ("bidirectional-ring", "the bidirectional ring"),
        ("ring", "the ring on one fibre"),
        ("bidirectional-hierarchical-ring", "the bidirectional hierarchical ring"),
    ):
        pair = pairs.get(("wrht", other, "each-step"))
        if pair is not None:
            each = _size(wins_up_to(pair))
            new = _size(wins_up_to(pairs.get(("wrht", other, "changed-only"))))
            cards.append(
                (
                    f"WRHT beats {title} up to",
                    text(each),
                    f"set-up in each step {_SIMULATED}; only where light changes: {text(new)}",
                )
            )
    largest = max(study.sweeps.gradients, key=lambda name: study.sweeps.gradients[name])
    memory = result["groups"][-1]
    cards.append(
        (
            f"Received at once by one node, {text(largest)}",
            text(format_size(memory["buffer_bytes"][largest])),
            f"{memory['vectors']} whole gradients, {base.nodes:,} nodes, {base.wavelengths} wavelengths",
        )
    )
    return cards


def _verdict(result: Mapping[str, Any]) -> str:
    classes = {"wins": "good", "loses": "bad", "note": "quiet"}
    words = {"wins": "Wins.", "loses": "Loses.", "note": "Published."}
    items = "".join(
        f'<li><b class="{classes[found["kind"]]}">{words[found["kind"]]}</b> {text(found["text"])}</li>'
        for found in result["verdict"]
    )
    return f"<h2>Verdict</h2><p>Written from the numbers below.</p><ul>{items}</ul>"


def _systems(study: Study, result: Mapping[str, Any]) -> str:
    base, electrical = study.sweeps.base, study.sweeps.electrical
    rows = []
    for name, system in result["systems"].items():
        closed = system["analytic"]
        remark = f", groups of {system['group']}" if "group" in system else ""
        rows.append(
            row(
                [
                    _titled(name) + remark,
                    number(system["steps"], 0),
                    number(closed["new"], 0) if system["medium"] == "optical" else "",
                    f"{closed['vectors']:.4g}",
                    number(system["wavelengths_used"], 0) if system["wavelengths_used"] else "",
                    f"{closed['added']:.4g}",
                ],
                1,
                "strong" if name in WRHT else "",
            )
        )
    head = [
        "system",
        f"steps {_SIMULATED}",
        f"with new light {_ANALYTIC}",
        f"gradients through the narrowest link {_ANALYTIC}",
        f"wavelengths {_SIMULATED}",
        f"gradients added at the busiest node {_ANALYTIC}",
    ]
    factor = ", ".join(f"{f:g}:1" for f in electrical.oversubscription)
    return (
        f"<h2>Who is compared</h2><p>At the base point: {base.nodes:,} nodes, {base.wavelengths} wavelengths "
        f"of {format_rate(base.rate)} in each direction. An all-reduce takes set-ups · a + gradients · d/B: "
        "WRHT has the fewest set-ups and sends the most. Striped systems spread every transfer over the "
        "wavelengths that its step leaves free. A ring all-reduce sends one way round, on one of the two "
        "fibres; a bidirectional one sends half of the gradient each way, at once. A hierarchical ring has "
        "the group with the fewest steps that its wavelengths "
        f"carry.{of_paper(study.spec.paper, 'systems')}</p>"
        f"{table(head, rows, 1)}"
        f'<p class="quiet">The electrical network is a tree of leaves with {electrical.leaf} GPUs at '
        f"{format_rate(electrical.rate)} each, trunks oversubscribed {factor} (the first where nothing else "
        f"is said), {format_time(electrical.latency)} for each step. Between leaves a flow takes whatever "
        "its trunk leaves it, max-min fair.</p>"
    )


def _messages(study: Study, result: Mapping[str, Any], figures: Mapping[str, Plot]) -> str:
    parts = []
    for charge in CHARGES:
        times = result["models"][charge]
        rows = []
        for name in study.sweeps.systems:
            cells = [_titled(name)]
            for model in study.sweeps.gradients:
                found = times[model].get(name)
                mine = times[model].get("wrht")
                if not found or not mine:
                    cells += ["–", "–"]
                    continue
                cells += [format_time(found["total_s"]), f"{found['total_s'] / mine['total_s']:.3g}"]
            rows.append(row(cells, 1, "strong" if name in WRHT else ""))
        head = ["system"]
        for model, size in study.sweeps.gradients.items():
            head += [f"{model}, {format_size(size)} {_SIMULATED}", "WRHT = 1"]
        title = {"each-step": "Set-up in each step", "changed-only": "Set-up only where light changes"}[
            charge
        ]
        parts.append(f"<h3>{title}</h3>{table(head, rows, 1)}")
    return (
        f"<h2>Time and size of the gradient</h2>{picture(figures.get('messages'))}{''.join(parts)}"
        f"<h3>Who is fastest</h3>{picture(figures.get('fastest'))}"
    )


def _crossovers(study: Study, result: Mapping[str, Any], figures: Mapping[str, Plot]) -> str:
    pairs = result["crossovers"]["systems"]
    by = {(p["system"], p["other"], p["charge"]): p for p in pairs}
    forms = [name for name in WRHT if name in study.sweeps.systems]
    tables = []
    for charge in CHARGES:
        rows = []
        for other in dict.fromkeys(pair["other"] for pair in pairs):
            cells = [_titled(other)]
            for system in forms:
                pair = by.get((system, other, charge))
                cells.append(_size(wins_up_to(pair)))
                cells.append(format_size(pair["analytic_bytes"]) if pair and pair["analytic_bytes"] else "")
            rows.append(row(cells, 1))
        head = ["against"]
        for system in forms:
            head += [f"{SYSTEMS[system].title} {_SIMULATED}", _ANALYTIC]
        said = "Set-up in each step" if charge == "each-step" else "Set-up only where light changes"
        tables.append(f"<h3>{said}</h3>{table(head, rows, 1)}")
    rates = [
        row(
            [
                format_rate(pair["rate_bps"]),
                text(SYSTEMS[pair["system"]].title),
                text(SYSTEMS[pair["other"]].title),
                _size(wins_up_to(pair)),
                format_size(pair["analytic_bytes"]) if pair["analytic_bytes"] else "",
            ],
            3,
        )
        for pair in result["crossovers"]["rates"]
        if pair["charge"] == "each-step"
    ]
    return (
        "<h2>Where WRHT stops winning</h2><p>The gradient up to which WRHT is faster. Against a ring on "
        "one wavelength, set-up in each step, the model gives d* = a·B(2(N−1)−θ)/(θ−2(N−1)/(fN)), θ being "
        "WRHT's steps and f the fibres that the ring uses, 1 or 2.</p>"
        f"{picture(figures.get('crossovers'))}{''.join(tables)}"
        "<h3>By rate, against the rings on one wavelength, set-up in each step</h3>"
        f"{table(['a wavelength', '', 'against', f'up to {_SIMULATED}', _ANALYTIC], rates, 3)}"
    )


def _along(study: Study, result: Mapping[str, Any], figures: Mapping[str, Plot]) -> str:
    cells = {}
    for entry in result["grid"]:
        totals = entry["total_s"]
        mine = [totals[name] for name in WRHT if totals.get(name) is not None]
        plain = {
            name: t
            for name, t in totals.items()
            if t is not None and name not in WRHT and not SYSTEMS[name].striped
        }
        if mine and plain and entry["charge"] == "each-step":
            best = min(plain, key=lambda name: plain[name])
            ratio = min(mine) / plain[best]
            colour = "quiet" if abs(ratio - 1) < 0.005 else "good" if ratio < 1 else "bad"
            cells[entry["nodes"], entry["wavelengths"]] = (
                f'<b class="{colour}">{ratio:.2f}</b> <small>{text(SYSTEMS[best].title.lower())}</small>'
            )
    rows = [
        row(
            [f"{nodes:,}", *(cells.get((nodes, w), "–") for w in sorted(study.sweeps.wavelengths))],
            9,
        )
        for nodes in sorted(study.sweeps.nodes)
    ]
    head = ["nodes", *(f"{w} wavelengths {_SIMULATED}" for w in sorted(study.sweeps.wavelengths))]
    return (
        f"<h2>Wavelengths, set-up, nodes</h2>{picture(figures.get('wavelengths'))}"
        f"{picture(figures.get('set-up'))}{picture(figures.get('nodes'))}"
        f"<h3>WRHT over the best of the others</h3><p>Time of WRHT (with or without exchange, whichever is "
        f"faster) for {text(study.sweeps.base.gradient)} over that of the fastest other system that gives a "
        f"transfer one wavelength, which is named; set-up of {format_time(study.sweeps.base.set_up)} in each "
        f"step. Below 1 WRHT wins.</p>{table(head, rows, 9)}"
    )


def _steps(study: Study, result: Mapping[str, Any]) -> str:
    rows = []
    before = None
    for entry in result["steps"]:
        if entry["wavelengths"] != before:
            before = entry["wavelengths"]
            rows.append(
                f'<tr class="group"><td colspan="9">{before} wavelengths, groups of up to '
                f"{2 * before + 1}</td></tr>"
            )
        fits = entry["exchange_wavelengths_analytic"] <= entry["wavelengths"]
        derived = (
            "" if entry["derived_steps"] is None else f"{entry['derived_steps']} / {entry['derived_best']}"
        )
        agrees = (
            ""
            if entry["derived_steps"] is None
            else _mark(
                (entry["steps"], entry["exchange_steps"]), (entry["derived_steps"], entry["derived_best"])
            )
        )
        rows.append(
            row(
                [
                    f"{entry['nodes']:,}",
                    number(entry["steps"], 0),
                    f"{entry['analytic_steps']}",
                    number(entry["wavelengths_used"], 0),
                    f"{entry['top']}",
                    f"{entry['exchange_wavelengths_analytic']:,}{'' if fits else ' do not fit'}",
                    number(entry["exchange_steps"], 0),
                    f"{derived} {agrees}",
                    f"{entry['buffer_vectors']}",
                ],
                1,
            )
        )
    head = [
        "nodes",
        f"steps, collect {_SIMULATED}",
        f"2⌈log<sub>m</sub> N⌉ {_ANALYTIC}",
        f"wavelengths used {_SIMULATED}",
        "at the top",
        f"wavelengths to exchange there {_ANALYTIC}",
        f"steps, exchange {_SIMULATED}",
        f"derived by hand, collect / exchange {_ANALYTIC}",
        f"vectors at a representative {_SIMULATED}",
    ]
    return (
        "<h2>Steps and wavelengths of WRHT</h2><p>With groups of m = 2w + 1 every representative has w "
        "members on each side. An exchange among k representatives needs k²/8 wavelengths (rounded up); "
        "where only a smaller level fits, it is done there. In a ring too small to fill one group, the "
        f"exchange may be the only step.</p>{table(head, rows, 1)}"
    )


def _mark(ours: tuple[Any, Any], theirs: tuple[Any, Any]) -> str:
    same = ours == theirs
    return f'<b class="{"good" if same else "bad"}">{"=" if same else "≠"}</b>'


def _memory(study: Study, result: Mapping[str, Any]) -> str:
    models = list(study.sweeps.gradients)
    rows = [
        row(
            [
                f"{entry['group']}",
                f"{entry['wavelengths_used']}",
                f"{entry['steps']}",
                f"{entry['vectors']}",
                *(format_size(entry["buffer_bytes"][model]) for model in models),
                *(_time(entry["total_s"][model]) for model in models),
            ],
            1,
        )
        for entry in result["groups"]
    ]
    head = [
        "group",
        "wavelengths",
        "steps",
        f"gradients at once {_SIMULATED}",
        *(f"{model} {_ANALYTIC}" for model in models),
        *(f"time, {model} {_SIMULATED}" for model in models),
    ]
    last = result["groups"][-1]
    largest = max(study.sweeps.gradients, key=lambda name: study.sweeps.gradients[name])
    return (
        "<h2>Memory at a representative</h2><p>A representative receives one whole gradient from every "
        f"member of its group in one step. With {last['vectors']} of "
        f"{format_size(study.sweeps.gradients[largest])} that is "
        f"{format_size(last['buffer_bytes'][largest])} for {text(largest)}, unless it adds as it "
        f"receives.{of_paper(study.spec.paper, 'memory')} Smaller groups need less, and take more steps. At "
        f"{study.base.nodes:,} nodes, set-up in each step.</p>{table(head, rows, 1)}"
    )


def _time(seconds: float | None) -> str:
    return "–" if seconds is None else format_time(seconds)


def _reach(study: Study, result: Mapping[str, Any], figures: Mapping[str, Plot]) -> str:
    rows = result["reach"]
    if len(rows) < 2:
        return ""
    models = list(study.sweeps.gradients)
    cells = []
    for entry in rows:
        mine = entry["wrht"]
        other = entry.get("wrht-exchange")
        cells.append(
            row(
                [
                    "no limit" if entry["reach"] is None else f"{entry['reach']}",
                    f"{mine['steps']}",
                    f"{other['steps']}" if other else "–",
                    f"{mine['longest_segments']}",
                    f"{mine['vectors']}",
                    *(_time(mine["total_s"][model]) for model in models),
                ],
                1,
            )
        )
    head = [
        "reach, segments",
        f"steps, collect {_SIMULATED}",
        f"steps, exchange {_SIMULATED}",
        "longest lightpath",
        "gradients at once",
        *(f"time, {model} {_SIMULATED}" for model in models),
    ]
    return (
        "<h2>How far light has to get</h2><p>The representatives of the upper levels are far apart. What "
        "WRHT does here where light does not get so far is <b>a heuristic of ours</b>: groups are made as "
        "small as the reach asks, but not below three nodes, and where even neighbouring representatives are "
        "further apart the vector goes from relay to relay, a step for each. Another scheme may take fewer "
        "steps.</p>"
        f"{picture(figures.get('reach'))}{table(head, cells, 1)}{_budget(study, result)}"
    )


def _budget(study: Study, result: Mapping[str, Any]) -> str:
    loss, found = study.sweeps.loss, result["loss"]
    if loss is None or found is None:
        return ""
    steps = {entry["reach"]: entry["wrht"]["steps"] for entry in result["reach"]}
    most = study.base.nodes
    rows = [
        row(
            [
                f"{entry['segment_db']:g} dB",
                f"{entry['reach']} segments",
                f"{steps.get(min(entry['reach'], most), '–')}",
            ],
            1,
        )
        for entry in found["rows"]
    ]
    fixed = " − ".join(f"{value:g} ({text(name)})" for name, value in loss.fixed_db.items())
    return (
        f"<h3>A budget of losses {_ANALYTIC}</h3><p>Reach = ⌊(launch − sensitivity − margin − fixed losses) "
        f"/ loss of a segment⌋ = ⌊({loss.launch_dbm:g} dBm + {-loss.sensitivity_dbm:g} dBm − "
        f"{loss.margin_db:g} dB − {fixed}) / loss⌋; that leaves {found['budget_db']:.4g} "
        f"dB.{of_paper(study.spec.paper, 'loss')} Without relays the "
        f"longest lightpath here passes {found['longest_segments']} segments, so each, with its node's "
        f"switch, may cost {at_most(found['most_segment_db'])} dB at most.</p>"
        f"{table(['loss of a segment', 'reach', 'steps of WRHT'], rows, 1)}"
    )


def at_most(value: float) -> str:
    """With four decimals, rounded down: a little more would be too much."""
    return f"{math.floor(value * 1e4) / 1e4:.4f}"


def _left_out(study: Study, result: Mapping[str, Any]) -> str:
    kinds = list(next(iter(result["left_out"]["each-step"][study.sweeps.base.gradient].values())))
    if len(kinds) < 2:
        return ""
    light, addition = study.sweeps.light, study.sweeps.addition
    parts = []
    for charge in CHARGES:
        rows = []
        for system in study.sweeps.systems:
            found = result["left_out"][charge][study.sweeps.base.gradient][system]
            rows.append(row([_titled(system), *(_time(found[kind]) for kind in kinds)], 1))
        head = ["system", *(f"{kind} {_SIMULATED}" for kind in kinds)]
        said = "in each step" if charge == "each-step" else "only where light changes"
        parts.append(f"<h3>{text(study.sweeps.base.gradient)}, set-up {said}</h3>{table(head, rows, 1)}")
    pairs = [
        row(
            [text(kind), text(SYSTEMS[pair["other"]].title), _size(wins_up_to(pair))],
            2,
        )
        for kind, entries in result["crossovers"]["left_out"].items()
        for pair in entries
        if pair["system"] == "wrht"
        and pair["charge"] == "each-step"
        and pair["other"] in (*RINGS, "hierarchical-ring", "bidirectional-hierarchical-ring")
    ]
    told = []
    if light is not None:
        told.append(
            f"Light's way: {format_time(light.ends)} to be sent and received in each step and "
            f"{format_time(light.segment)} for each segment passed."
        )
    if addition is not None:
        told.append(
            f"Local additions: {format_rate(addition.rate)} ({addition.rate / 8e9:g} GB/s), each received "
            "gradient added one after the other once a step has been received."
        )
    return (
        f"<h2>What the model leaves out</h2><p>{' '.join(told)} Off everywhere else on this page."
        f"{of_paper(study.spec.paper, 'left_out')}</p>{''.join(parts)}"
        "<h3>Crossovers of WRHT (collect) with these counted, set-up in each step</h3>"
        f"{table(['counted', 'against', f'WRHT is faster up to {_SIMULATED}'], pairs, 2)}"
    )


def _published(study: Study, result: Mapping[str, Any], figures: Mapping[str, Plot]) -> str:
    published = result["published"]
    if published is None:
        return ""
    rows = []
    for entry in published["figures"]:
        closest = entry["closest"]
        ours = entry["ours"]
        values = [o["percent"] for o in ours]
        exact = bool(entry["exact"])
        said = "reproduced" if exact else "not reproduced"
        needed = ", ".join(
            f"{_size(entry['needed_bytes'][charge])} ({'each step' if charge == 'each-step' else 'new only'})"
            if entry["needed_bytes"][charge]
            else f"no gradient ({'each step' if charge == 'each-step' else 'new only'})"
            for charge in CHARGES
        )
        if exact:
            needed = "any gradient: it is the ratio of the numbers of steps"
        rows.append(
            row(
                [
                    f"<b>{entry['percent']:.2f} %</b> {tag('published')}",
                    text(SYSTEMS[entry["taken_for"]].title),
                    f'<b class="{"good" if exact else "bad"}">{said}</b>',
                    f"{closest['percent']:.2f} %: {text(closest['assumptions'])}" if closest else "–",
                    f"{min(values):,.1f} … {max(values):.1f} %" if values else "–",
                    needed,
                ],
                9,
            )
        )
    head = [
        "published",
        "taken to be against",
        "",
        f"closest of ours {_SIMULATED}",
        "all of ours",
        f"gradient for which it would hold {_ANALYTIC}",
    ]
    nodes = ", ".join(f"{n:,}" for n in published["nodes"])
    count = max(len(entry["ours"]) for entry in published["figures"])
    steps = next((o for e in published["figures"] if e["exact"] for o in e["ours"] if "each" in o), None)
    how = ""
    if steps is not None:
        each = ", ".join(f"{value:.2f}" for value in steps["each"])
        how = f" The one that is exact is the mean of {each} % at {nodes} nodes."
    return (
        f"<h2>The published percentages</h2><p>{text(published['source'])}."
        f"{of_paper(study.spec.paper, 'published')} Ours are means "
        f"over {nodes} nodes at the base's rate, set-up and wavelengths, for up to {count} combinations of "
        "assumptions that the study has anyway. <b>With so many, one may come near by chance: near is not "
        f"reproduced.</b>{how}</p>{picture(figures.get('published'))}{table(head, rows, 9)}"
        '<p class="quiet">The last column says what would have to be assumed for the figure to come out, all '
        "else as in the base; it is not a claim that this was assumed.</p>"
    )


def _agreement(result: Mapping[str, Any]) -> str:
    found = result["agreement"]
    if not found["runs_compared"]:
        return ""
    return (
        "<h2>Can this be believed?</h2>"
        '<div class="verdict good"><b>Simulation and closed forms agree.</b> <span>Largest relative '
        f"difference over {found['runs_compared']:,} all-reduces at {found['points']} points: "
        f"{found['largest_relative_difference']:.1e}; over {found['crossovers_compared']} crossovers: "
        f"{found['crossovers_largest_relative_difference']:.1e}. {found['runs_without_closed_form']} "
        "all-reduces with the light's way counted have no closed form here.</span></div>"
        if found["largest_relative_difference"] < 1e-6
        else "<h2>Can this be believed?</h2>"
        '<div class="verdict bad"><b>Simulation and closed forms disagree</b> <span>by '
        f"{found['largest_relative_difference']:.1e} for {text(found['system'])} at {found['nodes']} nodes: "
        "do not believe this page.</span></div>"
    )


def _limits(study: Study) -> str:
    points = [
        "Steps are synchronised: nobody begins one before all have ended the one before. That suits WRHT, "
        "whose steps are like that anyway; a real ring would run ahead where it can.",
        "Every node is taken to have a transmitter and a receiver for every wavelength in both directions. "
        "WRHT needs them all at its representatives; a ring needs one, a bidirectional one one each way.",
        "Set-up is one time for the whole ring, whatever changes. No light is lost and no packet sent twice.",
        "Compute does not overlap with the all-reduce, and gradients are not cut into buckets.",
    ]
    return listed_limits(points, study.spec.paper)
