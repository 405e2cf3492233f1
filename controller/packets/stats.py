"""Port statistics of the packet switches as time series: polled, differenced, and given a GPU's name."""

from __future__ import annotations

import collections
import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from ringlight.controller.errors import UnavailableError
from ringlight.controller.openflow.errors import OpenFlowError
from ringlight.controller.openflow.messages import PortStats
from ringlight.controller.openflow.plane import OpenFlowPlane
from ringlight.fabric.parts import Port
from ringlight.fabric.topology import Fabric

log = logging.getLogger(__name__)

#: Questions per second to all switches together; twenty switches asked 20 times a second took 20 % of a
#: processor here, and 9 % with this.
_QUESTIONS_HZ = 60.0
#: After so many seconds without a byte through any switch all are asked only every ``_IDLE_S`` seconds; a
#: job's longest usual computing between two all-reduces is shorter, so that its curve keeps its edges. The
#: longer it lasts, the less often, in proportion, but every ``_LEAST_S`` seconds at least.
_QUIET_S, _IDLE_S, _LEAST_S = 5.0, 0.25, 1.0
#: A switch that did not answer is left alone for this long, in seconds, so that it does not slow the others.
_BACK_OFF_S = 1.0
#: Longest wait for one switch that is asked on demand, seconds.
_READ_S = 2.0


@dataclass(frozen=True)
class Sample:
    """Throughput of one switch port over the interval that ended at ``t``.

    ``t``: CLOCK_MONOTONIC seconds. ``end``: the electrical port lit to it then, None when dark.
    ``rx_bps``/``tx_bps``: bits per second that the switch received and sent there (Ethernet frames
    without FCS), so a GPU's sending is its port's rx.
    """

    t: float
    port: Port
    end: Port | None
    rx_bps: float
    tx_bps: float


def rates(
    before: Mapping[int, PortStats], now: Iterable[PortStats], seconds: float
) -> dict[int, tuple[float, float]]:
    """Return (rx, tx) in bits per second by port number, for ports counted both times and not restarted."""
    by_port = {}
    for stats in now:
        old = before.get(stats.port_no)
        if (
            old is None
            or stats.rx_bytes < old.rx_bytes
            or stats.tx_bytes < old.tx_bytes
        ):
            continue
        by_port[stats.port_no] = (
            8 * (stats.rx_bytes - old.rx_bytes) / seconds,
            8 * (stats.tx_bytes - old.tx_bytes) / seconds,
        )
    return by_port


def pause_s(quiet_s: float) -> float:
    """Return the minimum pause in seconds between reads of a switch that has carried no byte for ``quiet_s``
    seconds.
    """
    return min(_LEAST_S, quiet_s * _IDLE_S / _QUIET_S) if quiet_s > _QUIET_S else 0.0


class Statistics:
    """Polls every packet switch of ours at most ``rate_hz`` times per second and keeps the newest samples.

    While no byte passes through any of them they are polled less often.

    ``ends``: gives the port lit to each packet-switch port now (:func:`.attachments`).
    ``keep``: how many samples are kept, over all ports.
    """

    def __init__(
        self,
        fabric: Fabric,
        plane: OpenFlowPlane,
        ends: Callable[[], Mapping[Port, Port | None]],
        *,
        rate_hz: float = 20.0,
        keep: int = 400_000,
    ) -> None:
        #: The others are not connected to us.
        self._switches = [s for s in fabric.packet_switches.values() if s.is_ours]
        self._plane = plane
        self._ends = ends
        self._interval_s = max(1.0 / rate_hz, len(self._switches) / _QUESTIONS_HZ)
        self._moved_at = time.monotonic()
        self._samples: collections.deque[Sample] = collections.deque(maxlen=keep)
        self._latest: dict[str, tuple[float, dict[int, PortStats]]] = {}
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(
            target=self._run, name="statistics", daemon=True
        )

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join(5.0)

    def since(self, t: float) -> list[Sample]:
        """Return the samples newer than ``t`` (CLOCK_MONOTONIC seconds), oldest first."""
        newer: list[Sample] = []
        with self._lock:
            for sample in reversed(self._samples):
                if sample.t <= t:
                    break
                newer.append(sample)
        newer.reverse()
        return newer

    def counters(self) -> dict[str, dict[int, PortStats]]:
        """Return the newest counters by switch name and port number."""
        with self._lock:
            return {switch: dict(stats) for switch, (_, stats) in self._latest.items()}

    def read_now(self) -> dict[str, list[PortStats]]:
        """Return the counters of every switch of this controller, read now. Raises UnavailableError."""
        by_switch = {}
        for switch in self._switches:
            try:
                by_switch[switch.name] = self._plane.port_stats(
                    switch.dpid, timeout_s=_READ_S
                )
            except OpenFlowError as error:
                raise UnavailableError(
                    f"{switch.name}: no port statistics: {error}"
                ) from None
        return by_switch

    def _run(self) -> None:
        quiet_until: dict[str, float] = {}
        due = time.monotonic()
        while not self._stop.wait(max(0.0, due - time.monotonic())):
            # After a stall the missed polls are skipped, not made up in a burst.
            now = time.monotonic()
            due = max(due + max(pause_s(now - self._moved_at), self._interval_s), now)
            # All at once, as each question wakes the one thread of Open vSwitch that forwards for all of
            # them. Last those that did not answer before: the others' counters shall not wait for them.
            names = {
                s.dpid: s.name
                for s in self._switches
                if now >= quiet_until.get(s.name, 0.0)
            }
            order = sorted(names, key=lambda dpid: names[dpid] in quiet_until)
            counters, failed = self._plane.all_port_stats(order, timeout_s=0.5)
            for dpid, error in failed.items():
                log.debug("%s: no port statistics: %s", names[dpid], error)
                quiet_until[names[dpid]] = time.monotonic() + _BACK_OFF_S
            for dpid, (t, stats) in counters.items():
                quiet_until.pop(names[dpid], None)
                try:
                    self._note(names[dpid], t, stats)
                except Exception:
                    # The others' counters are still wanted.
                    log.exception(
                        "%s: its port statistics could not be used", names[dpid]
                    )

    def _note(self, switch: str, t: float, stats: list[PortStats]) -> None:
        ends = self._ends()
        with self._lock:
            before_t, before = self._latest.get(switch, (t, {}))
            self._latest[switch] = (t, {s.port_no: s for s in stats})
            if t <= before_t:
                return
            for number, (rx, tx) in rates(before, stats, t - before_t).items():
                if rx or tx:
                    self._moved_at = t
                port = Port(switch, number)
                if port in ends:
                    self._samples.append(Sample(t, port, ends[port], rx, tx))
