"""Make tables of the report: their columns, and their cells of the figures of a subject."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial

from ringlight.experiments.analysis.table import Point
from ringlight.experiments.language.plan import Scale
from ringlight.experiments.report.page import NOTHING, table_of, text
from ringlight.experiments.report.view import Figures, in_small
from ringlight.experiments.report.words import as_text, seconds


def swept(points: Iterable[Point]) -> list[str]:
    """Return the dotted paths to which points give values."""
    return list(dict.fromkeys(path for point in points for path in point))


def short(path: str, paths: Iterable[str]) -> str:
    """Return the shortest ending of a dotted path that no other path in ``paths`` has."""
    path, other_paths = (
        path.removesuffix(".value"),
        [other.removesuffix(".value") for other in paths],
    )
    words = path.split(".")
    ends = (".".join(words[-length:]) for length in range(1, len(words)))
    return next(
        (
            e
            for e in ends
            if sum(f".{other}".endswith(f".{e}") for other in other_paths) == 1
        ),
        path,
    )


def of_points(paths: Sequence[str]) -> list[tuple[str, Callable[[Point], str]]]:
    """Return the columns of a table of points: the values of swept paths."""
    return [(text(short(path, paths)), partial(_swept, path=path)) for path in paths]


def swept_columns(paths: Sequence[str]) -> list[tuple[str, Cell]]:
    """Return the columns of a table of figures: the values of swept paths."""

    def value(subject: Figures, path: str) -> str:
        return _swept(subject.point, path)

    return [(text(short(path, paths)), partial(value, path=path)) for path in paths]


def _swept(point: Point, path: str) -> str:
    return text(as_text(point.get(path, NOTHING)))


def seconds_and_real(time_s: float | None, scale: Scale) -> str:
    """Return an emulated time and, if time is scaled, the real time; a dash for None."""
    if time_s is None or scale.time == 1:
        return seconds(time_s)
    return seconds(time_s) + in_small(seconds(time_s / scale.time))


def real(subject: Figures, metric: str) -> float | None:
    """Return the seconds of real time for which a time stands; None if time is not scaled or there is no
    time."""
    time_s, scale = (
        subject.number(metric),
        subject.view.plans[subject.arm].setting.scale.time,
    )
    return None if time_s is None or scale == 1 else time_s / scale


#: Makes a table's cell of figures; a metric's name stands for its figure.
Cell = str | Callable[[Figures], str]


def cell(of: Cell) -> Callable[[Figures], str]:
    """Return a function that makes a table's cell from figures."""
    return (lambda subject: subject.figure(of)) if isinstance(of, str) else of


def arm_title(subject: Figures) -> str:
    """Return a table's cell with the arm's title."""
    return text(subject.title)


#: Columns that name the arm, and the job.
ARM: tuple[str, Cell] = ("arm", arm_title)
JOB: tuple[str, Cell] = ("job", lambda subject: text(subject.name))


def figures(
    rows: Iterable[Figures],
    columns: Iterable[tuple[str, Cell]],
    words: int = 1,
    group: Callable[[Figures], str] | None = None,
) -> str:
    """Return a table with a row for each of some figures, as :func:`table_of` makes it."""
    return table_of(
        rows, [(head, cell(of)) for head, of in columns], words, group=group
    )
