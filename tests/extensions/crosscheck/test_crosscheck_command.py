"""What the command ``crosscheck`` refuses, in one line and before anything is made."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.test_cli import BUNDLED, one_line, ringlight


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (
            [str(BUNDLED), "--dask", "tls://h:1", "--rest", "127.0.0.1:1"],
            "--rest: without effect",
        ),
        ([str(BUNDLED), "--hosts", "2"], "--hosts: only with --dask"),
        ([str(BUNDLED), "--arm", "torus"], "there is no arm torus"),
        ([str(BUNDLED), "--runtime", "vm"], "'--runtime': 'vm' is not one of"),
        (["nowhere.yaml"], "nowhere.yaml: cannot be read"),
    ],
)
def test_wrong_input_is_one_line(
    arguments: list[str], part: str, tmp_path: Path
) -> None:
    done = ringlight("crosscheck", *arguments, "--runs", str(tmp_path))
    assert done.returncode == 2
    assert part in one_line(done)
    assert not list(tmp_path.iterdir())


def test_without_root_that_is_said_before_anything_is_made(tmp_path: Path) -> None:
    done = ringlight("crosscheck", str(BUNDLED), "--runs", str(tmp_path), root=False)
    assert done.returncode == 1
    assert "root is needed to build networks" in one_line(done)
    assert list(tmp_path.iterdir()) == []
