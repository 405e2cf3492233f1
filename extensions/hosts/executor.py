"""Dask as an executor: its workers compute simulated runs, and those that are hosts build labs."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from concurrent.futures import Executor
from contextlib import ExitStack, contextmanager

from ringlight.experiments.runner.executor_kinds import ExecutorKind
from ringlight.extensions.hosts.options import OnHosts

#: Seconds that a Dask scheduler has to answer.
DASK_S = 30.0


@contextmanager
def dask(address: str, workers: int | None = None) -> Iterator[Executor]:
    """Yield the executor of a Dask cluster: ``local`` makes one of ``workers`` processes, else a scheduler's
    address.

    A worker without this version of ringlight is refused. Raises ScenarioError if no scheduler answers.
    """
    from ringlight.experiments.language.text import ScenarioError

    try:
        from distributed import Client, LocalCluster
    except ImportError:
        raise ScenarioError(
            "--dask: Dask is not installed; install it with: pip install distributed"
        ) from None
    with ExitStack() as opened:
        cluster = address
        if address == "local":
            size = {
                "n_workers": workers or os.cpu_count() or 1,
                "threads_per_worker": 1,
            }
            cluster = opened.enter_context(
                LocalCluster(**size, host="127.0.0.1", dashboard_address=None)
            )
        try:
            client = opened.enter_context(Client(cluster, timeout=DASK_S))
        except (OSError, ValueError) as error:
            raise ScenarioError(f"--dask: {address} does not answer: {error}") from None
        yield client.get_executor()


def lost() -> tuple[type[BaseException], ...]:
    """Return the exception that Dask raises for a call whose workers died one after the other, if Dask was
    used.
    """
    if "distributed" not in sys.modules:
        return ()
    from distributed import KilledWorker

    return (KilledWorker,)


DASK = ExecutorKind(
    executor=dask,
    help="Compute on Dask: tcp://HOST:PORT, or local.",
    labs=OnHosts,
    lost=lost,
)
