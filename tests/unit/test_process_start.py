"""The end of a process of a lab, with programs that end when asked, or do not."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from ringlight.testbed.process_start import end_process

STUBBORN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); time.sleep(60)"


@pytest.mark.parametrize(
    ("program", "in_time", "code"),
    [
        ("import time; print(flush=True); time.sleep(60)", True, -signal.SIGTERM),
        (STUBBORN, False, -signal.SIGKILL),
        ("print()", True, 0),
    ],
)
def test_a_process_that_does_not_end_when_asked_is_killed(
    program: str, in_time: bool, code: int
) -> None:
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    with process:
        assert process.stdout is not None
        assert process.stdout.readline()
        if code == 0:
            process.wait(20)
        assert end_process(process, 20.0 if in_time else 0.2) is in_time
        assert process.returncode == code
