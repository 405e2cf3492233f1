"""What a Calient switch speaks, and what it remembers."""

from __future__ import annotations

from pathlib import Path

import pytest

from ringlight.experiments.cli.common import UserError
from ringlight.experiments.cli.ocs_serve import serve
from ringlight.fabric.optical_drivers import protocols_of
from ringlight.testbed.emulation.optical.alone import read_served
from ringlight.testbed.emulation.optical.recovery import ModelledPaths


def test_it_speaks_tl1_and_rest() -> None:
    assert protocols_of("calient-s320") == ("calient-tl1", "calient-rest")
    assert read_served("calient-rest", "calient-s320") == (
        "calient-rest",
        ("127.0.0.1", 8081),
    )
    with pytest.raises(
        ValueError, match="a calient-s320 does not speak scpi; it speaks calient-tl1, "
    ):
        read_served("scpi", "calient-s320")


def test_spoilt_notes_are_named(tmp_path: Path) -> None:
    paths = ModelledPaths(tmp_path, "ocs", 8)
    row = {
        "source": 99,
        "destination": 2,
        "two_way": False,
        "group": "",
        "name": "",
        "nolight": True,
    }
    for note, said in (
        (row | {"active": True}, "there is no circuit 99>2"),
        (row, "missing"),
    ):
        paths.set_notes({"calient": [note]})
        paths.keep()
        paths.close()
        with pytest.raises(
            UserError, match=f"what it remembers of calient-tl1 is spoilt: .*{said}"
        ):
            serve(served=["calient-tl1=127.0.0.1:0"], ports=8, state=tmp_path)
        paths = ModelledPaths(tmp_path, "ocs", 8)
    paths.close()
