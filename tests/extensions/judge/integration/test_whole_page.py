"""All judges: no outcome is read before all predictions are on disk, and their pages are as they stand."""

from __future__ import annotations

import sys
from pathlib import Path

from ringlight.experiments.record.version import ROOT
from ringlight.extensions.judge.contract import OUTSIDE
from ringlight.extensions.judge.judging import PREDICTIONS, all_judges, judge_all
from ringlight.extensions.judge.page import pages_of, picture_of
from ringlight.extensions.judge.pictures import predictions_of
from ringlight.extensions.judge.reading import OUTCOMES

DOCS = ROOT / "docs"


def test_the_pages_are_what_the_judges_predict_before_they_read(tmp_path: Path) -> None:
    watching, early, late = True, [], []

    def watch(event: str, arguments: tuple[object, ...]) -> None:
        if watching and event == "open" and str(OUTCOMES) in str(arguments[0]):
            written = (tmp_path / PREDICTIONS).exists()
            (late if written else early).append(arguments[0])

    sys.addaudithook(watch)
    judges = all_judges()
    chosen = [judge for judge in judges.values() if judge.by_default]
    # In this process, where files are watched.
    judged = judge_all(chosen, tmp_path, print, processes=1)
    watching = False
    assert not early
    assert len(late) == sum(len(judge.outcomes) for judge in chosen)
    named = [name for name, judge in judges.items() if not judge.by_default]
    for file, text in pages_of(judged, named).items():
        assert text == (DOCS / file).read_text(encoding="utf-8"), file
    for item in judged:
        if item.judge.draw is not None:
            shown = predictions_of(DOCS / picture_of(item.judge.name))
            assert shown == item.sha256
    kinds = {item.judge.name: item.judgement.verdict for item in judged}
    for name in ("astra_sim", "clos", "rotornet", "simai"):
        assert kinds[name] != OUTSIDE
