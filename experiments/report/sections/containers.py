"""Jobs of users' containers: how they ended, when light was moved, and the links' traffic."""

from __future__ import annotations

from ringlight.experiments.record.outputs import Written
from ringlight.experiments.report.page import Columns, folded, table_of, tag, text
from ringlight.experiments.report.view import Draw, Figures, View, cell
from ringlight.fabric.units import format_size

ORDER = 29
TITLE = "Containers"
NEEDS = ("commands_failed",)
#: Characters of a last line that are shown beside others.
_LONGEST, _NEWLINE = 160, "\n"


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
    if over:
        over = folded(f"Bytes over {len(carried)} directions of links", over)
    return (
        f'{shown}{_outputs(view)}{over}<p class="quiet">All {tag(view.label)}. Bytes are those of frames, by '
        "the counters of NICs and of packet switches' ports, from the release to the end; those of another "
        "job that ran meanwhile are among them on links that both used. "
        f"{silent} directions of links that carried nothing are left out; rows.csv has them.</p>"
    )


def _outputs(view: View) -> str:
    """The last line that each rank wrote, and folded the last lines of all."""
    titles = {run.name: run.plan.title for run in view.runs}
    every = [one for one in view.outputs if one.run in titles]
    columns: Columns[Written] = [
        ("rank", _rank),
        ("last line", lambda one: f"<code>{text(one.lines[-1][:_LONGEST])}</code>"),
        ("all of it in the run folder", lambda one: f"<code>{text(one.path)}</code>"),
    ]
    shown = table_of(every, columns, len(columns), group=lambda one: text(titles[one.run]))
    if not shown:
        return ""
    lines = (
        f"<h4>{text(titles[one.run])}: {_rank(one)}, {format_size(one.size)}</h4>"
        f"<pre>{text(_NEWLINE.join(one.lines))}</pre>"
        for one in every
    )
    return f"<h3>What they wrote</h3>{shown}{folded('The last lines of each', ''.join(lines))}"


def _rank(one: Written) -> str:
    return f"{text(one.job)} {one.rank}{', errors' if one.stream == 'stderr' else ''}"


def _image(at: Figures) -> str:
    container = at.view.plans[at.arm].job(at.name).container
    return text("" if container is None else container.image)
