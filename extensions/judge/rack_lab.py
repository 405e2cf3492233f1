"""Racks of a published table at a reduced scale, in containers: the collective of ``bench`` by size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import yaml

from ringlight.experiments.backends.protocol import Backend, BackendError
from ringlight.experiments.language.expand import parse
from ringlight.experiments.language.plan import RunPlan
from ringlight.experiments.record.events import Record
from ringlight.experiments.record.lab_records import LinkRate
from ringlight.experiments.runner.experiment import run_alone
from ringlight.experiments.runner.progress import Reporter
from ringlight.extensions.bench.measuring import bench_plan, measured
from ringlight.extensions.servers.hardware import GpuCluster
from ringlight.extensions.servers.model import bus_bandwidth_bps, predict
from ringlight.workloads.graph import Collective

#: Seconds that all calls on a rack take in the emulation, and what all its GPUs send together, bits per second,
#: the same for all racks: little enough for two processors.
RUN_S, TRAFFIC_BPS = 50.0, 0.2e9
#: Timed calls of each size, after one that does not count.
CALLS = 2


@dataclass(frozen=True)
class Rack:
    """A rack and the sizes of a ring all-reduce on it, bytes, in ascending order."""

    name: str
    cluster: GpuCluster
    sizes: tuple[int, ...]

    @property
    def algorithm(self) -> str:
        """Return the rings: one for each NIC, entering a server at different GPUs."""
        server = self.cluster.server
        return f"channel-rings-{max(1, len(server.nics))}-group-{server.gpus}"


@dataclass(frozen=True)
class Bandwidths:
    """Bus bandwidth by size, bits per second at real rates. ``links``: the smallest part of its rate that a
    link gave, 1 if none was measured."""

    bus_bps: Mapping[int, float]
    links: float


def plan_of(rack: Rack) -> RunPlan:
    """Return the run of all sizes. Raises ValueError."""
    server = rack.cluster.server
    real_s = {
        size: predict(rack.cluster, size, "all-reduce", "ring").seconds
        for size in rack.sizes
    }
    time = RUN_S / ((1 + CALLS) * sum(real_s.values()))
    last = rack.sizes[-1]
    ranks = rack.cluster.ranks
    bus_bps = bus_bandwidth_bps("all-reduce", ranks, last, real_s[last])
    section: dict[str, Any] = {
        "gpu_servers": {
            "count": rack.cluster.servers,
            "gpus": server.gpus,
            "gpu": server.gpu.name,
            "nics": [
                {"count": 1, "rate": f"{nic.line_bps:.0f} bit/s", "kind": nic.kind}
                for nic in server.nics
            ],
        },
        "paths": "even",
    }
    scale = {"time": time, "payload": max(1.0, ranks * bus_bps / TRAFFIC_BPS / time)}
    text = yaml.safe_dump({"name": "rack", "scale": scale, "fabric": section})
    (plan,) = parse(text, f"{rack.name}.yaml").plans
    collective = Collective("all-reduce", rack.algorithm)
    return replace(bench_plan(plan, collective, rack.sizes, CALLS), title=rack.name)


def bandwidths(backend: Backend, rack: Rack, reporter: Reporter) -> Bandwidths:
    """Carry out the collective by size on a rack. Return its bandwidths. Raises BackendError."""
    plan = plan_of(rack)
    if (why := backend.refuses(plan)) is not None:
        raise BackendError(f"{rack.name}: {why}")
    scale = plan.setting.scale
    reporter.say(
        f"{rack.name}: {rack.algorithm}, times {scale.time:.4g}, rates 1/{scale.rate:.4g}"
    )
    records, failures = run_alone(backend, plan, reporter)
    if failures:
        raise BackendError(f"{rack.name}: {failures[0]}")
    rows = measured(plan, records, rack.sizes, CALLS)
    return Bandwidths({row.size_bytes: row.busbw_bps for row in rows}, _links(records))


def _links(records: Sequence[Record]) -> float:
    """Return the smallest part of its rate that a link gave."""
    rates = [record for record in records if type(record) is LinkRate]
    return min((link.measured_bps / link.set_bps for link in rates), default=1.0)
