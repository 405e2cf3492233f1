"""Parts of a page that all reports share: its look, tables, pictures and marks. Texts are HTML."""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from ringlight.experiments.report.drawing import Plot

Item = TypeVar("Item")
#: Columns of a table: heading, and what makes an item's cell; both HTML.
Columns = Sequence[tuple[str, Callable[[Item], str]]]
#: ``draw(name, caption, figure, …)`` makes a picture of ``figure(…)``, which is called for each size of it,
#: under a name of its own in the page and in the folder of pictures; gives its HTML.
Draw = Callable[..., str]
STYLE = Path(__file__).with_name("page.css")
NOTHING = "–"
#: A cell of more characters than these is a sentence.
LONG = 60
#: One of no more is not broken over lines.
_SHORT = 16
#: A table of more rows is more than anybody reads who did not ask for it.
_MANY = 24
_TAG = re.compile("<[^>]*>")
VERDICTS = ("good", "doubtful", "bad")
#: In place of a headline where the emulation did not hold its settings: nothing was found out.
NO_RESULT = "No result: the emulation did not hold its settings"


def page(title: str, parts: Iterable[str]) -> str:
    """Return the whole HTML page of these parts; empty parts are left out."""
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{text(title)}</title><style>\n{STYLE.read_text(encoding='utf-8')}</style></head>\n<body><main>\n"
        + "\n".join(part for part in parts if part)
        + "\n</main></body></html>\n"
    )


def contents(titled: Iterable[tuple[str, str]]) -> str:
    """Return the list of a page's sections, each an anchor and a title; nothing for fewer than three."""
    items = [f'<li><a href="#{anchor}">{title}</a></li>' for anchor, title in titled]
    return (
        f'<nav class="contents" aria-label="Contents"><ol>{"".join(items)}</ol></nav>'
        if items[2:]
        else ""
    )


def text(value: object) -> str:
    return html.escape(str(value))


def tag(label: str) -> str:
    return f'<span class="tag">{label}</span>'


def mark(kind: str, words: str) -> str:
    """Return words in bold that are ``good``, ``doubtful`` or ``bad``."""
    return f'<b class="{kind}">{words}</b>'


def quiet(words: str) -> str:
    """Return a paragraph in small print; empty for no words."""
    return f'<p class="quiet">{words}</p>' if words else ""


def listing(points: Iterable[str]) -> str:
    """Return a list of points; empty without points."""
    items = "".join(f"<li>{point}</li>" for point in points)
    return f"<ul>{items}</ul>" if items else ""


def folded(summary: str, inside: str, classes: str = "") -> str:
    """Return a block that shows ``inside`` when the reader opens its summary."""
    look = f' class="{classes}"' if classes else ""
    return f"<details{look}><summary>{summary}</summary>{inside}</details>"


def folded_if_long(summary: str, rows: int, inside: str) -> str:
    """Return a table that is folded under its summary if it has many rows, else as it is."""
    return folded(summary, inside) if rows > _MANY else inside


def row(cells: Iterable[str], numeric: int, classes: str = "", tag: str = "td") -> str:
    """Return one table row; from cell ``numeric`` on, cells are right-aligned.

    Long texts get room, and short texts are not broken.
    """
    done = []
    for number, cell in enumerate(cells):
        long = len(_TAG.sub("", cell))
        look = (
            "n"
            if number >= numeric
            else "wide"
            if long > LONG
            else "short"
            if long <= _SHORT
            else ""
        )
        done.append(f"<{tag}{f' class={look}' if look else ''}>{cell}</{tag}>")
    return f"<tr{f' class={classes}' if classes else ''}>{''.join(done)}</tr>"


def table(head: Sequence[str], rows: Sequence[str], numeric: int) -> str:
    """Return a table. ``rows``: as :func:`row` writes them.

    A narrow screen scrolls a table. If the table has no figures, a narrow screen has the cells of a row below
    each other, each with its head.
    """
    words = numeric >= len(head)
    if words:
        rows = [_headed(line, [_TAG.sub("", cell) for cell in head]) for line in rows]
    return (
        f'<div class="scroll" tabindex="0"><table{" class=words" if words else ""}>'
        f"<thead>{row(head, numeric, tag='th')}</thead><tbody>{''.join(rows)}</tbody></table></div>"
    )


def _headed(row: str, heads: Sequence[str]) -> str:
    """Return a row whose cells name their heads; the one cell of a group's heading needs none."""
    cells = row.split("<td")
    if len(cells) != len(heads) + 1:
        return row
    named = (
        f'<td data-head="{head}"{cell}'
        for head, cell in zip(heads, cells[1:], strict=True)
    )
    return cells[0] + "".join(named)


