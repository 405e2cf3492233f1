"""The page of links that suffer says what there is."""

from ringlight.containers.image import ROOT
from ringlight.experiments.analysis.metrics import table
from ringlight.experiments.record import lines


def test_the_page_lists_every_metric_and_kind_of_record() -> None:
    """To bring it up to date, put what both give in place of its last tables."""
    page = (ROOT / "docs" / "links.md").read_text()
    assert page.endswith(f"\n{table('ringlight.extensions.impairments')}")
    assert f"\n{lines.table('ringlight.extensions.impairments.records')}\n" in page
