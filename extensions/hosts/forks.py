"""Fork servers of hosts: processes of labs are forked from one that has imported what they need."""

from __future__ import annotations

import atexit
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from importlib import import_module

from ringlight.testbed.forkserver import forking
from ringlight.testbed.preloaded import lab_modules

#: Builds a part of a lab over several hosts.
TESTBED = "ringlight.extensions.hosts.testbed"
#: Makes a run of a lab over several hosts, on the first.
KEPT_RUN = "ringlight.extensions.hosts.kept_run"
_KEPT = (KEPT_RUN, "distributed")
#: What a host's worker needs for a lab: to have it made, and to remove what is left.
_OF_A_HOST = (
    KEPT_RUN,
    "ringlight.extensions.hosts.part",
    "ringlight.testbed.emulation.clean",
    "docker",
)


@contextmanager
def forked_labs() -> Iterator[None]:
    """Fork the processes of labs that this process builds in the block from a fork server."""
    with forking((*lab_modules(), TESTBED)):
        yield


@cache
def fork_from_now_on() -> None:
    """Fork the processes of all labs of this process, and of runs that outlive it, from a server.

    The server ends with this process, which itself begins to import the modules that it will need.
    """
    undo = ExitStack()
    undo.enter_context(forking((*lab_modules(), TESTBED, *_KEPT)))
    atexit.register(undo.close)
    threading.Thread(
        target=lambda: [*map(import_module, _OF_A_HOST)], name="imports", daemon=True
    ).start()
