"""Records of a lab and its machine: links, ports, processors, processes and switches."""

from __future__ import annotations

from dataclasses import field
from typing import Any

from ringlight.experiments.record.events import Record


class LinkBytes(Record, event="link_bytes"):
    """Traffic over the packet switches' links while a job of guests ran, by the counters of their
    ports: bytes of frames ``from`` the port at one end ``to`` the port at the other. ``beside``: other
    jobs that ran at the same time, whose bytes are also counted."""

    job: str
    links: list[dict[str, Any]]
    beside: list[str] = field(default_factory=list)


class ProcessorLoad(Record, event="cpu"):
    """Shares (0..1) of all processors: busy, stolen by the hypervisor (a part of busy), and used by
    processes outside of the lab."""

    busy: float
    stolen: float | None = None
    others: float | None = None


class PortRate(Record, event="port_rate"):
    """Rates that a packet switch's port received and sent over the last sampling interval, bits per
    second."""

    switch: str
    port: int
    gpu: str | None
    peer: str | None
    rx_bps: float
    tx_bps: float


class LinkRate(Record, event="link_rate"):
    """One direction of a link against its setting, bits per second; the use of the processors
    meanwhile."""

    fabric: str
    link: str
    direction: str
    set_bps: float
    measured_bps: float
    stolen: float | None = None
    others: float | None = None
    busy: float | None = None


class LinkRateDisturbed(LinkRate, event="link_rate_disturbed"):
    """One direction of a link, measured while other programs used the processors; it is measured again."""


class ProcessEnded(Record, event="process_ended"):
    """A process of the lab ended. ``kind``: optical switch, O-NIC agent, controller, a device, the name
    of a program of an extension, Open vSwitch (the machine's), or a process on another host of the lab.
    ``how`` in words; ``planned``: by an event of the run."""

    kind: str
    name: str
    how: str
    planned: bool

    @property
    def process(self) -> str:
        """The process as a sentence names it."""
        return process_called(self.kind, self.name)


class ProcessBack(Record, event="process_back"):
    """A process that had ended was started again; ``away_s``: its absence."""

    kind: str
    name: str
    away_s: float


class ProcessFrozen(Record, event="process_frozen"):
    """A process stood still from ``t`` on, for longer than its work allows. ``kind``: like
    ``process_ended``; also worker on GPU, container on GPU, fork server, Docker, testbed, runner,
    machine. ``how``: stopped by a signal, frozen by its control group, held by a debugger, its clock
    has a gap, it was suspended."""

    kind: str
    name: str
    how: str

    @property
    def process(self) -> str:
        """The process as a sentence names it."""
        return process_called(self.kind, self.name)


class ProcessThawed(Record, event="process_thawed"):
    """A process that stood still continues, or has ended, ``after_s`` later."""

    kind: str
    name: str
    after_s: float


class SwitchDrifted(Record, event="switch_drifted"):
    """A switch was not as the controller, or the testbed, had set it. ``what``: ``flow table``, ``light``,
    ``bridge`` or ``port`` with its number; ``text``: how it differed, in words; ``planned``: an event of the
    run was done to this switch."""

    switch: str
    what: str
    text: str
    planned: bool

    @property
    def sentence(self) -> str:
        """A sentence about the drift, without a full stop."""
        return f"{self.what} of {self.switch}: {self.text}"


class SwitchMended(Record, event="switch_mended"):
    """A switch is again as the controller had set it, ``after_s`` after the first difference was seen."""

    switch: str
    what: str
    after_s: float


_CALLED = {
    "controller": "the controller",
    "Open vSwitch": "Open vSwitch",
    "fork server": "the fork server",
    "testbed": "the testbed",
    "runner": "the runner",
    "machine": "the machine",
}


def process_called(kind: str, name: str) -> str:
    """Return the name of a process in a sentence; ``kind`` as of :class:`ProcessEnded`."""
    # There is one process of each program, which is its kind.
    return _CALLED.get(kind) or f"{'the process of' if kind == name else kind} {name}"
