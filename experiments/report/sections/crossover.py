"""Value of a swept path up to which an arm is ahead of the others, and how other paths move it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from ringlight.experiments.analysis.base import AtBase
from ringlight.experiments.report.page import NOTHING, Columns, table_of, tag, text
from ringlight.experiments.report.view import Draw, View, short
from ringlight.experiments.report.words import figure, said

ORDER = 22
TITLE = "Where it stops winning"


def wanted(view: View) -> bool:
    return any(metric.startswith("faster_") for metric in view.metrics)


def render(view: View, draw: Draw) -> str:
    spec = view.experiment.spec.crossover
    assert spec is not None
    paths = list(dict.fromkeys(path for sweep in view.experiment.spec.sweep for path in sweep.over))
    others = [arm for arm in view.arms if arm not in spec.arms]
    along = short(spec.along, paths)
    tables = [
        f"<h3>{text(title)}</h3>{table_of(others, columns, 1)}"
        for title, columns in _tables(view, spec.arms, paths, spec.along)
    ]
    return (
        f"<p>The {text(along)} up to which an arm is faster than each other, all else as the file has it; "
        "the time is taken to be a straight line between two swept values and beyond them "
        f"{tag(view.label)}.</p>{view.paragraph('crossover')}{''.join(tables)}"
    )


def _tables(
    view: View, arms: Sequence[str], paths: Sequence[str], along: str
) -> Iterator[tuple[str, Columns[str]]]:
    """Tables of the crossover at the file's values, and of the first arm's along each other path."""
    base, against = view.base, ("against", lambda other: text(view.title(other)))
    yield "As the file has it", [against, *((text(view.title(arm)), _up_to(base, arm, {})) for arm in arms)]
    for path in paths:
        values = {
            said(row.point[path]): row.point[path]
            for row in view.rows
            if row.arm == arms[0] and row.metric.startswith("faster_") and path in row.point
        }
        if path != along and len(values) > 1:
            columns = [(text(words), _up_to(base, arms[0], {path: value})) for words, value in values.items()]
            yield f"{view.title(arms[0])}, by {short(path, paths)}", [against, *columns]


def _up_to(base: AtBase, arm: str, changed: dict[str, object]) -> Callable[[str], str]:
    def shown(other: str) -> str:
        up_to, later = (base.at(arm, f"faster_{word}.{other}", changed) for word in ("up_to", "from"))
        return figure(up_to) if up_to is not None else f"from {figure(later)} on" if later else NOTHING

    return shown
