"""Readers given files that were damaged anywhere: a fabric, or one line that begins with the file."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringlight.extensions.interchange.draft import Defaults, scenario_text
from ringlight.extensions.interchange.exports import FORMS
from ringlight.extensions.interchange.imports import READERS, format_of
from tests.extensions.interchange.fabrics import TWO_TORS, lit
from tests.extensions.interchange.test_imports import (
    DUMP,
    FOR_NCCL,
    GRAPH,
    MATRIX,
    MODEL,
    OLD_MATRIX,
)
from tests.extensions.interchange.test_infragraph import SERVERS
from tests.extensions.interchange.test_slurm_topology import (
    KINDS,
    SHOWN_BLOCKS,
    SHOWN_TREE,
    SPINES,
)

TEXTS = {
    "infragraph": FORMS["infragraph"].text(lit(TWO_TORS)).text,
    "infragraph of servers": SERVERS,
    "slurm-conf": FORMS["slurm-tree"].text(lit(TWO_TORS)).text,
    "slurm-yaml": FORMS["slurm-yaml"].text(lit(TWO_TORS)).text,
    "topograph-model": MODEL,
    "topograph-graph": GRAPH,
    "nccl": DUMP,
    "nvidia-smi": MATRIX,
    "slurm-conf of spines": SPINES,
    "slurm-conf of a shown tree": SHOWN_TREE,
    "slurm-conf of shown blocks": SHOWN_BLOCKS,
    "slurm-yaml of every kind": KINDS,
    "nccl of PCI devices": FOR_NCCL,
    "nvidia-smi of older drivers": OLD_MATRIX,
}
#: What is put in the place of a piece of a file.
PIECES = st.sampled_from(
    ["", " ", "\n", "0", "-1", "x", "[", "]", "{}", "null", "'", ":", "g[0-9", "1e999", "\x00", "é", "&a", "*a"]
) | st.text(max_size=4)  # fmt: skip


@pytest.mark.fuzz
@pytest.mark.parametrize("name", TEXTS)
@given(data=st.data())
def test_a_damaged_file_is_read_or_refused_in_one_line(
    name: str, data: st.DataObject
) -> None:
    text = TEXTS[name]
    for _ in range(data.draw(st.integers(1, 3))):
        start = data.draw(st.integers(0, len(text)))
        end = min(len(text), start + data.draw(st.integers(0, 12)))
        text = text[:start] + data.draw(PIECES) + text[end:]
    if data.draw(st.booleans()):
        line = data.draw(st.sampled_from(text.splitlines(keepends=True) or [""]))
        text = text.replace(line, "", 1)
    said = refused(text)
    assert said is None or "\n" not in said


def refused(text: str) -> str | None:
    """Why a text makes no scenario; None if it does."""
    try:
        form = format_of(text, "FILE")
        draft = READERS[form](text, "FILE", Defaults())
    except ValueError as error:
        said = str(error)
        return said if said.startswith("FILE: ") else f"{said}\nwithout the file"
    try:
        scenario_text(draft, "FILE", "FILE")
    except ValueError as error:
        return str(error)
    return None
