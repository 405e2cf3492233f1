"""The machine's services, and standing labs, where they do not do as they are told."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ringlight.testbed import processes, services
from ringlight.testbed.lab import Lab
from ringlight.testbed.services import ServiceError


@pytest.mark.parametrize(
    ("command", "said"), [(["sleep", "60"], "timed out after"), (["/no/such/command"], "No such file")]
)
def test_a_start_that_hangs_or_is_not_there_is_named(
    command: list[str], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(services, "START_S", 0.2)
    with pytest.raises(ServiceError, match=f"the service could not be started: .*{said}"):
        services._run(command, "the service")


def test_open_vswitch_that_does_not_come_up_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    hangs = tmp_path / "ovs-ctl"
    hangs.write_text("#!/bin/sh\nexec sleep 60\n")
    hangs.chmod(0o755)
    monkeypatch.setattr(services, "OVS_CTL", hangs)
    monkeypatch.setattr(services, "START_S", 0.2)
    with pytest.raises(ServiceError, match=r"Open vSwitch could not be started: .*timed out"):
        services._start_ovs_by_hand()


def test_a_standing_labs_process_may_end_before_it_is_told_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "_belongs_to", lambda lab, pid: True)
    told: list[str] = []
    gone = os.posix_spawnp("true", ["true"], os.environ)
    os.waitpid(gone, 0)
    processes._end_stranger(Lab("test"), "controller", gone, told.append)
    assert told == []
