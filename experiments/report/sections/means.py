"""Published figures that are means over several points, beside every one of ours."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from experiments.analysis.published import name_of
from experiments.analysis.rows import Row
from experiments.analysis.statistics import is_number
from experiments.language.spec import PublishedSpec
from experiments.report.page import Columns, mark, table_of, tag, text
from experiments.report.report import Draw
from experiments.report.view import View, short
from experiments.report.words import called, said

ORDER = 19
TITLE = "The published percentages"
NEEDS: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Mean:
    spec: PublishedSpec
    published: float
    ours: Sequence[Row]
    paths: Sequence[str]

    @property
    def closest(self) -> Row | None:
        return min(self.ours, key=lambda row: abs(_saved(row) - self.published), default=None)

    @property
    def exact(self) -> bool:
        """To the digits that are printed."""
        return self.closest is not None and round(_saved(self.closest), 2) == round(self.published, 2)


def _saved(row: Row) -> float:
    assert is_number(row.value)
    return 100 * (1 - row.value)


def wanted(view: View) -> bool:
    return any(figure.at for figure in view.experiment.spec.published)


def render(view: View, draw: Draw) -> str:
    found = []
    for spec in view.experiment.spec.published:
        if not spec.at or spec.over is None or spec.value is None:
            continue
        name = f"{name_of(spec)}.{spec.over}"
        mine = [row for row in view.rows if (row.arm, row.metric) == (spec.arm, name)]
        ours = [
            row for row in mine if row.label != "published" and row.repeat is None and is_number(row.value)
        ]
        found.append(_Mean(spec, 100 * (1 - spec.value.value), ours, list(spec.at)))
    columns: Columns[_Mean] = [
        ("published", lambda one: f"<b>{one.published:.2f} %</b> {tag(_worth(view, one))}"),
        ("what it is taken for", lambda one: text(one.spec.words or "")),
        ("", lambda one: mark("good", "reproduced") if one.exact else mark("bad", "not reproduced")),
        (f"closest of ours {tag(view.label)}", _closest),
        ("all of ours", _span),
    ]
    count = max((len(one.ours) for one in found), default=0)
    about = f"{text(found[0].spec.source or '')}. {text(view.says('means'))}"
    return (
        f"<p>{about} Each is what one takes less than the other. Ours are means over {_places(found[0])}, "
        f"for up to {count} combinations of what else is swept. <b>With so many, one may come near by "
        f"chance: near is not reproduced.</b></p>{table_of(found, columns, 5)}"
    )


def _worth(view: View, one: _Mean) -> str:
    name = f"{name_of(one.spec)}.{one.spec.over}"
    rows = (row for row in view.rows if row.label == "published" and row.metric == name)
    return next((row.standing for row in rows), "published")


def _places(one: _Mean) -> str:
    return "; ".join(
        f"{text(short(path, one.paths))} {', '.join(map(said, values))}"
        for path, values in one.spec.at.items()
    )


def _closest(one: _Mean) -> str:
    row = one.closest
    if row is None:
        return "–"
    where = [f"{path.rpartition('.')[2]} {said(v)}" for path, v in row.point.items() if path not in one.paths]
    return f"{_saved(row):.2f} %: {text(', '.join([called(one.spec.metric), *where]))}"


def _span(one: _Mean) -> str:
    found = [_saved(row) for row in one.ours]
    return f"{min(found):,.1f} … {max(found):.1f} %" if found else "–"
