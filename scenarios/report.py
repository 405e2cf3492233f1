"""The report of a regrouping run: one HTML page that a person reads without the run folder or a network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from experiments.report.page import (
    environment_footer,
    fidelity,
    header,
    hero,
    how_known,
    limits,
    lower_first,
    milliseconds,
    number,
    of_paper,
    page,
    picture,
    row,
    settings,
    table,
    tag,
    text,
)
from fabric.utilisation import DEFINITIONS
from scenarios.records import SIMULATED
from scenarios.schema import Scenario

if TYPE_CHECKING:
    from experiments.report.drawing import Plot


def render(
    scenario: Scenario, result: Mapping[str, Any], environment: Mapping[str, Any], plots: Sequence[Plot]
) -> str:
    """The page. ``result`` is the object of result.json, ``plots`` what :func:`plots.draw_all` drew."""
    figures = {plot.name: plot for plot in plots}
    parts = [
        _header(scenario, result),
        _hero(result),
        _completion(scenario, result),
        *(_case(result, name, figures) for name in result["cases"]),
        _live(result, figures) if result["live"] else "",
        _variants(result),
        _utilisation(scenario, result),
        fidelity(scenario.compute_s, result),
        _limits(scenario, result),
        settings(scenario, result),
        environment_footer(environment, scenario.spec.paper),
    ]
    return page(f"Ringlight: {scenario.spec.name}", parts)


def _header(scenario: Scenario, result: Mapping[str, Any]) -> str:
    fabric = scenario.fabric
    chips = [
        ("GPUs", len(fabric.gpus)),
        ("packet switches", len(fabric.packet_switches)),
        ("optical switches", len(fabric.optical_switches)),
    ]
    return header(scenario, result, _headline(result), chips)


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
        beside = (
            f"paper {published['reduction_percent']:.1f} % ({published['standing']['reduction_percent']}), "
            if published
            else ""
        )
        cards.append(
            (
                f"Case {text(name)}: {text(lower_first(case['title']))}",
                f"−{case['reduction_percent']:.1f} <small>% time</small>",
                f"{beside}all-send model {case['predicted']['reduction_percent']:.1f} %",
            )
        )
    live = result["live"]
    if live:
        limit = "" if live["limit_ms"] is None else f"limit {live['limit_ms']:.0f} ms; "
        if live["limit_ms"] is not None and live["blackout_ms"] > live["limit_ms"]:
            limit = f'<b class="bad">limit {live["limit_ms"]:.0f} ms missed</b>; '
        kept = {True: "no connection lost", False: "connections changed", None: "without TCP"}
        cards.append(
            (
                "Regroup while training",
                f"{live['blackout_ms']:.0f} <small>ms blackout</small>",
                f"{limit}{kept[live['connections_unchanged']]}",
            )
        )
    return hero(cards)


def _completion(scenario: Scenario, result: Mapping[str, Any]) -> str:
    rows = []
    for name, case in result["cases"].items():
        rows.append(f'<tr class="group"><td colspan="4">Case {text(name)}: {text(case["title"])}</td></tr>')
        measured, predicted, published = case["completion_s"], case["predicted"], case["published"]
        n = len(case["repeats"])
        times = f", median of {n}" if n > 1 else ""
        rows.append(
            row(
                [
                    f"{text(case['watched'])} job {tag(how_known(result) + times)}",
                    number(measured["fragmented"], 1, " s"),
                    number(measured["regrouped"], 1, " s"),
                    number(case["reduction_percent"], 1, " %"),
                ],
                1,
                "strong",
            )
        )
        if n > 1:
            spread = case["reduction_spread_points"]
            each = ", ".join(f"{repeat['reduction_percent']:.1f}" for repeat in case["repeats"])
            rows.append(
                row([f"single runs {tag(how_known(result))}", "", "", f"{each} (spread {spread:.1f})"], 1)
            )
        rows.append(
            row(
                [
                    f"all-send model {tag('analytic')}",
                    number(predicted["completion_s"]["fragmented"], 1, " s"),
                    number(predicted["completion_s"]["regrouped"], 1, " s"),
                    number(predicted["reduction_percent"], 1, " %"),
                ],
                1,
            )
        )
        if published:
            rows.append(
                row(
                    [
                        f"paper {tag('published')} {tag(published['standing']['reduction_percent'])}",
                        number(published["completion_s"]["fragmented"], 0, " s"),
                        number(published["completion_s"]["regrouped"], 0, " s"),
                        number(published["reduction_percent"], 1, " %"),
                    ],
                    1,
                )
            )
    shown = table(["completion time", "fragmented", "regrouped", "reduction"], rows, 1)
    return (
        "<h2>Completion time</h2>"
        "<p>From the common release of all jobs to the end of the last rank's last iteration. One set of "
        "parameters serves all cases. The all-send model takes every job to be sending all the time, at its "
        "max-min fair share of each link, without headers or losses: it may say more than a run takes as "
        f"well as less.{_worth(result)}{of_paper(scenario.spec.paper, 'completion')}</p>{shown}"
    )


def _worth(result: Mapping[str, Any]) -> str:
    """What fitted and predicted mean, where they stand in the table."""
    if not any(case["published"] for case in result["cases"].values()):
        return ""
    return (
        " <b>Fitted</b>: parameters were derived from this very figure, so that agreeing with it is no "
        "evidence; <b>predicted</b>: none was. The parameters below say which."
    )


def _utilisation(scenario: Scenario, result: Mapping[str, Any]) -> str:
    """The watched job's utilisation under each definition, and which of them agree with what is published."""
    cases = result["cases"]
    if not cases:
        return ""
    claims = {name: (case["published"] or {}).get("utilisation") for name, case in cases.items()}
    rows = []
    for name, definition in DEFINITIONS.items():
        cells = [f"{text(definition.title)}<br><small>{text(definition.why)}</small>"]
        for case in cases.values():
            found = case["utilisations"][name]
            gain = f"{found['gain']:.2f} ×"
            if found["consistent"] is not None:
                gain = f'<b class="{"good" if found["consistent"] else "bad"}">{gain}</b>'
            cells.append(f"{100 * found['fragmented']:.0f} → {100 * found['regrouped']:.0f} %, {gain}")
        rows.append(row(cells, 1))
    if any(claims.values()):
        cells = [f"paper {tag('published')}"]
        for name, claim in claims.items():
            standing = tag(cases[name]["published"]["standing"]["utilisation"]) if claim else ""
            cells.append(f"{claim['gain'][0]:g} to {claim['gain'][1]:g} × {standing}" if claim else "–")
        rows.append(row(cells, 1, "strong"))
    head = [
        f"what counts as busy {tag(how_known(result))}",
        *(f"case {text(name)}, {text(case['watched'])} job" for name, case in cases.items()),
    ]
    return (
        "<h2>GPU utilisation, by definition</h2><p>A counter shows in how much of the time a kernel was "
        "executing; how much of a collective that is depends on how the collective is made. So here are "
        f"several definitions, each from the same run.{of_paper(scenario.spec.paper, 'utilisation')}</p>"
        f"{_quoted(claims)}{table(head, rows, 1)}{_agreement(result, claims)}"
    )


