"""The report's parts about rings of wavelengths: how the collectives compare, and the light between steps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from experiments.report.page import how_known, lower_first, number, of_paper, picture, row, table, tag, text
from fabric.units import format_rate, format_time
from scenarios.comparison import Comparison, nic_rate_bps, ring_of

if TYPE_CHECKING:
    from experiments.report.drawing import Plot


def rings(result: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """The fabrics of a result that have a ring."""
    return {name: found for name, found in result["fabrics"].items() if found["ring"]}


def headline(comparison: Comparison, result: Mapping[str, Any]) -> str:
    """Sets WRHT beside the other collectives on the same ring."""
    found = rings(result)
    ours = next((name for name in found if found[name]["collective"].startswith("wrht")), None)
    if ours is None:
        return f"All-reduce of {comparison.world_size} nodes on a ring of wavelengths"
    anew = _set_anew(comparison, found)
    kept = set(found) - anew if ours in anew else set()
    times = [
        f"{found[ours]['allreduce_s'] / other['allreduce_s']:.2f} times that of "
        f"{_spoken(other['collective'])}{' that keeps its light' if name in kept else ''}"
        for name, other in found.items()
        if name != ours and other["ring"]["wavelengths"] == found[ours]["ring"]["wavelengths"]
    ]
    said = f": {', '.join(times)} on the same fibre" if times else ""
    return f"WRHT's all-reduce of {comparison.world_size} nodes in {found[ours]['steps']} steps{said}"


def _set_anew(comparison: Comparison, names: Iterable[str]) -> set[str]:
    """The fabrics on whose ring every step sets all of its light anew."""
    rings = {name: ring_of(comparison.settings[name].fabric) for name in names}
    return {name for name, ring in rings.items() if ring is not None and ring.reconfigure == "each-step"}


def _spoken(collective: str) -> str:
    article = "" if collective.startswith(("halving", "recursive")) else "a "
    return article + collective.replace("-", " ")


def cards(result: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """One for the all-reduce of every fabric, one for the set-ups of each ring."""
    found = [
        (
            f"All-reduce, {text(name)}",
            f"{number(fabric['allreduce_s'], 2)} <small>s</small>",
            f"{fabric['steps']} steps; model {_model_s(fabric):.2f} s",
        )
        for name, fabric in result["fabrics"].items()
    ]
    set_ups = {name: fabric["ring"]["set_up_ms"] for name, fabric in rings(result).items()}
    name, slowest = max(
        ((name, spread) for name, spread in set_ups.items() if spread),
        key=lambda entry: float(entry[1]["p50"]),
        default=("", None),
    )
    if slowest:
        found.append(
            (
                f"Light set for a step, {text(name)}",
                f"{number(slowest['p50'], 1)} <small>ms median</small>",
                f"99 % within {number(slowest['p99'], 1)} ms; the slowest of the rings",
            )
        )
    return found


def _model_s(fabric: Mapping[str, Any]) -> float:
    """All-reduce by the model, with the set-ups that the run had."""
    set_up = fabric["ring"]["set_up_ms"] if fabric["ring"] else None
    if not set_up:
        return float(fabric["ideal_allreduce_s"])
    each_s = float(set_up["p50"]) / 1000
    return float(fabric["ideal_allreduce_s"] + fabric["ring"]["set_ups_per_allreduce"] * each_s)


def collectives(comparison: Comparison, result: Mapping[str, Any], figures: Mapping[str, Plot]) -> str:
    """The collectives side by side."""
    if not rings(result):
        return ""
    rows = []
    for name, fabric in result["fabrics"].items():
        ring = fabric["ring"]
        rows.append(
            row(
                [
                    text(name),
                    text(fabric["collective"]),
                    str(fabric["steps"]),
                    f"{ring['wavelengths_used']} of {ring['wavelengths']}" if ring else "–",
                    str(ring["set_ups_per_allreduce"]) if ring else "–",
                    number(1000 * fabric["allreduce_s"], 0, " ms"),
                    number(1000 * fabric["ideal_allreduce_s"], 0, " ms"),
                    number(1000 * _model_s(fabric), 0, " ms"),
                    number(fabric["allreduce_s"] / _model_s(fabric), 3),
                ],
                2,
            )
        )
    head = [
        "fabric",
        "all-reduce",
        "steps",
        "wavelengths",
        "light set",
        how_known(result),
        "model, no set-up",
        "model",
        "over model",
    ]
    how = tag(how_known(result))
    return (
        "<h2>The collectives</h2>"
        f"<p>{_described(result)}{_told_anew(comparison, result)}Light set: how often in one all-reduce the "
        "switches are set."
        f"{of_paper(comparison.spec.paper, 'collectives')}</p>"
        f"{picture(figures.get('allreduce'))}{table(head, rows, 2)}"
        f'<p class="quiet">Median all-reduce {how} and by the model {tag("analytic")}: transfers one step '
        "after the other at the full rate, without set-up and with the median one of the run.</p>"
    )


#: What a collective does, by the beginning of its name; the first that matches.
_COLLECTIVES = (
    (
        "wrht",
        "WRHT (wavelength reused hierarchical tree) cuts the ring into groups of up to 2w + 1 neighbours, "
        "w the wavelengths in each direction; all send their whole gradient to the middle of their group at "
        "once, then the middles do the same, and the sum goes back the same way. Few steps, but each carries "
        "the whole gradient: it pays where a step's set-up is long beside its transfer. ",
    ),
    (
        "ring",
        "A ring all-reduce has many steps of 1/N of the gradient and needs the same light in all of them. ",
    ),
    (
        "bidirectional-",
        "A bidirectional ring sends half of the gradient each way round, at once, and so uses both fibres. ",
    ),
)


def _described(result: Mapping[str, Any]) -> str:
    used = [fabric["collective"] for fabric in result["fabrics"].values()]
    return "".join(
        said for name, said in _COLLECTIVES if any(collective.startswith(name) for collective in used)
    )


def _told_anew(comparison: Comparison, result: Mapping[str, Any]) -> str:
    anew = _set_anew(comparison, rings(result))
    if not anew:
        return ""
    return (
        f"On {text(', '.join(name for name in rings(result) if name in anew))} every step sets all of its "
        "light anew, also what stands: the controller takes it away, then makes it again. "
    )


def light(comparison: Comparison, result: Mapping[str, Any], figures: Mapping[str, Plot]) -> str:
    """Which light each step has on every ring, how long it took to set, and what was counted."""
    found = rings(result)
    if not found:
        return ""
    name = next(iter(found))
    setting = comparison.settings[name]
    rate = format_rate(min(nic_rate_bps(setting, gpu) for gpu in setting.fabric.gpus))
    parts = "".join(_one(comparison, ring, fabric, figures) for ring, fabric in found.items())
    return (
        "<h2>The light</h2>"
        f"<p>{comparison.world_size} nodes in a ring of two fibres, one each way, each with wavelengths "
        f"of {rate} (emulated). A node sends to a given peer always by the same port and wavelength; what "
        "changes between steps is where its and the others' wavelength-selective switches drop or pass the "
        "light. The controller changes them all together, once every transfer of a step has been "
        f"acknowledged.</p>{parts}{_counted(found)}"
    )


def _one(comparison: Comparison, name: str, found: Mapping[str, Any], figures: Mapping[str, Plot]) -> str:
    ring = found["ring"]
    spans = []
    for what, spread in (
        ("end of a step's last transfer to the light of the next", ring["set_up_ms"]),
        ("of that, writing the switches and reading them back", ring["write_ms"]),
    ):
        if spread:
            spans.append(row([what, *(number(spread[q], 2, " ms") for q in ("p50", "p99", "max"))], 1))
    declared = ring.get("declared_ms")
    each = ring["set_ups_per_allreduce"]
    if not each:
        told = "With this collective the light is set once, before the first step."
    else:
        anew = name in _set_anew(comparison, [name])
        told = (
            f"The light {'was set anew' if anew else 'changed'} {ring['set_ups']:,} times in the run, {each} "
            "times in each all-reduce."
        )
        if declared is not None:
            told += (
                f" The switches' profile ({text(_profile(comparison, name))}) says {number(declared, 2)} ms."
            )
    set_ups = table(["set-up (emulated)", "median", "99 %", "longest"], spans, 1) if spans else ""
    return (
        f"<h3>{text(name)}: {text(lower_first(found['title']))}</h3>"
        f"{picture(figures.get(f'ring-{name}'))}<p>{told}</p>{set_ups}"
    )


def _profile(comparison: Comparison, name: str) -> str:
    fabric = comparison.settings[name].fabric
    ring = ring_of(fabric)
    assert ring is not None
    return fabric.optical_switches[ring.switches[0]].profile


def _counted(found: Mapping[str, Mapping[str, Any]]) -> str:
    """What the kernel counted, a column for each ring; nothing of a simulation."""
    counted = {name: fabric["light"] for name, fabric in found.items() if fabric["light"]}
    if not counted:
        return ""
    entries = [
        (
            "misdirected",
            "packets that the light brought to an O-NIC for which they were not meant; 0 is right",
        ),
        ("unset_drops", "packets on a wavelength that a switch sends nowhere; 0 is right"),
        ("dark_drops", "packets at a switch whose cross-connect was dark; 0 is right"),
        ("unrouted", "payload for a peer to which no port and wavelength lead; 0 is right"),
        ("light_tx_bytes", "bytes into the light, of packets, some headers included"),
    ]
    rows = [
        row([meaning, *(f"<b>{number(light[name], 0)}</b>" for light in counted.values())], 1)
        for name, meaning in entries
    ]
    head = table(["counted in the kernel", *(text(name) for name in counted)], rows, 1)
    return f"<h3>What was counted</h3>{head}"


_OF_EMULATION = (
    "Acknowledgements and everything else but payload take the control network.",
    "GPU time is waiting of a fixed length. Different collectives add in different orders, so their "
    "parameters may differ in the last bits; each is compared with the same order in one process.",
)


def limit_points(comparison: Comparison, result: Mapping[str, Any]) -> list[str]:
    """What a comparison over rings does not show, as HTML."""
    scale = comparison.spec.scale
    name = next(iter(rings(result)), None)
    found = None if name is None else rings(result)[name]["ring"]
    declared = found.get("declared_ms") if found else None
    said = (
        f" The profile's set-up, {format_time(declared / 1000 / scale.time)} in real time, is assumed."
        if declared is not None
        else ""
    )
    programs = (
        ""
        if how_known(result) == "simulated"
        else " Switches are programs; the controller sets them over their management protocol, which takes "
        "milliseconds and is not scaled."
    )
    return [
        f"<b>Optics.</b>{programs}{said} Nothing here is about optics itself: loss, crosstalk and reach play "
        "no part.",
        "The optical fabrics move in step: no rank begins a step before all have ended the last, because the "
        "light is set for all at once. On the packet switch a rank goes on when it can.",
        "A node has one port of the rate of ONE wavelength at the packet switch, and at the ring two ports "
        "with all wavelengths each. A ring all-reduce uses one wavelength, of one direction or, "
        "bidirectional, of both: striping it over all of them would make it that much quicker, and is not "
        "done here.",
        *([] if how_known(result) == "simulated" else _OF_EMULATION),
    ]
