"""Fork servers of hosts: processes of labs are forked from one that has imported what they need."""

from __future__ import annotations

import atexit
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache

from ringlight.testbed.forkserver import forking
from ringlight.testbed.preloaded import PROGRAMS


@contextmanager
def forked_labs() -> Iterator[None]:
    """Meanwhile, those of labs that this process builds."""
    with forking(PROGRAMS):
        yield


@cache
def fork_from_now_on() -> None:
    """Those of all labs that this process builds, which end with it."""
    undo = ExitStack()
    undo.enter_context(forked_labs())
    atexit.register(undo.close)
