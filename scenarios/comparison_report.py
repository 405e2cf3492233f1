"""The report of a comparison: one HTML page that a person reads without the run folder or a network."""

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
from fabric.units import format_rate, format_size, format_time
from scenarios import ring_report
from scenarios.comparison import Comparison, grid_of, nic_rate_bps

if TYPE_CHECKING:
    from experiments.report.drawing import Plot

_POSSIBLE = {True: "possible here", False: "impossible by construction"}
_NOTHING = {"collisions": 0, "receiver_overlaps": 0}


def render(
    comparison: Comparison, result: Mapping[str, Any], environment: Mapping[str, Any], plots: Sequence[Plot]
) -> str:
    """The page. ``result`` is the object of result.json, ``plots`` what was drawn."""
    figures = {plot.name: plot for plot in plots}
    parts = [
        _header(comparison, result),
        hero(_cards(result)),
        ring_report.collectives(comparison, result, figures),
        _training_time(comparison, result, figures),
        _side_by_side(result),
        _same_training(comparison, result),
        *(_light(comparison, name, result, figures) for name in result["fabrics"]),
        ring_report.light(comparison, result, figures),
        _troubles(result, figures),
        _sweep(comparison, result, figures),
        fidelity(comparison.compute_s, result),
        _limits(comparison, result, environment),
        settings(comparison, result),
        environment_footer(environment, comparison.spec.paper),
    ]
    return page(f"Ringlight: {comparison.spec.name}", parts)


def _has_rings(comparison: Comparison) -> bool:
    return any(setting.fabric.rings for setting in comparison.settings.values())


def _header(comparison: Comparison, result: Mapping[str, Any]) -> str:
    grids = [grid for s in comparison.settings.values() if (grid := grid_of(s.fabric)) is not None]
    gpus = max(sum(map(len, comparison.jobs(name).values())) for name in comparison.settings)
    chips: list[tuple[str, object]] = [("GPUs", gpus)]
    shapes = [f"{grid.rows} × {grid.columns}, {grid.wavelengths} wavelengths" for grid in grids]
    chips += [("grid", shape) for shape in dict.fromkeys(shapes)]
    rings = {ring.wavelengths for s in comparison.settings.values() for ring in s.fabric.rings.values()}
    if rings:
        chips.append(("wavelengths", ", ".join(map(str, sorted(rings)))))
    chips += [("fabrics", len(comparison.settings))]
    return header(comparison, result, _headline(comparison, result), chips)


def _headline(comparison: Comparison, result: Mapping[str, Any]) -> str:
    sweep = result["sweep"]
    if sweep:
        return "How slow may a handshake be before switching light per flow stops paying?"
    if not result["comparison"]:
        return "One training on several fabrics"
    if _has_rings(comparison):
        return ring_report.headline(comparison, result)
    name, ratio = max(
        result["comparison"]["ratios"].items(), key=lambda entry: float(entry[1]["training_time"])
    )
    if any(found["jobs"] for found in result["fabrics"].values()):
        return _headline_of_jobs(result, name, float(ratio["iteration"]))
    title = comparison.spec.fabrics[name].title
    base = lower_first(comparison.spec.fabrics[comparison.spec.baseline].title)
    time = float(ratio["training_time"])
    if abs(time - 1) < 0.01:
        return f"{title}: training takes as long as on {base}, to within 1 %"
    return f"{title}: training takes {time:.3f} times as long as on {base}"


def _headline_of_jobs(result: Mapping[str, Any], name: str, ratio: float) -> str:
    jobs = result["fabrics"][name]["jobs"] or {}
    first, *others = jobs or ["the job"]
    beside = f"With {' and '.join(others)} on the same switches" if others else "On its own"
    if abs(ratio - 1) < 0.01:
        return f"{beside}, an iteration of {first} takes as long as alone, to within 1 %"
    return f"{beside}, an iteration of {first} takes {ratio:.3f} times as long as alone"


