"""The page of rings says what there is."""

from ringlight.containers.image import ROOT
from ringlight.experiments.analysis.metrics import table
from ringlight.experiments.record import lines
from tests.unit.test_collectives_page import check_rows


def test_the_page_lists_every_metric_and_record() -> None:
    """To bring it up to date, put what ``table`` of both gives in place of its last tables."""
    page = (ROOT / "docs" / "wrht.md").read_text()
    assert page.endswith(f"\n{table('ringlight.extensions.wrht')}")
    assert f"\n{lines.table('ringlight.extensions.wrht.records')}" in page


def test_its_row_among_the_collectives_has_its_figures() -> None:
    assert check_rows(ROOT / "docs" / "wrht.md") == [("all-reduce", "wrht")]
