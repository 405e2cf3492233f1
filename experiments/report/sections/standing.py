"""What agreement with each published figure is worth, and why."""

from __future__ import annotations

from collections.abc import Sequence

from ringlight.experiments.analysis.published import name_of, standing_of
from ringlight.experiments.analysis.rows import WORTH
from ringlight.experiments.analysis.statistics import is_number
from ringlight.experiments.language.spec import PublishedSpec
from ringlight.experiments.report.page import Columns, table_of, tag, text
from ringlight.experiments.report.view import Draw, View, short
from ringlight.experiments.report.words import meaning, percent, said, upper_first

ORDER = 94
TITLE = "What agreement with published figures is worth"


def wanted(view: View) -> Sequence[PublishedSpec]:
    return view.experiment.spec.published


def render(view: View, draw: Draw) -> str:
    spec, found = view.experiment.spec, wanted(view)
    columns: Columns[PublishedSpec] = [
        ("", lambda one: text(_place(view, one))),
        ("published", lambda one: text(_value(one))),
        ("standing", lambda one: tag(standing_of(one, spec))),
        ("why", lambda one: text(_why(view, one))),
    ]
    used = dict.fromkeys(standing_of(one, spec) for one in found)
    words = "; ".join(f"<b>{standing}</b>: {text(WORTH[standing])}" for standing in used)
    return f"<p>{upper_first(words)}.</p>" + table_of(
        found, columns, 2, group=lambda one: upper_first(meaning(one.metric))
    )


def _place(view: View, one: PublishedSpec) -> str:
    over = f" over {view.title(one.over)}" if one.over else ""
    points = (f"{short(path, one.at)} {', '.join(map(said, values))}" for path, values in one.at.items())
    return ", ".join([f"{view.title(one.arm)}{over}", *([f"job {one.job}"] if one.job else []), *points])


def _value(one: PublishedSpec) -> str:
    ends = [one.value] if one.value is not None else list(one.range or ())
    return " to ".join(f"{end.value:g} {end.unit}".removesuffix(" 1").rstrip() for end in ends)


def _why(view: View, one: PublishedSpec) -> str:
    """The reason, and of a range the share of the run's own figures that lie in it."""
    spec = view.experiment.spec
    if names := spec.fitted_by(one):
        return f"From it follows {', '.join(names)}: {' '.join(spec.parameters[n].why for n in names)}"
    name = f"{name_of(one)}_inside"
    found = (row.value for row in view.rows if (row.arm, row.metric) == (one.arm, name))
    share = next(filter(is_number, found), None)
    inside = "" if share is None else f" {percent(share, 0)} of our figures lie in it."
    return f"{one.why or 'The file does not say.'}{inside}"
