"""Metrics for Prometheus: counters of ports and flows, changes of light, switches and jobs."""

from __future__ import annotations

import collections
from collections.abc import Iterator
from typing import get_args

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from ringlight.controller.circuits.claims import ClaimState
from ringlight.controller.jobs.job import JobState
from ringlight.controller.service import Controller

#: Longest flow table whose entries are given one by one, and longest wait for the tables, seconds.
_MOST_FLOWS, _FLOWS_S = 5000, 1.0


#: Description of each counter of ports, by its name.
_COUNTED = {
    "bytes": "Bytes",
    "packets": "Packets",
    "dropped": "Dropped packets",
    "errors": "Packets with errors",
}


class Metrics:
    """Prometheus collector over a controller.

    The collector uses known values, except for the counters of flows, which are read from the packet
    switches.
    """

    def __init__(self, controller: Controller) -> None:
        self._controller = controller

    def collect(self) -> Iterator[Metric]:
        yield from self._ports()
        yield from self._flows()
        yield from self._controller.site.meters.collect()
        yield from self._tables()
        yield self._power()
        health = self._controller.health()
        for kind in ("packet_switches", "optical_switches"):
            gauge = GaugeMetricFamily(
                f"ringlight_{kind}_up",
                "1 when the switch can be reached",
                labels=["switch"],
            )
            for name, up in health[kind].items():
                gauge.add_metric([name], float(up))
            yield gauge
        onics = GaugeMetricFamily(
            "ringlight_onics_up", "1 when the O-NIC's agent answers", labels=["gpu"]
        )
        for gpu, up in health["onics"].items():
            onics.add_metric([gpu], float(up))
        yield onics
        circuits = GaugeMetricFamily(
            "ringlight_cross_connects", "Lit cross-connects", labels=["switch"]
        )
        alarms = GaugeMetricFamily(
            "ringlight_optical_alarms", "Standing alarms", labels=["switch"]
        )
        for name, group in self._controller.circuits.cross_connects().items():
            circuits.add_metric([name], len(group))
            alarms.add_metric([name], len(self._controller.site.alarms(name)))
        yield circuits
        yield alarms
        states = collections.Counter(
            job["state"].value for job in self._controller.jobs.jobs()
        )
        jobs = GaugeMetricFamily("ringlight_jobs", "Jobs by state", labels=["state"])
        for state in JobState:
            jobs.add_metric([state.value], states[state.value])
        yield jobs
        yield from self._claims()

    def _claims(self) -> Iterator[Metric]:
        yield GaugeMetricFamily(
            "ringlight_lost_gpus",
            "GPUs that a fault has taken",
            len(self._controller.jobs.lost_gpus),
        )
        states = collections.Counter(
            claim.state for claim in self._controller.claims.all() if claim.job is None
        )
        claims = GaugeMetricFamily(
            "ringlight_claims", "Claims without a job by state", labels=["state"]
        )
        for state in get_args(ClaimState):
            claims.add_metric([state], states[state])
        yield claims

    def _tables(self) -> Iterator[Metric]:
        drifts = CounterMetricFamily(
            "ringlight_flow_drifts",
            "Times that a flow table was not as it should be",
            labels=["switch"],
        )
        mends = CounterMetricFamily(
            "ringlight_flow_mends",
            "Times that a flow table was put right",
            labels=["switch"],
        )
        for name, view in self._controller.tables.views().items():
            drifts.add_metric([name], view.drifts)
            mends.add_metric([name], view.mends)
        yield from (drifts, mends)

    def _power(self) -> Metric:
        power = GaugeMetricFamily(
            "ringlight_optical_port_power_dbm",
            "Optical power at a port with a meter, measured at most 10 s ago",
            labels=["switch", "port"],
        )
        for name, view in self._controller.site.views().items():
            for port, dbm in view.power_dbm.items() if view.reachable else ():
                power.add_metric([name, str(port)], dbm)
        return power

    def _flows(self) -> Iterator[Metric]:
        """Yield flow counters; a table with more than `_MOST_FLOWS` entries gives only their number."""
        names = {
            s.dpid: name for name, s in self._controller.fabric.packet_switches.items()
        }
        tables, _ = self._controller.plane.flow_tables(
            names, timeout_s=_FLOWS_S, counted=True
        )
        entries = GaugeMetricFamily(
            "ringlight_flows", "Entries of the flow table", labels=["switch"]
        )
        labels = ["switch", "table", "priority", "match"]
        packets = CounterMetricFamily(
            "ringlight_flow_packets", "Packets of a flow", labels=labels
        )
        size = CounterMetricFamily(
            "ringlight_flow_bytes", "Bytes of a flow", labels=labels
        )
        for dpid, table in tables.items():
            entries.add_metric([names[dpid]], len(table))
            # Two entries may differ in what a mask leaves out of the text; Prometheus takes a label once.
            sums: dict[tuple[str, str, str], tuple[int, int]] = {}
            for flow in table if len(table) <= _MOST_FLOWS else ():
                text = (
                    ",".join(
                        f"{key}={value}" for key, value in sorted(flow.match.items())
                    )
                    or "any"
                )
                key = (str(flow.table_id), str(flow.priority), text)
                before = sums.get(key, (0, 0))
                sums[key] = (before[0] + flow.packets, before[1] + flow.bytes)
            for key, (packet_count, byte_count) in sums.items():
                packets.add_metric([names[dpid], *key], packet_count)
                size.add_metric([names[dpid], *key], byte_count)
        yield from (entries, packets, size)

    def _ports(self) -> Iterator[Metric]:
        families = {
            f"{way}_{what}": CounterMetricFamily(
                f"ringlight_port_{word}_{what}",
                f"{noun} that the switch {word} at the port",
                labels=["switch", "port"],
            )
            for way, word in (("rx", "received"), ("tx", "sent"))
            for what, noun in _COUNTED.items()
        }
        for switch, ports in self._controller.statistics.counters().items():
            for number, stats in ports.items():
                for field, family in families.items():
                    family.add_metric([switch, str(number)], getattr(stats, field))
        yield from families.values()
