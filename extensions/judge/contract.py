"""The contract of a judge: a published table, its prediction from stated inputs, and the comparison.

A judge is a module of ``judges/`` with an object ``JUDGE``. Its ``predict`` reads the folder ``data/stated``
only. Its ``compare`` is called once all predictions are written, and reads ``data/outcomes``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Return the rows of a CSV file by its name, such as ``nccl/hardware.csv``, values as text.
ReadTable = Callable[[str], list[dict[str, str]]]

WITHIN, OUTSIDE, UNDECIDED = "within", "outside", "cannot be said"


@dataclass(frozen=True)
class Row:
    """One predicted figure: a case of a published table, such as a size. ``unit``: of ``value``."""

    table: str
    case: str
    value: float
    unit: str


@dataclass(frozen=True)
class Comparison:
    """A predicted figure beside its published figure, both in ``unit``.

    ``reach_percent``: the largest difference that the judge allows; None if no claim is made. ``note``: a
    remark for the page, for example that the published figure is below what its hardware gives.
    """

    table: str
    case: str
    predicted: float
    published: float
    unit: str
    reach_percent: float | None = None
    note: str = ""

    @property
    def difference_percent(self) -> float:
        """Return the difference of the prediction, per cent of the published figure."""
        return 100 * (self.predicted / self.published - 1)


@dataclass(frozen=True)
class Claim:
    """A statement on a judge's accuracy, such as "medians of all classes", with the measured value.

    ``measured``: the largest deviation, or None if the data cannot decide. ``limit``: the largest allowed
    value. Both are in ``unit``.
    """

    text: str
    measured: float | None
    limit: float
    unit: str = "%"

    @property
    def verdict(self) -> str:
        if self.measured is None:
            return UNDECIDED
        return WITHIN if self.measured <= self.limit else OUTSIDE


@dataclass(frozen=True)
class Judgement:
    """The result of a judge: figures side by side, and its claims."""

    comparisons: tuple[Comparison, ...]
    claims: tuple[Claim, ...]

    @property
    def verdict(self) -> str:
        """Return the worst verdict of the claims."""
        verdicts = {claim.verdict for claim in self.claims}
        for verdict in (OUTSIDE, UNDECIDED):
            if verdict in verdicts:
                return verdict
        return WITHIN if verdicts else UNDECIDED


@dataclass(frozen=True)
class Judge:
    """A published table, or several of one kind, and the means to predict and compare it.

    ``inputs`` and ``outcomes``: files below ``data/stated`` and ``data/outcomes``. ``source``: the
    publication, with its revision. ``needs``: by case, the parts of the model that its prediction uses.
    ``predict`` reads its inputs only. ``compare`` gets the predicted rows and reads its outcomes.
    ``reasons``: by the start of a claim's text, why the claim does not hold or cannot be decided, and what was
    tried. ``draw``: a figure of the comparisons, with its caption in ``caption``. ``by_default``: false for a
    judge that only runs by name, and in the process that called it.
    """

    name: str
    title: str
    source: str
    inputs: tuple[str, ...]
    outcomes: tuple[str, ...]
    needs: Mapping[str, str]
    predict: Callable[[ReadTable], Sequence[Row]]
    compare: Callable[[Sequence[Row], ReadTable], Judgement]
    reasons: Mapping[str, str] = field(default_factory=dict)
    draw: Callable[[Sequence[Comparison]], Figure] | None = None
    caption: str = ""
    by_default: bool = True

    def reason(self, claim: Claim) -> str:
        """Return why a claim is not within its limit, empty if it is or if no reason is known."""
        if claim.verdict == WITHIN:
            return ""
        texts = (
            why for start, why in self.reasons.items() if claim.text.startswith(start)
        )
        return next(texts, "")
