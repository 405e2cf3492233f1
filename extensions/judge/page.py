"""The page of the judges, in Markdown: predicted beside published, and what each prediction needed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, groupby

from ringlight.extensions.judge.contract import Claim, Comparison
from ringlight.extensions.judge.judging import Judged

_TITLE = "Judged by others"
_INTRODUCTION = """\
# {title}

Others measured these figures, on their clusters or in their packet simulators. `ringlight judge` predicts each
of them from the stated hardware alone. It writes all predictions before it reads an outcome; the SHA-256 below
is that of the JSON of a judge's predictions (`predictions.json` of its folder). This page is made by

    {command}

A verdict is *within* if every claim of the judge holds, *outside* if a claim does not hold, and *cannot be
said* if the published data do not decide it. Constants come from sources other than the judged table, but for
those that a judge names below, with the figures that are no evidence therefore. The tables, their sources and
their licences are in [extensions/judge/data](../extensions/judge/data/README.md).
"""


def page_of(judged: Sequence[Judged], names: Sequence[str] = ()) -> str:
    """Return the page with these judges. ``names``: those that the command names, none for all by default."""
    title = f"{_TITLE}: {', '.join(names)}" if names else _TITLE
    command = " ".join(("./ringlight judge", *names, "--page FILE"))
    introduction = _INTRODUCTION.format(title=title, command=command)
    return "\n".join([introduction, _summary(judged), *map(section_of, judged)])


def _summary(judged: Iterable[Judged]) -> str:
    rows = [
        (
            f"[{item.judge.name}](#{item.judge.name})",
            item.judge.title,
            str(len(item.judgement.comparisons)),
            item.judgement.verdict,
        )
        for item in judged
    ]
    return table(("judge", "published figures", "compared", "verdict"), rows)


def section_of(item: Judged) -> str:
    """Return the part of the page on one judge."""
    needs = [f"- {case}: {need}" for case, need in item.judge.needs.items()]
    lines = [
        f"## {item.judge.name}\n",
        f"{item.judge.title}. Source: {item.judge.source}. SHA-256 of the predictions: `{item.sha256}`.\n",
        table(
            ("claim", "measured", "limit", "verdict"),
            map(_claim_row, item.judgement.claims),
        ),
    ]
    if needs:
        lines += ["The predictions need:\n", *needs, ""]
    for name, group in groupby(item.judgement.comparisons, lambda line: line.table):
        comparisons = list(group)
        unit, notes = comparisons[0].unit, {line.note for line in comparisons}
        note = f" ({notes.pop()})" if len(notes) == 1 and "" not in notes else ""
        rows = [
            (*row[:-1], "" if note else row[-1])
            for row in _comparison_rows(comparisons)
        ]
        # The name as the head of the first column keeps the page short.
        lines.append(side_by_side((f"{name}, {unit}{note}", *_HEADS), rows))
    return "\n".join(lines)


def side_by_side(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table in Markdown, a long one in parts beside each other."""
    if len(rows) <= _SHORT:
        return table(heads, rows)
    height = -(-len(rows) // (_PARTS if len(rows) <= _LONG else 2 * _PARTS))
    blank = ("",) * len(heads)
    parts = [[*rows[start : start + height]] for start in range(0, len(rows), height)]
    parts[-1] += [blank] * (height - len(parts[-1]))
    again = ["", *heads[1:]]
    joined = [tuple(chain(*row)) for row in zip(*parts, strict=True)]
    return table([*heads, *again * (len(parts) - 1)], joined)


#: Rows of a table that is left in one part, and parts of a longer one; from more rows on twice as many.
_SHORT, _PARTS, _LONG = 3, 3, 30
_HEADS = ("predicted", "published", "difference", "note")


def _comparison_rows(comparisons: Iterable[Comparison]) -> Iterator[tuple[str, ...]]:
    for line in comparisons:
        yield (
            line.case,
            number(line.predicted),
            number(line.published),
            f"{line.difference_percent:+.2f} %",
            line.note,
        )


def _claim_row(claim: Claim) -> tuple[str, ...]:
    measured = "" if claim.measured is None else f"{claim.measured:.3g} {claim.unit}"
    return claim.text, measured, f"{claim.limit:g} {claim.unit}", claim.verdict


def number(value: float) -> str:
    """Return a figure with at least four significant digits, thousands apart."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table in Markdown, without its empty columns."""
    body = [tuple(row) for row in rows]
    kept = [column for column in range(len(heads)) if any(row[column] for row in body)]
    lines = [heads, ["---"] * len(heads), *body]
    return "".join(
        f"| {' | '.join(line[column] for column in kept)} |\n" for line in lines
    )
