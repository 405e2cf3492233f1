"""Light divided by demand: its divisions over time, their durations, and what the light carried."""

from __future__ import annotations

from matplotlib.figure import Figure

from ringlight.experiments.record.events import LightDecisions
from ringlight.experiments.record.runs import Run
from ringlight.experiments.report.charts import prefixed, sheet
from ringlight.experiments.report.drawing import PALETTE
from ringlight.experiments.report.page import Columns, table_of, tag, text
from ringlight.experiments.report.view import Draw, Figures, View, cell
from ringlight.experiments.report.words import count

ORDER = 16
TITLE = "Light divided by demand"
NEEDS = ("light_bytes_wrong",)
#: Most arms whose divisions are drawn.
_MOST_DRAWN = 6


def wanted(view: View) -> list[Figures]:
    return view.having("light_bytes_wrong")


def render(view: View, draw: Draw) -> str:
    jobs = wanted(view)
    drawn = [run for run in view.first.values() if _decisions(run)][:_MOST_DRAWN]
    return (
        "<p>O-NICs deal out what they send to a peer over all lightpaths to it. The controller divides the "
        "lightpaths among the pairs by what they have still to send: it reads what workers gave the O-NICs "
        "and what these have sent, has them hold everything, sets the switches through their drivers, and "
        f"tells the O-NICs where to send. What is held is not lost.{view.says('divisions')}</p>"
        f"{_divided(view, jobs) if drawn else ''}"
        f"{draw('divisions', _CAPTION, _figure, drawn) if drawn else ''}{_carried(view, jobs)}"
    )


def _divided(view: View, jobs: list[Figures]) -> str:
    columns: Columns[Figures] = [
        ("arm", lambda at: text(at.title)),
        ("divisions", lambda at: count(at.number("divisions"))),
        ("read", cell("division_read")),
        ("decide", cell("division_decide")),
        ("hold", cell("division_hold")),
        ("set the switches", cell("division_write")),
        ("dark", cell("division_dark")),
        ("dark in all", cell("divisions_dark")),
    ]
    some = [at for at in jobs if at.number("divisions")]
    return table_of(some, columns, 1) + (
        '<p class="quiet">Medians of what a division takes, seconds as emulated: to read what is left, to '
        "find lightpaths for it, until the O-NICs hold, until the switches had read back what they were "
        f"told; dark is from the hold until the O-NICs sent again {tag(view.label)}.</p>"
    )


def _carried(view: View, jobs: list[Figures]) -> str:
    columns: Columns[Figures] = [
        ("arm", lambda at: text(at.title)),
        ("lightpaths used", lambda at: count(at.number("lightpaths_used"))),
        ("payload", cell("light_payload")),
        ("framing", cell("light_framing")),
        ("sent again", cell("light_resent")),
        ("bytes wrong", cell("light_bytes_wrong")),
    ]
    return table_of(jobs, columns, 1) + (
        '<p class="quiet">Bytes wrong: the sum, over all pairs, of three differences that should be 0: '
        "between what the workload has to send and what workers gave O-NICs; between that and what O-NICs "
        "sent for the first time; between what each lightpath took in and gave out "
        f"{tag(view.label)}.</p>"
    )


_CAPTION = "Bytes under way for which light was divided, at each division, from the release of the jobs on."


def _decisions(run: Run) -> list[tuple[float, float]]:
    """(seconds since the release, bytes left) of each division of a run."""
    made = [decision for note in run.of(LightDecisions) for decision in note.decisions]
    return [(decision["t"] - run.released, decision["left_bytes"]) for decision in made]


def _figure(runs: list[Run]) -> Figure:
    figure, rows = sheet(1.3 * len(runs) + 0.5, rows=len(runs), left=0.85, gap=(0.55, 0.6))
    last = max(t for run in runs for t, _ in _decisions(run))
    for number, (run, (axis,)) in enumerate(zip(runs, rows, strict=True)):
        made = _decisions(run)
        axis.plot(*zip(*made, strict=True), marker="o", markersize=2.5, color=PALETTE[number % len(PALETTE)])
        axis.set_title(run.plan.title)
        axis.set(xlim=(0, 1.03 * last), ylim=(0, None))
        axis.set_ylabel("bytes left")
        prefixed(axis.yaxis, "B")
    rows[-1][0].set_xlabel("seconds as emulated")
    return figure
