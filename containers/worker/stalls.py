"""Times in which a collective waited and no byte moved."""

from __future__ import annotations

from dataclasses import dataclass, field

#: Shorter stalls are not reported one by one: queues alone make them.
STALL_S = 0.02


@dataclass
class Stalls:
    """``longest_s`` of all; ``spans`` of those of at least STALL_S, CLOCK_MONOTONIC seconds."""

    longest_s: float = 0.0
    spans: list[tuple[float, float]] = field(default_factory=list)

    def note(self, begin: float, end: float) -> None:
        self.longest_s = max(self.longest_s, end - begin)
        if end - begin >= STALL_S:
            self.spans.append((begin, end))
