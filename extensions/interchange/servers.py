"""A server with GPUs and NICs, as tools on it report it, and several like it on one packet switch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ringlight.extensions.interchange.draft import Defaults, Draft, rate_text


@dataclass(frozen=True)
class ReportedServer:
    """GPUs by name with their models ("" if none is reported), and NICs with their rates, bits per second
    (None likewise). ``steps``: how far a NIC is from a GPU, in any unit, by GPU and NIC."""

    gpus: Mapping[str, str]
    nics: Mapping[str, float | None]
    steps: Mapping[tuple[str, str], int]

    def with_nics(self) -> ReportedServer:
        """Return the server with a NIC for each GPU if no NIC is reported."""
        if self.nics:
            return self
        nics = {gpu: f"nic-of-{gpu}" for gpu in self.gpus}
        return ReportedServer(
            self.gpus, dict.fromkeys(nics.values()), dict.fromkeys(nics.items(), 0)
        )


def nearest_nics(
    gpus: Sequence[str], nics: Sequence[str], steps: Mapping[tuple[str, str], int]
) -> dict[str, str]:
    """Return a NIC for each GPU that reaches any: its nearest free one, and once all are used its nearest."""
    ranks = {name: place for place, name in enumerate((*gpus, *nics))}
    pairs = sorted(steps, key=lambda pair: (steps[pair], *map(ranks.__getitem__, pair)))
    chosen: dict[str, str] = {}
    used: set[str] = set()
    for gpu, nic in pairs:
        if gpu not in chosen and nic not in used:
            chosen[gpu] = nic
            used.add(nic)
    for gpu, nic in pairs:
        chosen.setdefault(gpu, nic)
    return chosen


def bundles(server: ReportedServer) -> dict[str, tuple[str, ...]]:
    """Return the NICs of each GPU that reaches any: one, or all that are nearer to it than to other GPUs if those
    are equally many for each GPU."""
    nic_of = nearest_nics(list(server.gpus), list(server.nics), server.steps)
    several = {gpu: [nic] for gpu, nic in nic_of.items()}
    used = set(nic_of.values())
    for nic in server.nics:
        if nic in used:
            continue
        steps = {gpu: server.steps[gpu, nic] for gpu in nic_of}
        least = min(steps.values())
        nearest = [gpu for gpu in steps if steps[gpu] == least]
        if len(nearest) == 1:
            several[nearest[0]].append(nic)
    # Else the others are for storage, say, and not for GPUs.
    if len(used) == len(nic_of) and len(set(map(len, several.values()))) == 1:
        return {gpu: tuple(nics) for gpu, nics in several.items()}
    return {gpu: (nic,) for gpu, nic in nic_of.items()}


def fabric_of_servers(servers: Sequence[ReportedServer], defaults: Defaults) -> Draft:
    """Return the servers, as often as ``defaults`` tell, each GPU with its NICs on one packet switch."""
    draft = Draft()
    if not all(server.nics for server in servers):
        draft.defaulted.append("a NIC for each GPU, as no NIC is reported")
    reported = [server.with_nics() for server in servers]
    plugs = [(server, bundles(server)) for server in reported]
    switch = draft.names.take("net", "sw")
    draft.add_switch(switch)
    for _ in range(defaults.servers):
        for server, nics_of in plugs:
            _plug_in(draft, server, nics_of, switch, defaults)
    count = len(plugs) * defaults.servers
    draft.defaulted.append(
        f"{count} server{'s' * (count > 1)} on one packet switch, {switch}"
    )
    if any(rate is None for server in reported for rate in server.nics.values()):
        rate = rate_text(defaults.rate_bps)
        draft.defaulted.append(f"NICs without a stated rate have {rate}")
    if not all(model for server in reported for model in server.gpus.values()):
        draft.defaulted.append(f"the GPUs' model, {defaults.gpu}")
    draft.dropped.append(
        "links between GPUs of a server (NVLink, PCIe), and NUMA nodes"
    )
    _report_nics(draft, plugs)
    return draft


#: NICs by the GPU that has them.
_Bundles = Mapping[str, tuple[str, ...]]


def _plug_in(
    draft: Draft,
    server: ReportedServer,
    nics_of: _Bundles,
    switch: str,
    defaults: Defaults,
) -> None:
    name = draft.names.numbered("s")
    sharing = Counter(nic for nics in nics_of.values() for nic in nics)
    for reported, model in server.gpus.items():
        gpu = draft.names.numbered("g")
        draft.add_gpu(name, gpu, model or defaults.gpu)
        if reported in nics_of:
            nics = nics_of[reported]
            rates = [rate for nic in nics if (rate := server.nics[nic]) is not None]
            rate_bps = sum(rates) if len(rates) == len(nics) else defaults.rate_bps
            rate_bps /= sharing[nics[0]]
            draft.plug(gpu, draft.next_port(switch), rate_bps)


def _report_nics(
    draft: Draft, plugs: Iterable[tuple[ReportedServer, _Bundles]]
) -> None:
    """Name in the draft the NICs that are divided, that are joined, and that no GPU has."""
    shared, joined, idle = [], [], []
    for server, nics_of in plugs:
        groups = list(nics_of.values())
        used = Counter(nic for nics in groups for nic in nics)
        shared += [nic for nic in server.nics if used[nic] > 1]
        joined += [nics for nics in groups if len(nics) > 1]
        idle += [nic for nic in server.nics if nic not in used]
    if shared:
        draft.defaulted.append(
            f"NICs of several GPUs, such as {shared[0]}, are divided"
        )
    if joined:
        draft.defaulted.append(
            f"the NICs of a GPU, such as {', '.join(joined[0][:8])}, are one link"
        )
    if idle:
        few = [*idle[:8], f"… ({len(idle)} in all)"] if len(idle) > 9 else idle
        draft.dropped.append(f"NICs without a GPU of their own ({', '.join(few)})")
