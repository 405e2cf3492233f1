"""Jobs of users' containers in the report."""

from __future__ import annotations

from ringlight.experiments.report.columns import JOB, arm_title, figures
from ringlight.experiments.report.page import (
    Columns,
    folded,
    quiet,
    table_of,
    tag,
    text,
)
from ringlight.experiments.report.sections import section
from ringlight.experiments.report.view import Draw, Figures, View
from ringlight.extensions.own_containers.job import Container
from ringlight.extensions.own_containers.outputs import Written, outputs
from ringlight.fabric.units import format_size

#: Characters of a last line that are shown beside others.
_LONGEST = 160


@section(29, "Containers", needs=("commands_failed",))
def containers(view: View, draw: Draw) -> str:
    """Return HTML that shows jobs of users' containers: how they ended, when light was moved, and the
    links' traffic."""
    shown = figures(
        [
            entry
            for entry in view.each("job")
            if entry.value("commands_failed") is not None
        ],
        [
            JOB,
            ("image", _image),
            ("commands that failed", "commands_failed"),
            ("start, first to last", "start_spread"),
            ("light moved", "regroups_under"),
            ("NICs sent", "nic_sent"),
            ("NICs received", "nic_received"),
        ],
        2,
        group=arm_title,
    )
    every = list(view.each("traffic"))
    carried = [entry for entry in every if entry.value("link_bytes")]
    link = ("job, link", lambda entry: text(entry.subject.removeprefix("traffic ")))
    if over := figures(carried, [link, ("bytes", "link_bytes")], group=arm_title):
        over = folded(f"Bytes over {len(carried)} directions of links", over)
    return f"{shown}{_outputs(view)}{over}" + quiet(
        f"All {tag(view.label)}. Bytes are those of frames, by "
        "the counters of NICs and of packet switches' ports, from the release to the end; those of another "
        "job that ran meanwhile are among them on links that both used. "
        f"{len(every) - len(carried)} directions of links that carried nothing are left out; rows.csv has "
        "them."
    )


def _outputs(view: View) -> str:
    """Return the last line that each rank wrote; folded away, the last lines of each."""
    titles = {run.name: run.plan.title for run in view.runs}
    written = outputs(view.folder) if view.folder is not None else []
    every = [output for output in written if output.run in titles]
    columns: Columns[Written] = [
        ("rank", _rank),
        (
            "last line",
            lambda output: f"<code>{text(output.lines[-1][:_LONGEST])}</code>",
        ),
        (
            "all of it in the run folder",
            lambda output: f"<code>{text(output.path)}</code>",
        ),
    ]
    shown = table_of(
        every, columns, len(columns), group=lambda output: text(titles[output.run])
    )
    if not shown:
        return ""
    newline = "\n"
    lines = (
        f"<h4>{text(titles[output.run])}: {_rank(output)}, {format_size(output.size)}</h4>"
        f"<pre>{text(newline.join(output.lines))}</pre>"
        for output in every
    )
    return f"<h3>What they wrote</h3>{shown}{folded('The last lines of each', ''.join(lines))}"


def _rank(output: Written) -> str:
    return f"{text(output.job)} {output.rank}{', errors' if output.stream == 'stderr' else ''}"


def _image(job: Figures) -> str:
    guest = job.view.plans[job.arm].job(job.name).guest
    return text(guest.image if isinstance(guest, Container) else "")
