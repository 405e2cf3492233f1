"""What Prometheus reads: counters of ports, and the state of switches, circuits and jobs."""

from __future__ import annotations

import collections
from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from controller.jobs.job import JobState
from controller.service import Controller


class Metrics:
    """A Prometheus collector over a controller; reads what is known, asks no device."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller

    def collect(self) -> Iterator[Metric]:
        yield from self._ports()
        health = self._controller.health()
        for kind in ("packet_switches", "optical_switches"):
            gauge = GaugeMetricFamily(
                f"ringlight_{kind}_up", "1 when the switch can be reached", labels=["switch"]
            )
            for name, up in health[kind].items():
                gauge.add_metric([name], float(up))
            yield gauge
        onics = GaugeMetricFamily("ringlight_onics_up", "1 when the O-NIC's agent answers", labels=["gpu"])
        for gpu, up in health["onics"].items():
            onics.add_metric([gpu], float(up))
        yield onics
        circuits = GaugeMetricFamily("ringlight_cross_connects", "Lit cross-connects", labels=["switch"])
        alarms = GaugeMetricFamily("ringlight_optical_alarms", "Standing alarms", labels=["switch"])
        for name, group in self._controller.circuits.cross_connects().items():
            circuits.add_metric([name], len(group))
            alarms.add_metric([name], len(self._controller.site.alarms(name)))
        yield circuits
        yield alarms
        states = collections.Counter(job["state"] for job in self._controller.jobs.jobs())
        jobs = GaugeMetricFamily("ringlight_jobs", "Jobs by state", labels=["state"])
        for state in JobState:
            jobs.add_metric([state.value], states[state.value])
        yield jobs

    def _ports(self) -> Iterator[Metric]:
        families = {
            f"{way}_{what}": CounterMetricFamily(
                f"ringlight_port_{word}_{what}",
                f"{what.capitalize()} that the switch {word} at the port",
                labels=["switch", "port"],
            )
            for way, word in (("rx", "received"), ("tx", "sent"))
            for what in ("bytes", "packets", "dropped", "errors")
        }
        for switch, ports in self._controller.statistics.counters().items():
            for number, stats in ports.items():
                for field, family in families.items():
                    family.add_metric([switch, str(number)], getattr(stats, field))
        yield from families.values()
