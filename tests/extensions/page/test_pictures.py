"""The line below the README's animation."""

from __future__ import annotations

import pytest

from ringlight.experiments.language.text import ScenarioError
from tests.extensions.page.pictures import CAPTION, README, caption

FACTS = {
    "processor": "EPYC",
    "processors": 2,
    "commit": "0123456789",
    "started": "2026-11-30T14:39:27+00:00",
}


def test_the_line_names_machine_commit_day_rating_and_commands() -> None:
    assert caption(FACTS, "good") == (
        "Measured on EPYC, 2 processors, commit 0123456789, 2026-11-30, rated good; "
        "`./ringlight run scenarios/disaggregation.yaml --arm live`, "
        "drawn by `python -m tests.extensions.page.pictures`."
    )


@pytest.mark.parametrize(
    ("commit", "rating"),
    [({"commit": "0123456789-dirty"}, "good"), ({"commit": ""}, "bad")],
)
def test_a_changed_tree_or_a_bad_run_is_refused(
    commit: dict[str, str], rating: str
) -> None:
    with pytest.raises(ScenarioError):
        caption(FACTS | commit, rating)


def test_the_readme_has_such_a_line() -> None:
    (line,) = CAPTION.findall(README.read_text())
    assert line.startswith("Measured on ")
    assert "-dirty" not in line
