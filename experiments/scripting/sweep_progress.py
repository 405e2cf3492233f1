"""Progress of a sweep: how many of its runs are done."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
)

from ringlight.experiments.runner.progress import (
    BAR_EVERY_S,
    COMPUTED_EVERY_S,
    Reporter,
)

#: Runs beyond which they are counted, in place of a line for each.
MOST_LISTED = 8


class SweepReporter(Reporter):
    """Shows how many of ``count`` runs are done: a bar on a terminal and in a notebook, lines elsewhere.

    What happens within a run is not shown.
    """

    def __init__(self, count: int, *, quiet: bool = False) -> None:
        super().__init__(quiet=quiet)
        self._count, self._done, self._under_way = count, 0, False
        self._bar: _Bar | None = None
        if not quiet and self.console.is_jupyter:
            self._bar = _NotebookBar(count)
        elif self._live:
            self._bar = _TerminalBar(self, count)

    def say(self, text: str, style: str | None = None) -> None:
        if not self._under_way:
            super().say(text, style)

    def start_run(self, title: str, iterations: Mapping[str, int]) -> None:
        self._under_way = True

    def advance(self, done: Callable[[], Mapping[str, int]]) -> None:
        """Show nothing of iterations."""

    def end_run(self) -> None:
        if self._under_way:
            self._under_way = False
            self.runs_done(self._done + 1, self._count, "")

    def runs_done(self, done: int, count: int, rest: str) -> None:
        self._done = done
        every_s = COMPUTED_EVERY_S if self._bar is None else BAR_EVERY_S
        if time.monotonic() - self._last_line < every_s and done < count:
            return
        self._last_line = time.monotonic()
        if self._bar is None:
            super().runs_done(done, count, rest)
        else:
            self._bar.show(done)
        if done == count:
            self.close()

    def close(self) -> None:
        """End the bar."""
        if self._bar is not None:
            self._bar.close()


class _Bar:
    def show(self, done: int) -> None:
        """Show the number of runs that are done."""
        raise NotImplementedError

    def close(self) -> None:
        """Leave the terminal as it was."""


class _TerminalBar(_Bar):
    def __init__(self, reporter: Reporter, count: int) -> None:
        columns = (TextColumn("          runs"), BarColumn(34), MofNCompleteColumn())
        # Without the thread that would draw it: processes are forked meanwhile.
        self._progress = Progress(
            *columns,
            TimeElapsedColumn(),
            console=reporter.console,
            transient=True,
            auto_refresh=False,
        )
        self._task = self._progress.add_task("runs", total=count)
        self._progress.start()

    def show(self, done: int) -> None:
        self._progress.update(self._task, completed=done, refresh=True)

    def close(self) -> None:
        self._progress.stop()


class _NotebookBar(_Bar):
    def __init__(self, count: int) -> None:
        from IPython.display import display

        self._count = count
        self._shown: Any = display(self._bar(0), display_id=True)

    def show(self, done: int) -> None:
        self._shown.update(self._bar(done))

    def _bar(self, done: int) -> Any:
        from IPython.display import HTML

        bar = f'<progress value="{done}" max="{self._count}"></progress>'
        return HTML(f"{bar} {done:,} of {self._count:,} runs")