def _quoted(claims: Mapping[str, Any]) -> str:
    said = [f"case {text(name)}: “{text(claim['words'])}”" for name, claim in claims.items() if claim]
    if not said:
        return ""
    return (
        "<p>Published, read as the ranges in the last row, where predicted says that no parameter was fitted "
        f"to it: {'; '.join(said)}.</p>"
    )


def _listed(definitions: Sequence[str]) -> str:
    return " and ".join(f"“{text(DEFINITIONS[name].title)}”" for name in definitions) or "none"


def _agreement(result: Mapping[str, Any], claims: Mapping[str, Any]) -> str:
    found = result["utilisation"]
    if found is None:
        return ""
    titles = _listed(found["consistent"])
    if found["consistent"]:
        said = f"Consistent with all that is published: {titles}."
    else:
        each = "; ".join(
            f"case {text(case)} agrees with {_listed(names)}" for case, names in found["of_case"].items()
        )
        said = f"<b>No definition is consistent with all that is published</b>: {each}."
    shares = []
    for case in found["cases"]:
        span = result["cases"][case]["waiting_counted"]
        shares.append(
            f"none for case {text(case)}"
            if span is None
            else f"{100 * span[0]:.0f} to {100 * span[1]:.0f} % for case {text(case)}"
        )
    return (
        f"<p>{said} Of the time without computing, a counter would have to count {', '.join(shares)}. "
        "A definition that counts the same work in every iteration gives the speed-up itself, whatever "
        "overlaps and however unequal the GPUs are; one that counts all waiting gives 1.</p>"
    )


