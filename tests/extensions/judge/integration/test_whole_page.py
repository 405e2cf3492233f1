"""All judges, and their page as it stands."""

from __future__ import annotations

from pathlib import Path

from ringlight.experiments.record.version import ROOT
from ringlight.extensions.judge.contract import OUTSIDE
from ringlight.extensions.judge.judging import all_judges, judge_all
from ringlight.extensions.judge.page import page_of


def test_the_page_is_what_the_judges_say_now(tmp_path: Path) -> None:
    chosen = [judge for judge in all_judges().values() if judge.by_default]
    judged = judge_all(chosen, tmp_path, print, processes=2)
    assert page_of(judged) == (ROOT / "docs/judges.md").read_text()
    kinds = {item.judge.name: item.judgement.verdict for item in judged}
    for name in ("astra_sim", "clos", "rotornet"):
        assert kinds[name] != OUTSIDE
