"""A process that draws a report, and gets ready for it while there is nothing to draw yet: what drawing needs
takes longer to load than many a simulation takes."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Executor
from contextlib import contextmanager

from experiments.runner.executors import processes


@contextmanager
def drawing_ahead() -> Iterator[Executor]:
    """For :func:`experiments.runner.command.finish`; it ends with the block."""
    with processes(1) as executor:
        executor.submit(_get_ready)
        yield executor


def _get_ready() -> None:
    import networkx  # noqa: F401

    import experiments.runner.command  # noqa: F401
    from experiments.report import drawing  # noqa: F401
    from experiments.report.report import sections

    sections()
