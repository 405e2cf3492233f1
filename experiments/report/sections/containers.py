"""Jobs that ran containers of one's own: how they ended, when light was moved, what went over the links."""

from __future__ import annotations

from ringlight.experiments.report.page import table_of, tag, text
from ringlight.experiments.report.view import Draw, Figures, View, cell

ORDER = 29
TITLE = "Containers"
NEEDS = ("commands_failed",)


def render(view: View, draw: Draw) -> str:
    ran = [at for at in view.each("job") if at.value("commands_failed") is not None]
    columns = [
        ("job", lambda at: text(at.name)),
        ("image", _image),
        ("commands that failed", cell("commands_failed")),
        ("start, first to last", cell("start_spread")),
        ("light moved", cell("regroups_under")),
        ("NICs sent", cell("nic_sent")),
        ("NICs received", cell("nic_received")),
    ]
    links = [
        ("job, link", lambda at: text(at.subject.removeprefix("traffic "))),
        ("bytes", cell("link_bytes")),
    ]
    every = list(view.each("traffic"))
    carried = [at for at in every if at.value("link_bytes")]
    silent = len(every) - len(carried)
    shown = table_of(ran, columns, 2, group=lambda at: text(at.title))
    over = table_of(carried, links, group=lambda at: text(at.title))
    return (
        f'{shown}{over}<p class="quiet">All {tag(view.label)}. Bytes are those of frames, by the counters of '
        "NICs and of packet switches' ports, from the release to the end; those of another job that ran "
        "meanwhile are among them on links that both used. "
        f"{silent} directions of links that carried nothing are left out; rows.csv has them.</p>"
    )


def _image(at: Figures) -> str:
    container = at.view.plans[at.arm].job(at.name).container
    return text("" if container is None else container.image)
