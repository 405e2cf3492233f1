"""Hostlists: as ``scontrol`` of a real Slurm has them."""

from __future__ import annotations

import shutil
import subprocess
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringlight.extensions.interchange.hostlists import MOST_NAMES, expand, fold
from tests.extensions.interchange.topologies import NAMES


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("g[0-2,5]", ["g0", "g1", "g2", "g5"]),
        ("gpu[008-010]", ["gpu008", "gpu009", "gpu010"]),
        ("g[0-1],h7", ["g0", "g1", "h7"]),
        ("r[0-1]n[0-1]", ["r0n0", "r0n1", "r1n0", "r1n1"]),
        ("tor-[1,03]", ["tor-1", "tor-03"]),
        ("login", ["login"]),
    ],
)
def test_expand(text: str, names: list[str]) -> None:
    assert expand(text) == names


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "'' is no hostlist"),
        ("g[0-2", "is no hostlist"),
        ("g0,,g1", "'' is no hostlist"),
        ("g[1-3]x", "is no hostlist"),
        ("switch{tor0}", "is no hostlist"),
        ("g[]", "has an empty range"),
        ("g[1,]", "'' is no range"),
        ("g[a]", "'a' is no range"),
        ("g[3-1]", "3-1 runs backwards"),
        ("g[0-65536]", "more than 65536 names"),
        ("g[0-300][0-300]", "more than 65536 names"),
        ("g[0-999999999999999999]", "more than 65536 names"),
    ],
)
def test_what_is_no_hostlist_is_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError) as caught:
        expand(text)
    assert message in str(caught.value)


def test_a_name_that_no_hostlist_can_hold_is_refused() -> None:
    with pytest.raises(ValueError, match="'g 0' is no name for a hostlist"):
        fold(["g0", "g 0"])


def test_the_largest_hostlist() -> None:
    assert len(expand(f"g[1-{MOST_NAMES}]")) == MOST_NAMES


def test_many_names_are_read_in_little_time() -> None:
    names = [f"n{number}x" for number in range(MOST_NAMES)]
    began = time.monotonic()
    assert expand(",".join(names)) == names
    odd = ",".join(str(number) for number in range(1, MOST_NAMES, 2))
    assert len(expand(f"g[{odd}]")) == MOST_NAMES // 2
    # Some 50 ms; minutes if the time grows with the square.
    assert time.monotonic() - began < 5


@given(st.lists(NAMES | st.from_regex(r"[0-9]{1,25}", fullmatch=True), max_size=20))
def test_folded_names_expand_to_themselves(names: list[str]) -> None:
    assert not names or expand(fold(names)) == names


@pytest.mark.skipif(shutil.which("scontrol") is None, reason="needs Slurm's scontrol")
def test_scontrol_folds_and_expands_the_same(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    conf = tmp_path_factory.mktemp("slurm") / "slurm.conf"
    conf.write_text("ClusterName=test\nSlurmctldHost=localhost\n")

    def scontrol(what: str, text: str) -> list[str]:
        return subprocess.run(
            ["scontrol", "show", what, text],
            env={"SLURM_CONF": str(conf), "PATH": "/usr/bin:/bin"},
            capture_output=True, text=True, timeout=30, check=True,
        ).stdout.split()  # fmt: skip

    @settings(max_examples=60, deadline=None)
    @given(st.lists(NAMES, min_size=1, max_size=12))
    def same(names: list[str]) -> None:
        folded = fold(names)
        assert scontrol("hostlist", ",".join(names)) == [folded]
        assert scontrol("hostnames", folded) == names

    same()
