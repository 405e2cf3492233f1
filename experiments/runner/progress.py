"""Progress on standard error: a live display on a terminal, plain lines elsewhere."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)
from rich.text import Text

from ringlight.fabric.text import visible

#: Seconds between two lines about one run where there is no terminal, and between two drawings of a bar.
LINE_EVERY_S, BAR_EVERY_S = 5.0, 0.1
#: Seconds between two lines about runs that are computed, and least between two notes of one of them.
COMPUTED_EVERY_S, NOTE_EVERY_S = 2.0, 0.5
#: Jobs beyond these have one bar, or one number, together.
MOST_NAMED = 12


class Reporter:
    """Says what a run is doing. Standard output stays free for the result. ``quiet``: says nothing."""

    def __init__(self, *, quiet: bool = False) -> None:
        self.console = Console(
            stderr=True, highlight=False, soft_wrap=True, quiet=quiet
        )
        self._live = sys.stderr.isatty() and not quiet
        self._bars: Progress | None = None
        self._tasks: dict[str, TaskID] = {}
        self._totals: Mapping[str, int] = {}
        self._started = time.monotonic()
        self._last_line = 0.0

    def say(self, text: str, style: str | None = None) -> None:
        """Print one line, with the seconds since the start in front."""
        elapsed = time.monotonic() - self._started
        # In one piece: a bar is drawn anew after each, over a line that has not ended.
        self.console.print(
            Text.assemble(
                (f"{elapsed:6.1f} s", "dim"), "  ", (visible(text), style or "")
            )
        )

    def start_run(self, title: str, iterations: Mapping[str, int]) -> None:
        """Begin to show a run: iterations to do, by job."""
        self.end_run()
        self.say(title)
        self._last_line, self._totals = time.monotonic(), iterations
        if self._live:
            shown = (
                TextColumn("          {task.description}"),
                BarColumn(bar_width=34),
                MofNCompleteColumn(),
            )
            self._bars = Progress(
                *shown, TimeElapsedColumn(), console=self.console, transient=True
            )
            self._bars.start()
            if len(iterations) > MOST_NAMED:
                iterations = {f"{len(iterations):,} jobs": sum(iterations.values())}
            self._tasks = {
                job: self._bars.add_task(f"{job:<8}", total=n)
                for job, n in iterations.items()
            }

    def advance(self, done: Callable[[], Mapping[str, int]]) -> None:
        """Show iterations done so far, by job, which ``done`` counts, if the last time was a while ago."""
        if time.monotonic() - self._last_line < (
            LINE_EVERY_S if self._bars is None else BAR_EVERY_S
        ):
            return
        self._last_line = time.monotonic()
        counts = done()
        if self._bars is None:
            self.say(f"  {self._counted(counts)}")
        elif len(counts) > MOST_NAMED:
            self._bars.update(*self._tasks.values(), completed=sum(counts.values()))
        else:
            for job, count in counts.items():
                self._bars.update(self._tasks[job], completed=count)

    def _counted(self, done: Mapping[str, int]) -> str:
        if len(done) <= MOST_NAMED:
            return ", ".join(
                f"{job} {count}/{self._totals[job]}" for job, count in done.items()
            )
        over = sum(count >= self._totals[job] for job, count in done.items())
        share = sum(done.values()) / max(1, sum(self._totals[job] for job in done))
        return f"{share:.0%} of the iterations of {len(done):,} jobs, {over:,} of them ended"

    def computed(self, title: str, share: float) -> None:
        """Print the done share (0 to 1) of a run that this process computes, at most every COMPUTED_EVERY_S
        seconds.
        """
        if time.monotonic() - max(self._started, self._last_line) >= COMPUTED_EVERY_S:
            self._last_line = time.monotonic()
            self.say(f"  {title}: {share:.0%}")

    def runs_done(self, done: int, count: int, rest: str) -> None:
        """Print how many runs of ``count`` are done, and the ``rest`` of the line."""
        self.say(f"{done:,} of {count:,} runs{rest}")

    def end_run(self) -> None:
        """End to show a run."""
        if self._bars is not None:
            self._bars.stop()
            self._bars = None

    def close(self) -> None:
        """Leave the terminal as it was."""
        self.end_run()


class Notes:
    """Progress of the runs that other processes of this machine compute, one file for each process in a
    folder.

    Without that folder, as on another machine, nothing is noted.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._last = 0.0

    def note(self, title: str, share: float) -> None:
        """Note the done share (0 to 1) of the run of this process, at most every NOTE_EVERY_S seconds."""
        if time.monotonic() - self._last >= NOTE_EVERY_S:
            self._last = time.monotonic()
            partly = self._folder / f"{os.getpid()}.part"
            with suppress(FileNotFoundError):
                partly.write_text(f"{share:.4f} {title}")
                partly.rename(self._folder / str(os.getpid()))

    def clear(self) -> None:
        """The run of this process is over."""
        (self._folder / str(os.getpid())).unlink(missing_ok=True)

    def read(self) -> list[str]:
        """Return the title and progress in per cent of each run that is in progress."""
        lines = []
        for path in sorted(self._folder.iterdir()):
            # A run may end meanwhile, and its note go.
            with suppress(FileNotFoundError):
                if not path.suffix:
                    share, _, title = path.read_text().partition(" ")
                    lines.append(f"{title} {float(share):.0%}")
        return lines
