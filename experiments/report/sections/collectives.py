"""All-reduces alone: what each arm's takes in steps, light and passes, at the file's values."""

from __future__ import annotations

from collections.abc import Callable

from ringlight.experiments.report.page import NOTHING, Columns, table_of, tag, text
from ringlight.experiments.report.view import Draw, View
from ringlight.experiments.report.words import figure

ORDER = 20
TITLE = "Who is compared"
NEEDS = ("steps",)


def render(view: View, draw: Draw) -> str:
    base, analytic = view.base, tag("analytic")

    def of(metric: str) -> Callable[[str], str]:
        def shown(arm: str) -> str:
            row = base.at(arm, metric, {})
            return NOTHING if row is None else figure(row)

        return shown

    columns: Columns[str] = [
        ("arm", lambda arm: text(view.title(arm))),
        ("collective", lambda arm: text(view.plans[arm].jobs[0].loop.collective)),
        (f"steps {tag(view.label)}", of("steps")),
        (f"with new light {analytic}", of("set_ups_closed")),
        (f"gradients through the narrowest link {analytic}", of("vectors_closed")),
        (f"wavelengths {tag(view.label)}", of("wavelengths_lit")),
        (f"gradients added at the busiest node {analytic}", of("added_closed")),
        (f"received at once {analytic}", of("received_at_once")),
    ]
    return (
        "<p>All at the values that the file has without its sweeps. Steps are synchronised: nobody begins "
        "one before all have ended the one before.</p>"
        + view.paragraph("collectives")
        + table_of(view.arms, columns, 2)
    )
