"""Record processes of a lab that stand still, and switches that are not as the testbed left them."""

from __future__ import annotations

from dataclasses import dataclass, field

from ringlight.experiments.record.events import Record
from ringlight.experiments.record.lab_records import (
    ProcessFrozen,
    ProcessThawed,
    SwitchDrifted,
    SwitchMended,
    process_called,
)
from ringlight.testbed.deaths import Death


def freeze_line(death: Death) -> str:
    """Return a line for people about a process that stands still, or continues."""
    called = process_called(death.kind, death.name)
    return (
        f"  {called} goes on"
        if death.how is None
        else f"  {called} stands still ({death.how})"
    )


@dataclass
class Astray:
    """Makes records of what is read, for one lab."""

    #: Since when who stands still, or which bridge or port is not as it was left.
    _since: dict[tuple[str, str], float] = field(default_factory=dict)

    def record(self, death: Death, run: str) -> Record:
        """Return a reading of a process or switch as a record. ``run``: name of the run, "" between runs."""
        t, key = death.t, (death.kind, death.name)
        after_s = t - self._since.get(key, t)
        if death.how is not None:
            self._since[key] = t
        if death.frozen:
            kind, name = key
            if death.how is not None:
                return ProcessFrozen(t=t, run=run, kind=kind, name=name, how=death.how)
            return ProcessThawed(t=t, run=run, kind=kind, name=name, after_s=after_s)
        switch, _, number = death.name.partition(":")
        what = f"{death.kind} {number}".rstrip()
        if death.how is not None:
            return SwitchDrifted(
                t=t, run=run, switch=switch, what=what, text=death.how, planned=False
            )
        return SwitchMended(t=t, run=run, switch=switch, what=what, after_s=after_s)
