"""What is written, read and written again: the same document, as far as a format can say it."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from hypothesis import given, settings

from ringlight.extensions.interchange.draft import Defaults, scenario_text
from ringlight.extensions.interchange.draft import fabric_of as drafted
from ringlight.extensions.interchange.exports import FORMS
from ringlight.extensions.interchange.imports import READERS, format_of
from ringlight.extensions.interchange.snapshot import Snapshot
from tests.extensions.interchange.fabrics import documents, lit


def again(form: str, text: str) -> str:
    """Return the export of what is imported of an export."""
    draft = READERS[format_of(text, "test")](text, "test", Defaults())
    assert scenario_text(draft, "test", "test")
    fabric = drafted(draft)
    return FORMS[form].text(Snapshot("test", fabric, fabric.circuits)).text


def said(text: str) -> list[str]:
    """Return the lines of a text but for those that name what is not carried."""
    return [line for line in text.splitlines() if "not carried" not in line]


@pytest.mark.parametrize("form", ["slurm-tree", "slurm-block", "slurm-yaml", "topograph"])  # fmt: skip
@settings(deadline=None, max_examples=50)
@given(document=documents())
def test_trees_are_written_again_line_by_line(
    form: str, document: dict[str, Any]
) -> None:
    text = FORMS[form].text(lit(document)).text
    assert said(again(form, text)) == said(text)


def graph_said(text: str) -> dict[str, Any]:
    """Return an InfraGraph document with its edges, instances and annotations in an order of their own."""
    document: dict[str, Any] = yaml.safe_load(text)
    for part in (*document["infrastructure"].values(), *document["annotations"].values()):  # fmt: skip
        if isinstance(part, list):
            part.sort(key=str)
    return document


@pytest.mark.parametrize("form", ["infragraph", "infragraph-lit"])
@settings(deadline=None, max_examples=15)
@given(document=documents())
def test_infragraph_is_written_again_with_its_optical_parts(
    form: str, document: dict[str, Any]
) -> None:
    pytest.importorskip("infragraph")
    text = FORMS[form].text(lit(document)).text
    written = again(form, text)
    assert graph_said(again(form, written)) == graph_said(written)
