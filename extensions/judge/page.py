"""The page of the judges, in Markdown: predicted beside published, and what each prediction needed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

from ringlight.extensions.judge.contract import Claim, Comparison
from ringlight.extensions.judge.judging import Judged

_INTRODUCTION = """\
# Judged by others

Others measured these figures, on their clusters or in their packet simulators. `ringlight judge` predicts each
of them from the stated hardware alone. It writes all predictions before it reads an outcome; the SHA-256 below
is that of the JSON of a judge's predictions (`predictions.json` of its folder). This page is made by

    ./ringlight judge --page docs/judges.md

A verdict is *within* if every claim of the judge holds, *outside* if a claim does not hold, and *cannot be
said* if the published data do not decide it. Constants come from sources other than the judged table. The
tables, their sources and their licences are in [extensions/judge/data](../extensions/judge/data/README.md).
"""


def page_of(judged: Sequence[Judged]) -> str:
    """Return the page with all judges."""
    return "\n".join([_INTRODUCTION, _summary(judged), *map(section_of, judged)])


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
    for block in _blocks(item.judgement.comparisons):
        names, unit = ", ".join(block), next(iter(block.values()))[0].unit
        if len(block) == 1:
            rows = map(_full_row, *block.values())
            lines += [f"{names}, {unit}:\n", table(_HEADS, rows)]
        else:
            lines += [
                f"Predicted, published, {unit}:\n",
                table(("case", *block), _rows(block)),
            ]
    return "\n".join(lines)


_HEADS = ("case", "predicted", "published", "difference", "note")
#: Comparisons by table.
_Block = dict[str, list[Comparison]]


def _blocks(comparisons: Iterable[Comparison]) -> list[_Block]:
    """Return successive tables, those with the same cases together, unless they have notes."""
    blocks: list[_Block] = []
    cases: tuple[str, ...] | None = None
    for name, group in groupby(comparisons, lambda line: line.table):
        lines = list(group)
        before, cases = cases, tuple(f"{line.case} {line.unit}" for line in lines)
        if any(line.note for line in lines):
            cases = None
        if cases is not None and cases == before:
            blocks[-1][name] = lines
        else:
            blocks.append({name: lines})
    return blocks


def _full_row(line: Comparison) -> tuple[str, ...]:
    return (
        line.case,
        number(line.predicted),
        number(line.published),
        f"{line.difference_percent:+.2f} %",
        line.note,
    )


def _rows(block: _Block) -> Iterator[tuple[str, ...]]:
    """Yield a row for each case of tables with the same cases."""
    for lines in zip(*block.values(), strict=True):
        cells = [
            f"{number(line.predicted)}, {number(line.published)} ({line.difference_percent:+.1f} %)"
            for line in lines
        ]
        yield lines[0].case, *cells


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
