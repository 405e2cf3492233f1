"""The documentation lists every kind of record."""

from __future__ import annotations

from ringlight.containers.image import ROOT
from ringlight.experiments.record.lines import table


def test_the_documentation_lists_every_kind_of_record_as_it_is() -> None:
    assert f"\n{table()}" in (ROOT / "docs" / "records.md").read_text()
