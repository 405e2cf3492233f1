"""Metrics of changes of light, for Prometheus."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prometheus_client import Counter, Histogram
from prometheus_client.core import Metric

from ringlight.controller.optical.errors import OpticalError
from ringlight.controller.optical.model import CrossConnectResult

#: From an ideal switch's millisecond to a robot's minutes, seconds.
_BUCKETS_S = (
    0.001,
    0.002,
    0.005,
    0.01,
    0.02,
    0.05,
    0.1,
    0.2,
    0.5,
    1.0,
    2.0,
    5.0,
    10.0,
    60.0,
    300.0,
)


class Meters:
    """Counters and histograms of one controller. Safe from any thread."""

    def __init__(self) -> None:
        self.changes = Counter(
            "ringlight_reconfigurations",
            "Changes of light over one or several optical switches, by their outcome",
            ["outcome"],
            registry=None,
        )
        self.change_s = Histogram(
            "ringlight_reconfiguration_seconds",
            "From the beginning of a change of light until it was verified or taken back",
            registry=None,
            buckets=_BUCKETS_S,
        )
        self.write_s = Histogram(
            "ringlight_optical_apply_seconds",
            "From a plan to its read-back on one optical switch, its dark time included",
            ["switch"],
            registry=None,
            buckets=_BUCKETS_S,
        )
        self.dark_s = Histogram(
            "ringlight_cross_connect_dark_seconds",
            "Time without light of each cross-connect made on ports that had some, as the controller saw it",
            ["switch"],
            registry=None,
            buckets=_BUCKETS_S,
        )
        self.failures = Counter(
            "ringlight_optical_failures",
            "Operations on an optical switch that failed, by class of failure",
            ["switch", "class"],
            registry=None,
        )
        self.drifts = Counter(
            "ringlight_optical_drifts",
            "Changes noticed on an optical switch that the controller did not make, by policy",
            ["switch", "policy"],
            registry=None,
        )

    def applied(
        self, switch: str, seconds: float, results: Iterable[CrossConnectResult]
    ) -> None:
        """Record that a plan was applied to a switch in ``seconds`` seconds."""
        self.write_s.labels(switch).observe(seconds)
        dark = self.dark_s.labels(switch)
        for result in results:
            if result.t_dark is not None and result.t_lit is not None:
                dark.observe(result.t_lit - result.t_dark)

    def failed(self, switch: str, error: OpticalError) -> None:
        self.failures.labels(switch, type(error).__name__).inc()

    def collect(self) -> Iterator[Metric]:
        for metric in (
            self.changes,
            self.change_s,
            self.write_s,
            self.dark_s,
            self.failures,
            self.drifts,
        ):
            yield from metric.collect()
