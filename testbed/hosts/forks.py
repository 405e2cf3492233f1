"""Fork servers of hosts: processes of labs are forked from one that has imported what they need."""

from __future__ import annotations

import atexit
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache

from ringlight.testbed.forkserver import forking
from ringlight.testbed.preloaded import KEPT_RUN, PROGRAMS


@contextmanager
def forked_labs() -> Iterator[None]:
    """Meanwhile, those of labs that this process builds."""
    with forking(PROGRAMS):
        yield


@cache
def fork_from_now_on() -> None:
    """Processes of all labs that this process builds, and what makes runs that go on without it. What is
    forked for its own labs ends with it."""
    undo = ExitStack()
    undo.enter_context(forking((*PROGRAMS, KEPT_RUN)))
    atexit.register(undo.close)
