"""Report what the network between hosts gave."""

from __future__ import annotations

from ringlight.experiments.report.page import table_of, text
from ringlight.experiments.report.sections import section
from ringlight.experiments.report.view import Draw, View
from ringlight.fabric.units import format_rate, format_time


@section("fidelity", "The network between hosts", folded=True)
def network(view: View, draw: Draw) -> str:
    """Return HTML with the network between hosts, measured before labs over several came up; else empty."""
    shown = table_of(
        view.fidelity.get("network", ()),
        [
            ("from", lambda way: text(way["a"])),
            ("to", lambda way: text(way["b"])),
            ("largest packet", lambda way: f"{way['mtu_bytes']} bytes"),
            ("rate, or more", lambda way: format_rate(way["rate_bps"])),
            ("round trip", lambda way: format_time(way["round_trip_s"])),
        ],
        2,
    )
    about = "<p>Measured before the labs came up. A rate is looked for up to twice what fibres need.</p>"
    return f"{about}{shown}" if shown else ""
