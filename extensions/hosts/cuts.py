"""The hosts and cut fibres of a scenario file's fabrics, as a document and in words."""

from __future__ import annotations

from typing import Any

from ringlight.experiments.cli.common import echo
from ringlight.experiments.language.expand import Experiment
from ringlight.extensions.hosts.cut import Cut, cut
from ringlight.fabric.keys import plugged
from ringlight.fabric.units import format_rate


def cuts_of(experiment: Experiment, hosts: int) -> dict[str, Any]:
    """Return by its name where each fabric is cut if its lab is built on so many hosts, or why it is not."""
    settings = {plan.setting.name: plan.setting for plan in experiment.plans}
    documents: dict[str, Any] = {}
    for name, setting in settings.items():
        try:
            documents[name] = _document(
                cut(plugged(setting.fabric), hosts), setting.scale.rate
            )
        except ValueError as error:
            documents[name] = {"refused": str(error)}
    return documents


def _document(made: Cut, scale: float) -> dict[str, Any]:
    """Return a cut as JSON has it. ``scale``: divides rates, so that they are as emulated."""
    return {
        "hosts": made.hosts,
        "fibres": [
            {
                "number": fibre.number,
                "ends": [str(fibre.link.a), str(fibre.link.b)],
                "hosts": [1 + host for host in fibre.hosts],
                "emulated_bps": fibre.link.rate_bps / scale,
            }
            for fibre in made.fibres
        ],
        "crossing": [
            {"hosts": [1 + a, 1 + b], "emulated_bps": rate_bps / scale}
            for (a, b), rate_bps in made.crossing_bps.items()
        ],
    }


def show_cuts(documents: dict[str, Any]) -> None:
    """Print where fabrics are cut, as :func:`cuts_of` returns it."""
    for name, made in documents.items():
        if "refused" in made:
            echo(f"{name} cannot be cut: {made['refused']}")
            continue
        for number, nodes in enumerate(made["hosts"], 1):
            echo(f"{name}, host {number}: {' '.join(nodes)}")
        for pair in made["crossing"]:
            a, b = pair["hosts"]
            count = sum(sorted(fibre["hosts"]) == [a, b] for fibre in made["fibres"])
            fibres = f"{count} fibre" if count == 1 else f"{count} fibres"
            rate = format_rate(pair["emulated_bps"])
            echo(f"{name}, hosts {a} and {b}: {fibres}, {rate} each way as emulated")
