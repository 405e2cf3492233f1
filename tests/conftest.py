"""Shared by all tests: what needs root says so, and a killed run's labs are removed by the next one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

#: Every process that the tests start inherits this: the process id of the test run that it belongs to.
RUN = "RINGLIGHT_TESTS"


def pytest_sessionstart(session: pytest.Session) -> None:
    if os.environ.get("PYTEST_XDIST_WORKER"):
        return  # the process that started this one has done it
    if os.geteuid() == 0:
        remove_what_killed_runs_left()
    os.environ[RUN] = str(os.getpid())


def remove_what_killed_runs_left() -> None:
    """Their labs; and files of labs whose processes have ended since by themselves."""
    labs = labs_of_killed_runs()
    if labs or any(Path("/run/ringlight").glob("*")):
        # Here, as few runs find anything, and it takes as long as many a test.
        from testbed.emulation.clean import clean, clean_stale

        for lab in labs:
            clean(lab)
        clean_stale()


def labs_of_killed_runs() -> set[str]:
    """Labs with a process that belongs to a test run which is no more."""
    labs = set()
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "environ").read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        environment = dict(word.partition("=")[::2] for word in words)
        run, lab = environment.get(RUN), environment.get("RINGLIGHT_LAB")
        if run and lab and not Path("/proc", run).exists():
            labs.add(lab)
    return labs


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if os.geteuid() == 0:
        return
    for item in items:
        if item.get_closest_marker("root"):
            item.add_marker(pytest.mark.skip(reason="needs root: run ./ringlight test as root"))
