"""The pages of the judges, in Markdown: an overview, and predicted beside published on a page for each judge."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, groupby

from ringlight.extensions.judge.contract import WITHIN, Claim, Comparison
from ringlight.extensions.judge.judging import Judged

OVERVIEW = "judges.md"
_INTRODUCTION = """\
# Judged by others

Others measured these figures, on their clusters or in their packet simulators. `ringlight judge` predicts each
of them from the stated hardware alone. It writes all predictions before it reads an outcome, with the SHA-256
of each judge's predictions (`predictions.json` of its folder). This page and a page for each judge are made by

    ./ringlight judge --pages FOLDER

A verdict is *within* if every claim of the judge holds, *outside* if a claim does not hold, and *cannot be
said* if the published data do not decide it. Constants come from sources other than the judged table, but for
those that a judge names on its page, with the figures that are no evidence therefore. The tables, their sources
and their licences are in [extensions/judge/data](../extensions/judge/data/README.md).
"""
_JUDGE = """\
# Judged by others: {name}

{title}. Source: {source}.

[Judged by others](judges.md) describes how predictions and verdicts are made. This page is made by
`./ringlight judge {name} --pages FOLDER`. SHA-256 of its predictions, as JSON:
`{sha256}`.
"""


def file_of(name: str) -> str:
    """Return the file of a judge's page."""
    return f"judges-{_hyphenated(name)}.md"


def picture_of(name: str) -> str:
    """Return the file of a judge's picture, beside its page."""
    return f"images/judges-{_hyphenated(name)}.png"


def _hyphenated(name: str) -> str:
    return name.replace("_", "-")


def pages_of(
    judged: Sequence[Judged], named: Iterable[str] | None = None
) -> Mapping[str, str]:
    """Return the text of each page by its file.

    ``named``: judges that run by name only, for the overview; None leaves the overview out.
    """
    pages = {file_of(item.judge.name): page_of(item) for item in judged}
    return pages if named is None else {OVERVIEW: overview_of(judged, named), **pages}


def overview_of(judged: Sequence[Judged], named: Iterable[str] = ()) -> str:
    """Return the page with the verdicts of all judges, and each claim that is not within its limit."""
    verdicts = [
        (
            _link(item.judge.name),
            item.judge.title,
            str(len(item.judgement.comparisons)),
            item.judgement.verdict,
        )
        for item in judged
    ]
    parts = [
        _INTRODUCTION,
        table(("judge", "published figures", "compared", "verdict"), verdicts),
        *(
            f"By name only, as it needs root and Docker: {_link(name)}.\n"
            for name in named
        ),
        "## Claims that hold\n",
        table(_CLAIM_HEADS, _claim_rows(judged, within=True)),
        "## Claims that do not hold, or cannot be decided\n",
        table((*_CLAIM_HEADS, "why"), _claim_rows(judged, within=False)),
    ]
    return "\n".join(parts)


def page_of(item: Judged) -> str:
    """Return the page of one judge."""
    judge = item.judge
    parts = [
        _JUDGE.format(
            name=judge.name, title=judge.title, source=judge.source, sha256=item.sha256
        ),
        section_of(item),
    ]
    return "\n".join(parts)


def section_of(item: Judged) -> str:
    """Return the claims of a judge, what its predictions need, its picture, and all figures side by side."""
    judge = item.judge
    claims = [
        (*_claim_row(claim), judge.reason(claim)) for claim in item.judgement.claims
    ]
    lines = [table((*_CLAIM_HEADS[1:], "why"), claims)]
    if judge.draw is not None:
        lines.append(f"![{judge.caption}]({picture_of(judge.name)})\n")
        lines.append(f"{judge.caption}\n")
    if judge.needs:
        needs = [f"- {case}: {need}" for case, need in judge.needs.items()]
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
_CLAIM_HEADS = ("judge", "claim", "measured", "limit", "verdict")


def _link(name: str) -> str:
    return f"[{name}]({file_of(name)})"


def _comparison_rows(comparisons: Iterable[Comparison]) -> Iterator[tuple[str, ...]]:
    for line in comparisons:
        yield (
            line.case,
            number(line.predicted),
            number(line.published),
            f"{line.difference_percent:+.2f} %",
            line.note,
        )


def _claim_rows(judged: Iterable[Judged], *, within: bool) -> Iterator[tuple[str, ...]]:
    """Yield judge, claim and reason of the claims that are within their limits, or of the others."""
    for item in judged:
        for claim in item.judgement.claims:
            if (claim.verdict == WITHIN) == within:
                yield (
                    _link(item.judge.name),
                    *_claim_row(claim),
                    item.judge.reason(claim),
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
