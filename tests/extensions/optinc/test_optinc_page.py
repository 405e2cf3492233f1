"""The page of averagers says what there is."""

from ringlight.containers.image import ROOT
from ringlight.experiments.analysis.metrics import table
from ringlight.experiments.record import lines


def test_the_page_lists_every_metric() -> None:
    """To bring it up to date, put what ``table`` gives in place of its last table."""
    page = (ROOT / "docs" / "optinc.md").read_text()
    assert page.endswith(f"\n{table('ringlight.extensions.optinc')}")


def test_the_page_lists_every_kind_of_record() -> None:
    page = (ROOT / "docs" / "optinc.md").read_text()
    assert f"\n{lines.table('ringlight.extensions.optinc.averager_records')}\n" in page
