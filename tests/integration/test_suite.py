"""The suite itself: who kills it in the middle leaves labs, which its next run removes."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from ringlight.testbed.emulation.clean import clean
from ringlight.testbed.lab import ENVIRONMENT, STATE_ROOT, Lab
from tests.conftest import RUN, environments, lives
from tests.integration.labs import traces, until
from tests.integration.test_run import ROOT

pytestmark = [pytest.mark.root, pytest.mark.labs]

#: Tests with a lab: in a process of pytest's; of a ``ringlight run``, whose workers are containers.
OWN = ["tests/integration/test_faults.py", "-k", "test_a_cut_cable_has_no_carrier"]
OF_A_RUN = ["tests/integration/test_run.py", "-k", "test_a_killed_worker_is_one_line"]
#: Whatever the next one runs, it first removes what they left.
NEXT = ["tests/unit/test_fabric_units.py"]
#: What all processes of these suites inherit.
MARK = "RINGLIGHT_KILLED_SUITE"


class Suite:
    """``./ringlight test`` of one test."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.mark, self.output = str(folder), folder / "output.txt"
        mine = {k: v for k, v in os.environ.items() if k != RUN} | {MARK: self.mark}
        with self.output.open("a") as file:
            self.process = subprocess.Popen(
                [ROOT / "ringlight", "test", "-q", *arguments],
                env=mine,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def processes(self) -> list[tuple[int, str | None]]:
        """Those that live, also of the suites before it, each with its lab."""
        return [
            (pid, environment.get(ENVIRONMENT))
            for pid, environment in environments()
            if environment.get(MARK) == self.mark and lives(str(pid))
        ]

    def lab(self, timeout_s: float, without: Collection[str]) -> str:
        """One that is not of those, as soon as it is up."""

        def up() -> set[str]:
            labs = {lab for _, lab in self.processes() if lab} - set(without)
            return {
                lab for lab in labs if (STATE_ROOT / lab / "inventory.json").exists()
            }

        until(up, timeout_s, self.output.read_text)
        return up().pop()

    def tests(self) -> str:
        """The process id of pytest, which it waits for."""
        number = self.process.pid
        return Path(f"/proc/{number}/task/{number}/children").read_text().split()[0]


@contextmanager
def suite(folder: Path, *arguments: str) -> Iterator[Suite]:
    made = Suite(folder, *arguments)
    try:
        yield made
    finally:
        with suppress(ProcessLookupError):
            os.killpg(made.process.pid, signal.SIGKILL)
        made.process.wait(10)


def test_what_a_killed_suite_leaves_the_next_one_removes(tmp_path: Path) -> None:
    seen: list[str] = []
    try:
        # Alone, without what it started; and its whole process group. The second removes what the first left.
        for kill, arguments in ((os.kill, [*OWN, "-n", "2"]), (os.killpg, OF_A_RUN)):
            with suite(tmp_path, *arguments) as killed:
                seen.append(killed.lab(60, without=seen))
                tests = killed.tests()
                kill(killed.process.pid, signal.SIGKILL)
                until(lambda tests=tests: not lives(tests), 30)
                assert " passed" not in killed.output.read_text()
        # As one of its tests may have started, in a session of its own.
        stays = subprocess.Popen(
            ["sleep", "100"], env={RUN: tests, MARK: str(tmp_path)}
        )
        with suite(tmp_path, *NEXT) as last:
            assert last.process.wait(120) == 0, last.output.read_text()
            assert last.processes() == []
        stays.wait(10)
        assert [trace for lab in seen for trace in traces(Lab(lab))] == []
    finally:
        for lab in seen:
            clean(lab)
