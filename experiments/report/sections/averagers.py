"""Averagers (OptINC): the bytes of their jobs, and what the processes that stand for them took."""

from __future__ import annotations

from ringlight.experiments.report.page import Columns, table_of, tag, text
from ringlight.experiments.report.view import Draw, Figures, View, cell

ORDER = 28
TITLE = "Averagers"
NEEDS = ("averager_inputs",)


def wanted(view: View) -> list[Figures]:
    return view.having("averager_inputs")


def render(view: View, draw: Draw) -> str:
    columns: Columns[Figures] = [
        ("arm", lambda at: text(at.title)),
        ("of a processor", cell("averager_cpu_share")),
        ("latency of a frame", cell("averager_latency")),
        ("inputs of the tables", cell("averager_inputs")),
        ("wrong", cell("averager_inputs_wrong")),
        ("answers checked", cell("averager_checked")),
        ("started again", cell("averager_restarts")),
    ]
    wire: Columns[Figures] = [
        ("arm", lambda at: text(at.title)),
        ("job", lambda at: text(at.name)),
        ("wire over payload", cell("wire_over_payload")),
        ("without headers", cell("sent_over_payload")),
        ("sums in a number's bits", cell("sent_over_payload_even")),
        ("answers unlike the mean", cell("answers_unlike_mean")),
        ("identical to one process", cell("parameters_identical")),
    ]
    return (
        "<p>An averager here is an electrical box that computes the photonic unit's function: a process that "
        "answers frames by a table of what the unit answers to every input. What it takes of a processor, "
        "and a frame's latency, are its own and no light's. Any other network that adds up gradients on "
        f"their way would show the same saving of bytes.{view.says('averagers')}</p>"
        f"{table_of(wanted(view), columns, 1)}{table_of(view.having('wire_over_payload'), wire, 2)}"
        '<p class="quiet">Of a processor: of one, during the all-reduces, the busiest averager. Wire over '
        "payload: bytes at the NIC port and in the direction with most, headers and acknowledgements "
        "included, over those of a rank's numbers, once; then without headers, as workers count, and so if a "
        "ring's sums of whole numbers had no more bits than these. Answers unlike the mean are counted in "
        "the process "
        f"that computes the same training by itself {tag(view.label)}.</p>"
    )