def _side_by_side(result: Mapping[str, Any]) -> str:
    """Several jobs on one fabric at once: none when every fabric has one."""
    shared = {name: found for name, found in result["fabrics"].items() if found["jobs"]}
    if not shared:
        return ""
    base = result["fabrics"][result["comparison"]["baseline"]] if result["comparison"] else None
    rows, parts = [], []
    for name, found in shared.items():
        for job, mine in found["jobs"].items():
            identical = mine["parameters_identical"]
            rows.append(
                row(
                    [
                        f"{text(job)} on {text(name)}",
                        text(", ".join(mine["gpus"])),
                        number(1000 * mine["iteration_s"], 1, " ms"),
                        number(1000 * mine["allreduce_s"], 1, " ms"),
                        number(mine["iteration_s"] / base["iteration_s"], 4) if base else "–",
                        number(mine["allreduce_s"] / base["allreduce_s"], 4) if base else "–",
                        "–" if identical is None else _yes(identical),
                    ],
                    2,
                )
            )
        lit = found["lit"]
        if lit is not None:
            kept = "none leads" if not lit["between_jobs"] else f"<b>{lit['between_jobs']} lead</b>"
            parts.append(
                f"<p>On {text(name)} the WSSs, read back while the jobs ran, let {lit['pairs']} wavelengths "
                f"through; {kept} from a node of one job to a node of another {tag('measured')}.</p>"
            )
    head = [
        "job",
        "GPUs",
        "iteration",
        "all-reduce",
        "iteration over alone",
        "all-reduce over alone",
        "as in one process",
    ]
    return (
        "<h2>Jobs side by side</h2><p>The arbiter sets each WSS so that light of a job's nodes reaches nodes "
        "of that job only. The jobs train at once, each with a seed of its own, so that anything that went "
        f"from one to the other would show in its parameters.</p>{table(head, rows, 2)}{''.join(parts)}"
    )


def _could_show(result: Mapping[str, Any], ratios: Mapping[str, Any]) -> str:
    """How small a slowdown the runs could have shown."""
    parts = []
    for name, ratio in ratios.items():
        told = ratio["told_apart"]
        if told is None:
            continue
        least, exchange = told["iteration"]["half_width"], told["allreduce"]
        set_up = told["setup_us"]
        flow = f", a set-up of {set_up:.0f} µs for every flow in real time" if set_up is not None else ""
        parts.append(
            f"<p>What {text(name)} could have shown: from how far its iterations and those of "
            f"{text(result['comparison']['baseline'])} lie apart (95 %), a training slower by less than "
            f"{100 * least:.2f} %{flow}, could not be told from one that is not. The all-reduce alone, last "
            f"rank to last rank, took {exchange['ratio']:.4f} times as long, ± {exchange['half_width']:.4f} "
            f"{tag('measured')}.</p>"
        )
    return "".join(parts)


