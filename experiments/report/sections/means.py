"""Published figures that are means over several points, beside every one of ours."""

from __future__ import annotations

from collections.abc import Sequence

from ringlight.experiments.analysis.published import Mean, means, name_of, saved
from ringlight.experiments.analysis.rows import Label
from ringlight.experiments.report.page import Columns, mark, table_of, tag, text
from ringlight.experiments.report.view import Draw, View, short
from ringlight.experiments.report.words import called, said

ORDER = 23
TITLE = "The published percentages"


def wanted(view: View) -> bool:
    return any(figure.at and figure.over for figure in view.experiment.spec.published)


def render(view: View, draw: Draw) -> str:
    found = list(means(view.experiment.spec, view.table))
    columns: Columns[Mean] = [
        ("published", lambda one: f"<b>{saved(one.ratio):.2f} %</b> {tag(_worth(view, one))}"),
        ("what it is taken for", lambda one: text(one.spec.words or "")),
        ("", lambda one: mark("good", "reproduced") if one.reproduced else mark("bad", "not reproduced")),
        (f"closest of ours {tag(_label(view, found))}", _closest),
        ("all of ours", _span),
    ]
    count = max((len(one.ours) for one in found), default=0)
    about = f"{text(found[0].spec.source or '')}. {text(view.says('means'))}"
    return (
        f"<p>{about} Each is what one takes less than the other. Ours are means over {_places(found[0])}, "
        f"for up to {count} combinations of what else is swept. <b>With so many, one may come near by "
        f"chance: near is not reproduced.</b></p>{table_of(found, columns, 5)}"
    )


def _label(view: View, found: Sequence[Mean]) -> Label:
    return next((one.ours[0][1].label for one in found if one.ours), view.label)


def _worth(view: View, one: Mean) -> str:
    name = f"{name_of(one.spec)}.{one.spec.over}"
    rows = (row for row in view.table.each(one.spec.arm, name) if row.label == "published")
    return next((row.standing for row in rows), "published")


def _places(one: Mean) -> str:
    return "; ".join(
        f"{text(short(path, one.spec.at))} {', '.join(map(said, values))}"
        for path, values in one.spec.at.items()
    )


def _closest(one: Mean) -> str:
    if not one.ours:
        return "–"
    ratio, row = one.ours[0]
    rest = [
        f"{path.rpartition('.')[2]} {said(v)}" for path, v in row.point.items() if path not in one.spec.at
    ]
    return f"{saved(ratio):.2f} %: {text(', '.join([called(one.spec.metric), *rest]))}"


def _span(one: Mean) -> str:
    found = [saved(ratio) for ratio, _ in one.ours]
    return f"{min(found):,.1f} … {max(found):.1f} %" if found else "–"
