"""Processes of this machine that compute the runs of a sweep, or a part of a command's work.

Those of other machines are extensions' (``executor_kinds``).
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import (
    BrokenExecutor,
    Executor,
    Future,
    ProcessPoolExecutor,
    wait,
)
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

A = TypeVar("A")
R = TypeVar("R")
#: Seconds after which a wait for a result heeds a signal that came just before the wait began.
_HEEDED_S = 1.0
_PR_SET_PDEATHSIG = 1
#: What the runs of a sweep import.
_PRELOADED = [
    "ringlight.experiments.runner.experiment",
    "ringlight.experiments.backends.simulation.backend",
]


@contextmanager
def processes(count: int | None = None) -> Iterator[Executor]:
    """Yield an executor of ``count`` processes of this machine, by default one for each processor."""
    # Not forked from here, as the process that asks may have threads of its own, but from one that has
    # imported what all of them need.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_PRELOADED)
    # Each has a processor: threads of its own would wait for those of the others more than they compute.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    with _ended(
        ProcessPoolExecutor(count or os.cpu_count() or 1, context, _begin_worker)
    ) as executor:
        yield executor


def result_of(future: Future[R]) -> R:
    """Return a future's result, waiting for it as long as it takes. Raises what the work raised.

    Python runs the handler of a signal between two of its instructions. If the signal comes after the last of
    them and before the lock's wait in the kernel, nothing ends that wait, so none here is without an end.
    """
    while not future.done():
        wait([future], _HEEDED_S)
    return future.result()


@contextmanager
def _ended(executor: ProcessPoolExecutor) -> Iterator[ProcessPoolExecutor]:
    """End an executor's processes with the block; at once if an exception ends it, as by a signal."""
    before = set(multiprocessing.active_children())
    try:
        yield executor
    except BaseException:
        # Nobody wants what they are at.
        for child in set(multiprocessing.active_children()) - before:
            child.terminate()
        raise
    finally:
        executor.shutdown(wait=True, cancel_futures=True)


def _begin_worker() -> None:
    """Ctrl-C is the parent's to handle; a worker ends with its parent, however that ended."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # One that was forked has the parent's handlers, which raise an exception and do not end it.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    parent = multiprocessing.parent_process()

    def follow() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=follow, daemon=True).start()


#: What the processes that are forked meanwhile are to call.
_shared: Callable[[Any], Any] | None = None


def _forks_pay() -> bool:
    """Return whether forked processes can do a part of the work.

    This process must have no other threads, which a fork would lose, and the load must leave processors free.
    """
    alone = (
        threading.active_count() == 1 and not multiprocessing.current_process().daemon
    )
    processors = len(os.sched_getaffinity(0))
    return alone and processors >= 2 and os.getloadavg()[0] <= processors


@contextmanager
def beside(
    prepare: Callable[[], object], work: Callable[[A], R]
) -> Iterator[Callable[[A], Callable[[], R]]]:
    """Begin ``work`` in a process that is forked from this one now and meanwhile does ``prepare``, a function
    of a module; what begins it returns what waits for it. Where a fork does not pay, or that process has been
    killed, it is done here, unprepared, when somebody waits."""
    global _shared
    if not _forks_pay():
        yield lambda argument: partial(work, argument)
        return
    context = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(1, mp_context=context, initializer=_begin_beside) as pool:
        _shared = work
        try:
            pool.submit(prepare)
        finally:
            _shared = None

        def begin(argument: A) -> Callable[[], R]:
            try:
                future: Future[R] = pool.submit(_call_shared, argument)
            except BrokenExecutor:
                # Somebody has killed it.
                return partial(work, argument)

            def ended() -> R:
                try:
                    result = result_of(future)
                except BrokenExecutor:
                    result = work(argument)
                return result

            return ended

        yield begin


def _begin_beside() -> None:
    """As of :func:`_begin_worker`, without a thread, so that it can fork in its turn."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def in_forks(function: Callable[[int], R], count: int) -> list[R]:
    """Return ``function`` of each number below ``count``, in order.

    Processes that are forked from this one, one for each processor, call the function, so it may be any
    function. If forks do not pay, this process calls it.
    """
    global _shared
    if not _forks_pay():
        return [function(number) for number in range(count)]
    _shared = function
    try:
        context = multiprocessing.get_context("fork")
        workers = len(os.sched_getaffinity(0))
        with _ended(ProcessPoolExecutor(workers, context, _begin_worker)) as pool:
            futures: list[Future[R]] = [
                pool.submit(_call_shared, number) for number in range(count)
            ]
            return [result_of(future) for future in futures]
    finally:
        _shared = None


def _call_shared(argument: Any) -> Any:
    assert _shared is not None
    return _shared(argument)
