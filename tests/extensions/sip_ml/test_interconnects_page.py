"""The page of interconnects says what there is."""

from ringlight.containers.image import ROOT
from ringlight.experiments.analysis.metrics import table
from ringlight.experiments.record import lines

PAGE = ROOT / "docs" / "interconnects.md"


def test_the_page_lists_every_metric() -> None:
    """To bring it up to date, put what ``table`` gives in place of its last table."""
    assert PAGE.read_text().endswith(f"\n{table('ringlight.extensions.sip_ml')}")


def test_the_page_lists_every_kind_of_record() -> None:
    assert (
        f"\n{lines.table('ringlight.extensions.sip_ml.records')}\n" in PAGE.read_text()
    )