def table_of(
    items: Iterable[Item],
    columns: Columns[Item],
    words: int = 1,
    *,
    group: Callable[[Item], str] | None = None,
    strong: Callable[[Item], bool] | None = None,
) -> str:
    """Return a table with a row for each item.

    Empty columns are left out; without items the table is empty text. The first ``words`` columns are words,
    the others figures, aligned right. ``group``: function that returns the group of an item, which becomes a
    heading when it changes. ``strong``: function that returns whether an item's row is in bold.
    """
    listed = list(items)
    filled = [(head, [cell(item) for item in listed]) for head, cell in columns]
    there = [any(cell not in ("", NOTHING) for cell in cells) for _, cells in filled]
    filled, left = (
        [column for column, has in zip(filled, there, strict=True) if has],
        sum(there[:words]),
    )
    rows, before = list[str](), None
    for item, *cells in zip(listed, *(cells for _, cells in filled), strict=True):
        if group is not None and (title := group(item)) != before:
            rows.append(
                f'<tr class="group"><td colspan="{len(filled)}"><span>{title}</span></td></tr>'
            )
            before = title
        rows.append(
            row(cells, left, "strong" if strong is not None and strong(item) else "")
        )
    return table([head for head, _ in filled], rows, left) if rows else ""


def picture(plot: Plot) -> str:
    """Return a figure with its caption. The width of the screen decides which of its drawings is visible."""
    drawings = plot.svg
    if plot.narrow:
        broad = "broad cut" if plot.cut else "broad"
        drawings = f'<div class="{broad}">{plot.svg}</div><div class="narrow">{plot.narrow}</div>'
    return f"<figure>{drawings}<figcaption>{text(plot.caption)}</figcaption></figure>"


@contextmanager
def drawing(folder: Path, *, png: bool = False) -> Iterator[Draw]:
    """Yield a function that makes the pictures of a page.

    The pictures also become SVG files in ``folder``, which is created if absent, and with ``png`` PNG files.
    PNG takes as long as all the rest of a picture, and a page has no use for it.
    """
    # matplotlib takes a second to load, which only who draws should wait for.
    import matplotlib

    from ringlight.experiments.report.drawing import STYLE, drawn

    folder.mkdir(parents=True, exist_ok=True)
    with matplotlib.rc_context(STYLE):
        yield lambda name, caption, figure, *args: picture(
            drawn(folder, name, caption, png, figure, *args)
        )


def hero(cards: Sequence[tuple[str, str, str]]) -> str:
    """Return big figures from (name, figure as HTML, remark as HTML); empty without cards."""
    items = "".join(
        f"<div><dt>{what}</dt><dd>{figure}</dd><p>{remark}</p></div>"
        for what, figure, remark in cards
    )
    return f'<dl class="hero">{items}</dl>' if cards else ""


def header(
    kicker: str,
    headline: str,
    lead: str,
    chips: Iterable[tuple[str, object]],
    complete: bool,
    links: Mapping[str, str] = {},
) -> str:
    """Return the head of a page.

    ``chips``: name and value of what matters about the run. ``links``: anchors of the page, by the names of
    the chips that lead there. All are plain text. The verdict on fidelity has its colour.
    """
    items = (_chip(name, str(value), links.get(name)) for name, value in chips)
    partial = "" if complete else f"<p>{mark('bad', 'This run is not complete.')}</p>"
    chipped = listing(items).replace("<ul>", '<ul class="chips">', 1)
    return (
        f'<header><p class="kicker">{text(kicker)}</p><h1>{text(headline)}</h1>'
        f'<p class="lead">{text(lead)}</p>{partial}{chipped}</header>'
    )


def _chip(name: str, value: str, anchor: str | None) -> str:
    verdict = value.partition(",")[0]
    shown = (
        mark(verdict, text(value)) if verdict in VERDICTS else f"<b>{text(value)}</b>"
    )
    return (
        f"{name} {shown}"
        if anchor is None
        else f'<a href="#{anchor}">{name} {shown}</a>'
    )


def assumptions(listed: Iterable[Mapping[str, Any]]) -> str:
    """Return the table of the assumptions of a simulation."""
    columns: Columns[Mapping[str, Any]] = [
        ("assumption", lambda entry: text(entry["what"])),
        ("value", lambda entry: text(entry["value"])),
        ("why", lambda entry: text(entry["why"])),
    ]
    return table_of(listed, columns, 9)
