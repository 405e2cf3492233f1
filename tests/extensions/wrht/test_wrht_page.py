"""The page of rings says what there is."""

from ringlight.containers.image import ROOT
from ringlight.experiments.analysis.metrics import table
from tests.unit.test_collectives_page import check_rows


def test_the_page_lists_every_metric() -> None:
    """To bring it up to date, put what ``table`` gives in place of its last table."""
    page = (ROOT / "docs" / "wrht.md").read_text()
    assert page.endswith(f"\n{table('ringlight.extensions.wrht')}")


def test_its_row_among_the_collectives_has_its_figures() -> None:
    assert check_rows(ROOT / "docs" / "wrht.md") == [("all-reduce", "wrht")]
