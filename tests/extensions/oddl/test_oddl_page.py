"""The page of grids says what there is."""

from ringlight.containers.image import ROOT
from ringlight.experiments.analysis.metrics import table
from ringlight.experiments.record import lines


def test_the_page_lists_every_metric_and_record() -> None:
    """To bring it up to date, put what ``table`` of both gives in place of its last tables."""
    page = (ROOT / "docs" / "oddl.md").read_text()
    assert page.endswith(f"\n{table('ringlight.extensions.oddl')}")
    assert f"\n{lines.table('ringlight.extensions.oddl.records')}" in page