def _cards(result: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    cards = []
    compared = result["comparison"]
    if ring_report.rings(result):
        cards += ring_report.cards(result)
    elif compared:
        published = (compared["published"] or {}).get("ratios", {})
        for name, ratio in compared["ratios"].items():
            remarks = [f"paper {published[name]:.4f}"] if name in published else []
            remarks += [f"limit {compared['limit']:g}"] if compared["limit"] is not None else []
            remarks.append(f"model {ratio['predicted']['training_time']:.4f}")
            cards.append(
                (
                    f"Training time, {text(name)} over {text(compared['baseline'])}",
                    f"{ratio['training_time']:.4f}",
                    ", ".join(remarks),
                )
            )
    for name, found in result["fabrics"].items():
        flows, light = found["flows"], found["light"]
        if flows:
            cards.append(
                (
                    f"Set-up of a flow, {text(name)}",
                    f"{number(flows['setup_ms']['p50'], 2)} <small>ms median</small>",
                    f"99 % within {number(flows['setup_ms']['p99'], 2)} ms, {flows['count']:,} flows",
                )
            )
        if flows and light and found["payload"]:
            cards.append(
                (
                    f"Collisions, {text(name)}",
                    f"{light['collisions']}",
                    f"{_POSSIBLE[found['light_use']['collisions_possible']]}; "
                    f"{light['receiver_overlaps']} receiver overlaps, "
                    f"{found['payload']['lost_bytes']} bytes of payload lost",
                )
            )
    if result["sweep"]:
        for found in result["sweep"]["break_even"]:
            measured = found["stands_for_ms"]
            cards.append(
                (
                    f"Break-even, {found['real_gradient_bytes'] / 1e6:g} MB",
                    f"{number(measured, 3)} <small>ms</small>",
                    f"set-up of a flow in real time; model {found['analytic_stands_for_ms']:.3f} ms",
                )
            )
    return cards


def _training_time(comparison: Comparison, result: Mapping[str, Any], figures: Mapping[str, Plot]) -> str:
    compared = result["comparison"]
    ratios = compared["ratios"] if compared else {}
    published = (compared or {}).get("published") or {}
    rows = []
    for name, found in result["fabrics"].items():
        ratio = ratios.get(name)
        n = len(found["repeats"])
        predicted = found["predicted"]
        rows.append(f'<tr class="group"><td colspan="6">{text(found["title"])}</td></tr>')
        rows.append(
            row(
                [
                    f"{text(name)} {tag(how_known(result) + (f', median of {n}' if n > 1 else ''))}",
                    number(found["completion_s"], 2, " s"),
                    number(1000 * found["iteration_s"], 1, " ms"),
                    number(1000 * found["allreduce_s"], 1, " ms"),
                    number(found["over_model"], 4),
                    number(ratio["training_time"], 4) if ratio else "1",
                ],
                1,
                "strong",
            )
        )
        if n > 1 and ratio:
            each = ", ".join(f"{value:.4f}" for value in ratio["repeats"])
            rows.append(
                row(
                    [
                        f"single runs {tag(how_known(result))}",
                        "",
                        "",
                        "",
                        "",
                        f"{each} (spread {ratio['spread']:.4f})",
                    ],
                    1,
                )
            )
        with_setup = predicted.get("with_measured_setup_s")
        rows.append(
            row(
                [
                    f"model{', with the set-up above' if with_setup else ''} {tag('analytic')}",
                    number(with_setup or predicted["completion_s"], 2, " s"),
                    "",
                    number(1000 * found["ideal_allreduce_s"], 1, " ms *"),
                    number((with_setup or predicted["completion_s"]) / predicted["completion_s"], 4),
                    number(ratio["predicted"]["training_time"], 4) if ratio else "1",
                ],
                1,
            )
        )
        if name in published.get("training_time_s", {}):
            minutes = published["training_time_s"][name] / 60
            rows.append(
                row(
                    [
                        f"paper {tag('published')}",
                        number(minutes, 1, " min"),
                        "",
                        "",
                        "",
                        number(published["ratios"].get(name, 1.0), 4) if name in published["ratios"] else "1",
                    ],
                    1,
                )
            )
    head = ["training", "time", "iteration", "all-reduce", "over a perfect network", "ratio"]
    said = of_paper(comparison.spec.paper, "training_time")
    verdicts = "".join(
        f'<p>The limit of {compared["limit"]:g} is <b class="{"good" if ratio["within_limit"] else "bad"}">'
        f"{'kept' if ratio['within_limit'] else 'not kept'}</b> by {text(name)}: training time "
        f"{ratio['training_time']:.4f}, median iteration {ratio['iteration']:.4f}.</p>"
        for name, ratio in ratios.items()
        if compared["limit"] is not None
    )
    return (
        "<h2>Training time</h2><p>From the common release of all ranks to the end of the last rank's last "
        "iteration; iteration and all-reduce are medians over ranks and iterations, waiting for slower ranks "
        f"included.{said} A perfect network sends every step at the port's rate and loses no time between "
        f"steps {tag('analytic')}.</p>{verdicts}{_could_show(result, ratios)}"
        f"{_quicker(comparison, ratios, result)}{table(head, rows, 1)}"
        '<p class="quiet">* without set-up, steps one after the other.</p>'
        f"{picture(figures.get('iterations'))}"
        "<p><code>trace.json</code> in the run folder has every iteration, every flow and every change of "
        "light of all runs; ui.perfetto.dev opens it.</p>"
    )


def _quicker(comparison: Comparison, ratios: Mapping[str, Any], result: Mapping[str, Any]) -> str:
    """Says what a ratio below 1 of a grid over a packet switch is not."""
    base = comparison.settings[comparison.spec.baseline].fabric
    names = [
        name
        for name, ratio in ratios.items()
        if ratio["training_time"] < 1 and comparison.settings[name].fabric.grids
    ]
    if not names or not base.packet_switches or how_known(result) == "simulated":
        return ""
    return (
        f"<p>That {text(', '.join(names))} took less time is no speed-up by light: the emulated packet "
        f"switch (Open vSwitch) adds delay of its own to each step{_two_ports(comparison, names)}.</p>"
    )


def _two_ports(comparison: Comparison, names: Sequence[str]) -> str:
    fabrics = [comparison.settings[name].fabric for name in names]
    if all(onic.ports == 1 for fabric in fabrics for onic in fabric.onics.values()):
        return ""
    return (
        ", and a node has two ports on a grid of rows and columns, which it uses at once where one step can "
        "begin before the other has ended"
    )


def _yes(holds: bool) -> str:
    return f'<b class="{"good" if holds else "bad"}">{"yes" if holds else "no"}</b>'


def _same_training(comparison: Comparison, result: Mapping[str, Any]) -> str:
    if how_known(result) == "simulated":
        return ""
    rows = []
    for name, found in result["fabrics"].items():
        payload = found["payload"]
        digest = found["parameters_sha256"]
        rows.append(
            row(
                [
                    text(name),
                    f"<code>{text(digest[:12])}</code>" if digest else "–",
                    _yes(found["parameters_identical"]),
                    _loss(found),
                    "–" if found["accuracy"] is None else f"{100 * found['accuracy']:.2f} %",
                    format_size(payload["received_bytes"]),
                    number(payload["lost_bytes"], 0),
                    number(payload["retransmitted_segments"], 0),
                ],
                2,
            )
        )
    head = [
        "fabric",
        "parameters",
        "all alike",
        "loss",
        "accuracy",
        "payload",
        "bytes lost",
        "sent again",
    ]
    compared = result["comparison"]
    said = ""
    if compared:
        several = len({found["collective"] for found in result["fabrics"].values()}) > 1
        where = (
            "over all ranks and in one process, on every fabric (collectives that add in another order may "
            "end in other last bits; fabrics with the same one agree)"
            if several
            else "on all fabrics and in one process"
        )
        said = (
            f"<p>Final parameters bit-identical {where}: "
            f"{_yes(compared['parameters_identical'])}; accuracy equal: {_yes(compared['accuracy_equal'])}."
        )
        accuracies = (compared["published"] or {}).get("accuracy_percent")
        if accuracies:
            each = ", ".join(f"{name} {value:g} %" for name, value in accuracies.items())
            said += f" Published: {each}{of_paper(comparison.spec.paper, 'same_training')}."
        said += "</p>"
    return (
        f"<h2>Is it the same training?</h2>{said}{table(head, rows, 2)}"
        '<p class="quiet">All measured. Parameters: the first digits of their SHA-256. All alike: every rank '
        "and the same training in one process ended with them, bit by bit. A byte is lost when its rank "
        "sent it and the peer did not get it; what the network drops TCP sends again, counted in "
        "segments.</p>"
    )


def _loss(found: Mapping[str, Any]) -> str:
    if found["loss_first"] is None:
        return "–"
    return f"{found['loss_first']:.2f} → {found['loss_last']:.2f}"


def _light(comparison: Comparison, name: str, result: Mapping[str, Any], figures: Mapping[str, Plot]) -> str:
    found = result["fabrics"][name]
    light, flows = found["light"], found["flows"]
    if light is None or found["ring"]:
        return ""
    rows = _light_rows(light)
    per_flow = light["messages_per_flow"]
    setting = comparison.settings[name]
    rate = format_rate(min(nic_rate_bps(setting, gpu) for gpu in setting.fabric.gpus))
    set_up = ""
    if flows:
        spans = [
            ("request to light, all flows", flows["setup_ms"]),
            ("request to light, receiver idle", flows["idle_setup_ms"]),
            ("worker's wish to light (own transmitter's queue too)", flows["open_ms"]),
            ("light to close (payload sent and acknowledged)", flows["lit_ms"]),
        ]
        cells = [row([what, *(_fine_ms(span[q]) for q in ("p50", "p99", "max"))], 1) for what, span in spans]
        told = f", {per_flow:.2f} control messages per flow" if per_flow is not None else ""
        missing = flows["expected"] - flows["count"]
        lost = f" {missing} flows are not in the traces." if missing else ""
        set_up = (
            f"<h3>Set-up of flows</h3><p>{flows['count']:,} flows, {flows['per_iteration']:.0f} per "
            f"iteration{told}; {flows['waited']:,} stood in a queue at the sender or the receiver.{lost}</p>"
            f"{table(['time of a flow', 'median', '99 %', 'longest'], cells, 1)}"
            f"{picture(figures.get(f'setup-{name}'))}"
        )
    return (
        f"<h2>The light on {text(name)}</h2>"
        "<p>The arbiter set the WSSs once, before the job. From then on the O-NICs' agents alone decide: a "
        "flow asks the receiver, tunes its laser, sends at the port's rate, and lets go. A port carries "
        f"{rate} (emulated).</p><p>{text(str(comparison.light_use(name)))} {tag('analytic')}"
        f"{_waited(flows)}</p>"
        f"{picture(figures.get(f'grid-{name}'))}{picture(figures.get(f'flows-{name}'))}"
        f"{set_up}<h3>What {'the agents' if how_known(result) == 'simulated' else 'the kernel'} counted</h3>"
        f"{table(['counter', 'count', 'what it is'], rows, 9)}"
    )


def _waited(flows: Mapping[str, Any] | None) -> str:
    if not flows:
        return ""
    return f" In this run {flows['waited']:,} of {flows['count']:,} flows stood in a queue."


def _fine_ms(value: float | None) -> str:
    return number(value, 2 if value is not None and value < 10 else 1, " ms")


def _light_rows(light: Mapping[str, Any]) -> list[str]:
    entries = [
        ("collisions", "two transmitters at one receiver on one wavelength at once; 0 in a correct run"),
        (
            "receiver_overlaps",
            "two transmitters at one receiver at once, whatever the wavelength; 0 in a correct run",
        ),
        ("misdirected", "packets that the light brought to an O-NIC for which they were not meant"),
        ("dark_drops", "packets at a WSS while their laser was dark or tuning; TCP sends them again"),
        ("unset_drops", "packets on a wavelength that the WSS sends nowhere"),
        ("unrouted", "payload for a peer that no port leads to"),
    ]
    entries.append(("light_tx_bytes", "bytes into the light, of packets, some headers included"))
    return [
        row([name.replace("_", " "), f"<b>{number(light[name], 0)}</b>", meaning], 9)
        for name, meaning in entries
        if light[name] is not None
    ]


def _troubles(result: Mapping[str, Any], figures: Mapping[str, Plot]) -> str:
    if not result["trouble"]:
        return ""
    rows = []
    for name, found in result["trouble"].items():
        spans = found["iteration_s"]
        light = found["light"] or _NOTHING
        rows.append(
            row(
                [
                    text(name),
                    *(
                        number(None if spans[when] is None else 1000 * spans[when], 0, " ms")
                        for when in ("undisturbed_run", "before", "during", "after")
                    ),
                    _yes(found["parameters_identical"]),
                    f"{light['collisions']}, {light['receiver_overlaps']}",
                    number(found["payload"]["lost_bytes"], 0),
                    number(found["payload"]["retransmitted_segments"], 0),
                ],
                1,
            )
        )
    head = [
        "run",
        "iteration usually",
        "before",
        "during",
        "after",
        "all alike",
        "collisions, overlaps",
        "bytes lost",
        "sent again",
    ]
    parts = []
    for name, found in result["trouble"].items():
        said = []
        if found["away_s"] is not None:
            said.append(f"It was away for {found['away_s']:.1f} s, until it answered again.")
        if found["quarantine_s"] is not None:
            said.append(
                "A new agent cannot know what the dead one had granted, so it grants nothing for one lease "
                f"and its guard, {found['quarantine_s']:.1f} s as emulated: that is what its peers wait for."
            )
        if found["during_over_before"] is not None:
            said.append(
                f"Iterations meanwhile took {found['during_over_before']:.3f} times as long as before."
            )
        longest = found["longest_iteration_s"]["during"]
        if longest is not None:
            said.append(f"The longest of them took {1000 * longest:.0f} ms.")
        faults = found["control_network"]
        if faults and any(found["control"].values()):
            each = ", ".join(f"{count} {what}" for what, count in faults.items() if count)
            said.append(f"Of the control messages, on purpose: {each or 'none disturbed'}.")
        parts.append(
            f"<h3>{text(found['title'])}</h3><p>{' '.join(said)}</p>{picture(figures.get(f'trouble-{name}'))}"
        )
    return (
        "<h2>When things go wrong</h2><p>The job once more, with something killed (SIGKILL) while it trains. "
        "Iterations are medians over the slowest rank; those that overlap the absence count as during. All "
        f"measured.</p>{table(head, rows, 1)}{''.join(parts)}"
    )


def _left_against_the_model(sweep: Mapping[str, Any]) -> str:
    """Why the measured break-even is another than the model's, in factors of the measured lines."""
    rows = [
        row(
            [
                f"{found['real_gradient_bytes'] / 1e6:g} MB",
                number(1000 * found["ideal_allreduce_s"], 2, " ms"),
                number(1000 * found["free_allreduce_s"], 2, " ms"),
                number(1000 * found["baseline_allreduce_s"], 2, " ms"),
                number(found["free_allreduce_s"] / found["ideal_allreduce_s"], 3),
                f"{found['waits']:.2f} of {sweep['steps']}",
                number(found["stands_for_ms"] / found["analytic_stands_for_ms"], 2),
                number(found["over_baseline_stands_for_ms"], 3, " ms"),
            ],
            1,
        )
        for found in sweep["break_even"]
    ]
    head = [
        "gradient",
        "perfect",
        "light",
        "packet switch",
        "light/perfect",
        "set-ups",
        "over model",
        "over packet switch",
    ]
    return (
        "<h3>What is left against the model</h3><p>A straight line through the points of a gradient "
        "gives the all-reduce on the light without any set-up and how many set-ups it waits for, one "
        "after another. The model takes a perfect network and one set-up in each step, so the "
        "break-even is the model's times light/perfect times steps over set-ups. Over the packet switch as "
        "it was measured it is another, as that adds delay of its own, which is no merit of the "
        "light. All-reduces as emulated, the last column in real time.</p>"
        f"{table(head, rows, 1)}"
    )


def _sweep(comparison: Comparison, result: Mapping[str, Any], figures: Mapping[str, Plot]) -> str:
    sweep = result["sweep"]
    if not sweep:
        return ""
    tolerance = sweep["tolerance"]
    rows = []
    for found in sweep["break_even"]:
        beyond = found["setup_ms"] < found["least_measured_setup_ms"]
        cell = f"{found['setup_ms']:.2f} ms{' (extrapolated)' if beyond else ''}"
        rows.append(
            row(
                [
                    f"{found['real_gradient_bytes'] / 1e6:g} MB",
                    format_size(found["least_flow_bytes"] * comparison.spec.scale.payload),
                    cell,
                    number(found["stands_for_ms"], 3, " ms"),
                    number(found["analytic_stands_for_ms"], 3, " ms"),
                    number(found["analytic_with_compute_stands_for_ms"], 2, " ms"),
                ],
                1,
            )
        )
    head = [
        "gradient",
        "smallest flow",
        f"emulated {tag(how_known(result))}",
        f"real {tag(how_known(result))}",
        f"model {tag('analytic')}",
        f"with compute {tag('analytic')}",
    ]
    points = [
        row(
            [
                f"{p['real']['gradient_bytes'] / 1e6:g} MB",
                format_time(p["real"]["control_delay_s"]),
                format_time(p["real"]["tuning_s"]),
                f"{p['setup_ms']:.2f} ms",
                f"{1000 * p['allreduce_s']:.1f} ms",
                f"{p['slowdown']:.3f}",
                f"{p['analytic_slowdown']:.3f}",
                number(p["collisions"], 0),
            ],
            1,
        )
        for p in sweep["points"]
    ]
    point_head = [
        "gradient",
        "control delay (real, one way)",
        "tuning (real)",
        "set-up, emulated",
        "all-reduce, emulated",
        f"slowdown {tag(how_known(result))}",
        f"model {tag('analytic')}",
        "collisions",
    ]
    return (
        "<h2>Where switching per flow stops paying</h2>"
        f"<p>Said to pay here as long as the all-reduce takes at most {tolerance:g} times as long as it "
        f"would without any set-up. The {result['settings']['collective']} all-reduce has {sweep['steps']} "
        "steps, each of which waits for one set-up: request, grant, tuning. The table gives the set-up at "
        "which that is reached, as measured and by the model. The last column takes the set-up "
        f"against a whole iteration with {format_time(comparison.compute_s / comparison.time_scale)} of "
        "compute before it, as in training: then far more may be lost in each step.</p>"
        f"{picture(figures.get('sweep'))}{table(head, rows, 1)}{_left_against_the_model(sweep)}"
        f"<details><summary>All points</summary>{table(point_head, points, 1)}</details>"
    )


def _limits(comparison: Comparison, result: Mapping[str, Any], environment: Mapping[str, Any]) -> str:
    """What the page does not show, from the fabrics themselves, and what the scenario says of its paper."""
    emulated = how_known(result) != "simulated"
    points = ring_report.limit_points(comparison, result) if _has_rings(comparison) else []
    if not _has_rings(comparison):
        points += _limits_of_rates(comparison) if emulated else []
        points.append("GPU time is waiting of a fixed length; real GPUs vary.")
    if emulated:
        points += _limits_of_grids(comparison, environment)
        points.append(
            "The network trained is a small numpy model on 8 × 8 digits, its gradient padded to the scaled "
            "size. Equal accuracy shows that the fabrics sum alike, not what "
            f"{text(comparison.spec.training.model)} would reach. Traffic is TCP."
        )
    points.append("Seconds are those of the emulation. Ratios carry over to the real rates; times do not.")
    return limits(result, points, comparison.spec.paper)


def _limits_of_rates(comparison: Comparison) -> list[str]:
    rate_bps = next(
        nic_rate_bps(setting, gpu) for setting in comparison.settings.values() for gpu in setting.fabric.gpus
    )
    if comparison.rate_scale == 1:
        return []
    return [
        f"<b>{format_rate(rate_bps * comparison.rate_scale)}.</b> A port carries {format_rate(rate_bps)}, on "
        "every fabric."
    ]


def _limits_of_grids(comparison: Comparison, environment: Mapping[str, Any]) -> list[str]:
    """Of fabrics whose O-NICs switch for every flow; none otherwise."""
    grids = [grid for s in comparison.settings.values() if (grid := grid_of(s.fabric)) is not None]
    if not grids:
        return []
    fabrics = [setting.fabric for setting in comparison.settings.values() if setting.fabric.grids]
    tuning = max(onic.tuning_s for fabric in fabrics for onic in fabric.onics.values())
    timings: Mapping[str, Any] = next(iter((environment.get("onic_timings") or {}).values()), {})
    as_set = timings.get("tuning_s")
    tuned = f" (set to {format_time(as_set)} as emulated)" if as_set is not None else ""
    points = [
        f"<b>{format_time(tuning)} tuning.</b> A laser is retuned by one write to a table in the "
        f"kernel{tuned}; what is seen here is the handshake of two processes. Nothing here measures optics.",
        "<b>Handshakes.</b> They are not scaled with the rates: the agents' own time stands for "
        f"1/{comparison.spec.scale.time:g} of itself, so a real control network may be faster or slower.",
    ]
    most = max(onic.ports for fabric in fabrics for onic in fabric.onics.values())
    if most > 1 and any(setting.fabric.packet_switches for setting in comparison.settings.values()):
        points.append(
            f"A node has one port at the packet switch and {most} on the grid, each at the same rate. One "
            "step uses one port; where a rank can begin the next step early, it sends on both at once, "
            "which the packet switch cannot give it. That hides a part of the set-ups."
        )
    points.append(
        "Acknowledgements of light take the control network, as the light of a port goes one way; on a "
        "packet switch they share the port."
    )
    return points
