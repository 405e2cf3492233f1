"""Whether it is the same training: parameters bit by bit, accuracy, payload."""

from __future__ import annotations

from collections.abc import Callable

from ringlight.experiments.report.page import NOTHING, folded, mark, table_of, tag, text
from ringlight.experiments.report.view import PUBLISHED, Draw, Figures, View
from ringlight.experiments.report.words import YES_NO, amount, percent

ORDER = 27
TITLE = "Is it the same training?"
NEEDS = ("parameters_identical",)


def wanted(view: View) -> list[Figures]:
    return [at for at in view.each("job") if at.row("parameters_identical") is not None]


def render(view: View, draw: Draw) -> str:
    found = wanted(view)
    alike = all(at.truth("parameters_identical") for at in found)
    shown = table_of(
        found,
        [
            ("job", lambda at: text(at.name)),
            ("parameters", _digest),
            ("all alike", lambda at: _yes(at.truth("parameters_identical"))),
            ("loss", _loss),
            ("accuracy", lambda at: percent(at.number("accuracy"), 2)),
            ("payload", _of_run("payload_received")),
            ("bytes lost", _of_run("payload_lost")),
            ("sent again", _of_run("retransmits")),
            ("connections kept", lambda at: YES_NO[at.truth("connections_unchanged")]),
            ("as the baseline", lambda at: YES_NO[_as_baseline(at)]),
        ],
        2,
        group=lambda at: text(at.title),
    )
    return (
        "<p>Final parameters of all ranks bit-identical to the same training in one process: "
        f"{_yes(alike)}.</p>{_published(view)}"
        + folded("Parameters, losses and bytes of every job", f"{shown}{_explained()}")
    )


def _explained() -> str:
    return (
        f'<p class="quiet">All {tag("measured")}. Parameters: the first digits of their SHA-256. All alike: '
        "every rank and the same training in one process ended with them, bit by bit; collectives that add "
        "in another order may end in other last bits. A byte is lost when its rank sent it and the peer did "
        "not get it; what the network drops TCP sends again, counted in segments. As the baseline: the "
        "same parameters, where the same was trained with the same collective. Payload is that of all jobs "
        "of the run.</p>"
    )


def _yes(value: bool | None) -> str:
    return mark("good", "yes") if value else YES_NO[value]


def _digest(at: Figures) -> str:
    digest = at.value("parameters_sha256")
    return f"<code>{text(str(digest)[:12])}</code>" if digest else NOTHING


def _loss(at: Figures) -> str:
    first, last = at.numbers("loss_first", "loss_last")
    return NOTHING if first is None or last is None else f"{first:.2f} → {last:.2f}"


def _of_run(metric: str) -> Callable[[Figures], str]:
    return lambda at: at.view.at(at.arm, "run").figure(metric)


def _as_baseline(at: Figures) -> bool | None:
    """Whether an arm that trained the same as its baseline ended with the same parameters."""
    mine = [one for one in at.view.comparisons if (one.arm, one.subject) == (at.arm, at.subject)]
    return next((same for one in mine if (same := one.truth("parameters_equal")) is not None), None)


def _published(view: View) -> str:
    each = [
        f"{text(view.title(row.arm))} {amount(row.value, row.unit, row.metric)}"
        for row in view.rows
        if row.metric == "accuracy" and row.label == PUBLISHED
    ]
    said = f"{', '.join(each)}{view.says('training')} {tag(PUBLISHED)}"
    return f"<p>Published accuracy: {said}.</p>" if each else ""
