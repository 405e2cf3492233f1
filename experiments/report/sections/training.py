"""Whether it is the same training: parameters bit by bit, accuracy, payload."""

from __future__ import annotations

from experiments.report.page import row, table, tag, text
from experiments.report.report import Draw
from experiments.report.view import View, job_of
from experiments.report.words import YES_NO, amount, percent

ORDER = 60
NEEDS = ("parameters_identical",)
_HEAD = [
    "arm, job",
    "parameters",
    "all alike",
    "loss",
    "accuracy",
    "payload",
    "bytes lost",
    "sent again",
    "connections kept",
    "as the baseline",
]


def wanted(view: View) -> bool:
    return bool(view.fixed)


def render(view: View, draw: Draw) -> str:
    rows = [
        _row(view, arm, job)
        for arm in view.fixed
        for job in view.subjects(arm, "job")
        if view.row(arm, job, "parameters_identical") is not None
    ]
    said = f" {text(view.says('training'))}" if view.says("training") else ""
    return (
        f"<h2>Is it the same training?</h2>{_alike(view)}{_published(view, said)}{table(_HEAD, rows, 2)}"
        f'<p class="quiet">All {tag("measured")}. Parameters: the first digits of their SHA-256. All alike: '
        "every rank and the same training in one process ended with them, bit by bit; collectives that add "
        "in another order may end in other last bits. A byte is lost when its rank sent it and the peer did "
        "not get it; what the network drops TCP sends again, counted in segments. As the baseline: the "
        "same parameters, where the same was trained with the same collective. Payload is that of all jobs "
        "of the run.</p>"
    )


def _row(view: View, arm: str, job: str) -> str:
    digest = view.value(arm, job, "parameters_sha256")
    first, last = (view.number(arm, job, name) for name in ("loss_first", "loss_last"))
    identical = view.value(arm, job, "parameters_identical")
    cells = [
        f"{text(view.title(arm))}, {text(job_of(job))}",
        f"<code>{text(str(digest)[:12])}</code>" if digest else "–",
        '<b class="good">yes</b>' if identical else YES_NO[identical],
        "–" if first is None or last is None else f"{first:.2f} → {last:.2f}",
        percent(view.number(arm, job, "accuracy"), 2),
        *(
            amount(view.value(arm, "run", metric), unit)
            for metric, unit in (
                ("payload_received", "bytes"),
                ("payload_lost", "count"),
                ("retransmits", "count"),
            )
        ),
        YES_NO[view.value(arm, job, "connections_unchanged")],
        YES_NO[_as_baseline(view, arm, job)],
    ]
    return row(cells, 2)


def _as_baseline(view: View, arm: str, job: str) -> bool | None:
    """Whether an arm that trained the same as its baseline ended with the same parameters."""
    for spec in view.experiment.spec.compare:
        for one in view.compared(spec):
            found = view.of_comparison(one, job, "parameters_equal") if one.arm == arm else None
            if found is not None and isinstance(found.value, bool):
                return found.value
    return None


def _alike(view: View) -> str:
    """Whether arms that should end with the same parameters do."""
    found = [
        (view.value(arm, job, "parameters_identical"), job)
        for arm in view.fixed
        for job in view.subjects(arm, "job")
    ]
    truths = [value for value, _ in found if isinstance(value, bool)]
    word = '<b class="good">yes</b>' if all(truths) else YES_NO[False]
    return f"<p>Final parameters of all ranks bit-identical to the same training in one process: {word}.</p>"


def _published(view: View, said: str) -> str:
    each = [
        f"{text(view.title(row.arm))} {amount(row.value, row.unit, row.metric)}"
        for row in view.rows
        if row.metric == "accuracy" and row.label == "published"
    ]
    return f"<p>Published accuracy: {', '.join(each)}{said} {tag('published')}.</p>" if each else ""
