"""docs/interchange.md shows what its commands print."""

from __future__ import annotations

import re

import pytest
import yaml

from ringlight.extensions.interchange.exports import FORMS
from ringlight.extensions.interchange.imports import READERS
from tests.extensions.interchange.fabrics import TWO_TORS, lit
from tests.extensions.interchange.page import PAGE, renewed


def test_the_outputs_are_those_of_the_commands() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert renewed(text) == text


def test_every_format_is_in_the_table() -> None:
    text = PAGE.read_text(encoding="utf-8")
    written = re.findall(r"`([a-z-]+)`", "".join(
        line.split("|")[2] for line in text.splitlines() if line.startswith("| ")
        and line.count("|") == 5
    ))  # fmt: skip
    assert sorted(set(written) - {"import"}) == sorted(FORMS)
    assert len(READERS) == 7


def test_the_script_of_the_page_loads_an_export() -> None:
    infragraph = pytest.importorskip("infragraph.infragraph_service")
    document = yaml.safe_load(FORMS["infragraph"].text(lit(TWO_TORS)).text)
    service = infragraph.InfraGraphService()
    service.set_graph(yaml.dump(document["infrastructure"]))
    service.annotate_graph(yaml.dump(document["annotations"]))
    assert len(service.get_networkx_graph()) == 39