def _case(result: Mapping[str, Any], name: str, figures: Mapping[str, Plot]) -> str:
    case = result["cases"][name]
    rows = []
    for job, placements in case["jobs"].items():
        for placement, figure in placements.items():
            rows.append(
                row(
                    [
                        f"{text(job)}, {placement}",
                        " ".join(figure["gpus"]),
                        number(figure["completion_s"], 1, " s"),
                        number(1000 * figure["iteration_s"], 0, " ms"),
                        number(1000 * figure["allreduce_s"], 0, " ms"),
                        number(100 * figure["utilisation"], 0, " %"),
                        _loss(figure),
                        _YES_NO[figure["parameters_identical"]],
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
        f"<h2>Case {text(name)}: {text(lower_first(case['title']))}</h2>"
        f"<p>Regrouped, the {text(case['watched'])} job's all-reduce takes "
        f"<b>{case['allreduce_over_ideal']:.2f} times</b> the ring's ideal of "
        f"{1000 * case['ideal_allreduce_s']:.0f} ms, and its GPUs compute "
        f"{100 * case['utilisation']['regrouped']:.0f} % of the time, {gain:.1f} times as much as before.</p>"
        f"{picture(figures.get(f'topology-{name}'))}{picture(figures.get(f'figure3-{name}'))}"
        f"{table(head, rows, 2)}"
        f'<p class="quiet">All {how_known(result)}; iteration and all-reduce are medians over ranks. Ranks '
        "identical: all ranks ended with the same parameters bit by bit, equal to the same training in one "
        "process.</p>"
    )


_YES_NO = {True: "yes", False: '<b class="bad">no</b>', None: "–"}


def _loss(figure: Mapping[str, Any]) -> str:
    if figure["loss_first"] is None:
        return "–"
    return f"{figure['loss_first']:.2f} → {figure['loss_last']:.2f}"


def _live(result: Mapping[str, Any], figures: Mapping[str, Plot]) -> str:
    live = result["live"]
    before, after = live["iteration_s"]["before"], live["iteration_s"]["after"]
    watched = live["watched"]
    predicted = live["predicted"]
    rows = [
        row(
            [
                "beacon gap",
                "longest silence between two ranks of which one moved",
                milliseconds(live["beacon_gap_ms"]),
            ],
            2,
        ),
        row(
            [
                "dark on the wire",
                "longest dark time that the optical switch reports",
                milliseconds(live["wire_dark_ms"]),
            ],
            2,
        ),
        row(
            [
                "TCP stall",
                "longest time without a byte inside an all-reduce since the light went; usual without one: "
                f"{milliseconds(live['tcp_stall_usual_ms'])}",
                milliseconds(live["tcp_stall_ms"]),
            ],
            2,
        ),
        row(
            [
                "blackout",
                "the worst of these",
                milliseconds(live["blackout_ms"]),
            ],
            2,
            "strong",
        ),
        row(["whole regroup", "controller's first step to its last", milliseconds(live["regroup_ms"])], 2),
    ]
    facts = [
        ("All ranks finished", live["all_ranks_finished"]),
        ("parameters identical to the one-process reference", live["parameters_identical"]),
        ("same TCP connections from start to end", live["connections_unchanged"]),
    ]
    said = "; ".join(
        f'{what}: <b class="{"good" if holds else "bad"}">{"yes" if holds else "no"}</b>'
        for what, holds in facts
        if holds is not None
    )
    pace = (
        f"Its iterations went from {1000 * before:.0f} to {1000 * after:.0f} ms "
        f"(all-send model: {1000 * predicted['fragmented'][watched]:.0f} to "
        f"{1000 * predicted['regrouped'][watched]:.0f} ms on average over the job)."
        if before and after
        else ""
    )
    return (
        "<h2>Regrouping while the jobs train</h2>"
        f"<p>After {live['after_iterations']} iterations of the {text(watched)} job the controller moved "
        f"{live['fibres_moved']} fibres under both running jobs. {pace}</p><p>{said}.</p>"
        f"{picture(figures.get('live-regroup'))}"
        f"{table(['blackout', 'what it is', how_known(result)], rows, 2)}"
    )


def _variants(result: Mapping[str, Any]) -> str:
    if not result["variants"]:
        return ""
    rows = []
    for variant in result["variants"].values():
        job = variant["watched"]
        base = result["cases"].get(variant["case"])
        if base:
            rows.append(
                row(
                    [
                        f"as in case {text(variant['case'])}",
                        " ".join(base["jobs"][job]["fragmented"]["gpus"]),
                        number(base["completion_s"]["fragmented"], 1, " s"),
                        number(base["predicted"]["completion_s"]["fragmented"], 1, " s"),
                    ],
                    2,
                )
            )
        rows.append(
            row(
                [
                    text(variant["title"]),
                    " ".join(variant["jobs"][job]["gpus"]),
                    number(variant["completion_s"], 1, " s"),
                    number(variant["predicted"]["completion_s"], 1, " s"),
                ],
                2,
            )
        )
    head = [
        "fragmented run",
        "ring order of the watched job",
        f"completion {tag(how_known(result))}",
        f"all-send model {tag('analytic')}",
    ]
    return (
        "<h2>What the ring's order does</h2><p>The same GPUs on the same switches. An alternating ring "
        "crosses between the packet switches at every step, a contiguous one only once in each direction. "
        "The all-send model gives each job its share for good; where one computes, the others have more.</p>"
        f"{table(head, rows, 2)}"
    )


def _limits(scenario: Scenario, result: Mapping[str, Any]) -> str:
    points = [
        "GPU time is waiting of a fixed length; real GPUs vary and overlap computation with communication.",
        *(
            []
            if result["runtime"] == SIMULATED
            else [
                f"Traffic is TCP ({text(scenario.spec.tcp.congestion_control)}), not RDMA.",
                "The network trained is a small numpy model; its gradient is padded to the scaled size. "
                f"Losses show that training works, not how {text(scenario.spec.training.model)} would do.",
            ]
        ),
        "Seconds are those of the emulation. Ratios carry over to the real rates; absolute times do not.",
        *(
            ["Dark times are those of the emulated optical switches' profiles."]
            if scenario.fabric.optical_switches
            else []
        ),
    ]
    return limits(result, points, scenario.spec.paper)
