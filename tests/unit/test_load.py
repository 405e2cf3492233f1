"""Who used the processors: a lab's own processes are told from others'."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from ringlight.testbed import load
from ringlight.testbed.lab import ENVIRONMENT
from ringlight.testbed.load import ProcessorLoad, Shares

LAB = "zzz9"
SPIN = "while True: pass"


def test_a_busy_loop_is_anothers_unless_it_carries_the_label() -> None:
    theirs = subprocess.Popen([sys.executable, "-c", SPIN])
    ours = subprocess.Popen(
        [sys.executable, "-c", SPIN], env={**os.environ, ENVIRONMENT: LAB}
    )
    try:
        # A process is what it was before until it has executed.
        time.sleep(0.2)
        measured = ProcessorLoad(LAB)
        time.sleep(0.5)
        shares = measured.shares()
        seen = {pid for pid, _ in measured._processes}
    finally:
        for process in (theirs, ours):
            process.kill()
            process.wait(5)
    assert theirs.pid in seen
    assert ours.pid not in seen
    assert os.getpid() not in seen
    assert shares.others > 0
    assert shares.busy >= shares.others / 3


def test_one_that_began_since_the_last_reading_counts() -> None:
    measured = ProcessorLoad(LAB)
    process = subprocess.Popen([sys.executable, "-c", SPIN])
    try:
        time.sleep(0.5)
        before = dict(measured._processes)
        shares = measured.shares()
    finally:
        process.kill()
        process.wait(5)
    assert process.pid not in {pid for pid, _ in before}
    assert shares.others > 0


def test_shares_are_of_all_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    readings = iter([(1000, 400, 50), (1200, 500, 60), (1200, 500, 60)])
    processes = iter([{(7, 1): 10}, {(7, 1): 30, (8, 2): 30}, {}])
    monkeypatch.setattr(load, "machine_ticks", lambda: next(readings))
    monkeypatch.setattr(ProcessorLoad, "_others", lambda self: next(processes))
    measured = ProcessorLoad(LAB)
    shares = measured.shares()
    assert (shares.busy, shares.stolen, shares.others) == pytest.approx(
        (0.5, 0.05, 0.25)
    )
    assert shares.taken == pytest.approx(0.3)
    assert measured.shares() == Shares()
