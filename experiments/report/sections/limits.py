"""What the run does not show: of the backend, of the fabrics, and of the paper that the file is after."""

from __future__ import annotations

from collections.abc import Iterator

from ringlight.experiments.report.page import listing, text
from ringlight.experiments.report.view import Draw, View
from ringlight.fabric.planes.choice import lit_planes
from ringlight.fabric.units import format_rate, format_time

ORDER = 93
TITLE = "What cannot be claimed"


def render(view: View, draw: Draw) -> str:
    paper = view.experiment.spec.paper
    about = {} if paper is None else paper.limits
    points = [
        *(_of_simulation(view) if view.simulated else _of_emulation(view)),
        *_of_light(view),
        *_of_scale(view),
        *(f"<b>{text(claim)}.</b> {text(why)}" for claim, why in about.items()),
    ]
    return listing(points)


def _of_simulation(view: View) -> Iterator[str]:
    yield "<b>Nothing here was measured: every figure of the runs was computed in virtual time.</b>"
    for left in view.environment.get("left_out") or ():
        yield f"Left out: {text(left)}"
    yield "GPU time is of a fixed length; real GPUs vary."


def _of_emulation(view: View) -> Iterator[str]:
    if view.environment.get("runtime") == "namespace":
        yield (
            "<b>The workers ran in network namespaces, not in containers: there was no isolation of memory "
            "or files, and nothing here shows what containers would have done.</b>"
        )
    yield "GPU time is waiting of a fixed length; real GPUs vary."
    yield (
        "The network trained is a small numpy model on 8 × 8 digits, its gradient padded to the scaled "
        "size. Equal parameters show that the fabrics sum alike, not what the named model would "
        "reach. Traffic is TCP."
    )


def _of_light(view: View) -> Iterator[str]:
    asked = [s for s in view.settings if any(plane.asked for plane in lit_planes(s.fabric))]
    if asked and not view.simulated:
        tuning = max(onic.tuning_s for setting in asked for onic in setting.fabric.onics.values())
        yield (
            f"<b>{format_time(tuning)} tuning.</b> A laser is retuned by one write to a table in the kernel; "
            "what is seen here is the handshake of two processes. Nothing here measures optics."
        )
        yield (
            "<b>Handshakes.</b> They are not scaled with the rates: the agents' own time stands for "
            f"1/{view.scale.time:g} of itself, so a real control network may be faster or slower."
        )
        yield (
            "Acknowledgements of light take the control network, as the light of a port goes one way; on a "
            "packet switch they share the port."
        )
    if asked and any(s.fabric.packet_switches for s in view.settings):
        most = max(onic.ports for setting in asked for onic in setting.fabric.onics.values())
        if most > 1:
            yield (
                f"A node has one port at the packet switch and {most} on the grid, each at the same rate. "
                "One step uses one port; where a rank can begin the next step early, it sends on both at "
                "once, which the packet switch cannot give it. That hides a part of the set-ups."
            )
    if any(plane.stepped for setting in view.settings for plane in lit_planes(setting.fabric)):
        yield (
            "<b>Optics.</b> Loss, crosstalk and reach play no part."
            + (
                ""
                if view.simulated
                else " Switches are programs; the controller sets them over their management protocol, which "
                "takes milliseconds and is not scaled."
            )
        )
        yield (
            "Ranks on a ring of wavelengths move in step: none begins a step before all have ended the last, "
            "because the light is set for all at once. On a packet switch a rank goes on when it can."
        )
        yield (
            "A node has one port of the rate of one wavelength at a packet switch, and on a ring two ports "
            "with all wavelengths each. Striping an all-reduce over all of them is not done here."
        )


def _of_scale(view: View) -> Iterator[str]:
    scale = view.scale
    if scale.rate != 1:
        fabrics = [setting.fabric for setting in view.settings]
        rates = {link.rate_bps for fabric in fabrics for link in (*fabric.links, *fabric.cables)}
        top = max(rates, default=0.0)
        if top:
            yield (
                f"<b>{format_rate(top)}.</b> What runs here is {format_rate(top / scale.rate)}: rates are "
                f"divided by {scale.rate:g}."
            )
    yield "Seconds are those of the emulation. Ratios carry over to the real rates; times do not."
