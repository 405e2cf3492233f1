"""Looks whether a lab's bridges and ports are as they were left: others on the machine may delete them."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from types import TracebackType

from ringlight.testbed.deaths import Deaths, ProcessKind
from ringlight.testbed.emulation.kernel.netns import Link, LinkWatcher

log = logging.getLogger(__name__)

#: Between two looks, seconds. What two looks in a row see is so, and no change that is under way.
LOOK_S = 0.5
STOP_S = 5.0

#: What a bridge or port is that it should not be, in words, by its kind and name.
Found = Mapping[tuple[ProcessKind, str], str]


@dataclass
class Astray:
    """From looks to what is new: what is not as it was left, or is again."""

    _before: Found = field(default_factory=dict)
    _reported: dict[tuple[ProcessKind, str], str] = field(default_factory=dict)

    def look(self, problems: Found) -> list[tuple[ProcessKind, str, str | None]]:
        """Return kind, name and fault of each thing newly reported, with None as fault if the thing is in
        order again."""
        new: list[tuple[ProcessKind, str, str | None]] = []
        for key in problems.keys() & self._before.keys() - self._reported.keys():
            self._reported[key] = problems[key]
            new.append((*key, problems[key]))
        for key in self._reported.keys() - problems.keys():
            del self._reported[key]
            new.append((*key, None))
        self._before = problems
        return sorted(new, key=lambda report: report[:2])


class NetworkWatch:
    """Looks from a thread while it is entered, and notes what is found.

    ``look`` makes that of the interfaces of the machine's own namespace.
    """

    def __init__(self, look: Callable[[Iterable[Link]], Found], deaths: Deaths) -> None:
        self._look, self._deaths = look, deaths
        self._stop = threading.Event()
        self._thread = threading.Thread(
            target=self._run, name="network watch", daemon=True
        )

    def __enter__(self) -> NetworkWatch:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        self._thread.join(STOP_S)

    def _run(self) -> None:
        astray = Astray()
        with closing(LinkWatcher(None)) as links:
            while not self._stop.wait(LOOK_S):
                self._look_once(astray, links)

    def _look_once(self, astray: Astray, links: LinkWatcher) -> None:
        try:
            problems = self._look(links.changed().values())
        except (OSError, ValueError, KeyError) as error:
            # Open vSwitch may stand still, which is noted elsewhere.
            log.warning("the network cannot be looked at: %s", error)
            return
        for kind, name, how in astray.look(problems):
            log.warning("%s %s: %s", kind, name, how or "is as it should be again")
            if how is None:
                self._deaths.back(kind, name)
            else:
                self._deaths.ended(kind, name, how, False)
