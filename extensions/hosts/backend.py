"""Emulated runs on several hosts: each run is a lab on whichever host has a place for one.

The command that asks needs neither root nor Docker. What a run leaves comes back to it, into one run folder.
"""

from __future__ import annotations

import pickle
import platform
import secrets
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ringlight.experiments.backends.emulation.backend import EmulationBackend
from ringlight.experiments.backends.protocol import BackendError, MachineGone, Made
from ringlight.experiments.language.plan import RunPlan, Setting
from ringlight.experiments.record.environment import describe_machine
from ringlight.experiments.record.events import RunFailed
from ringlight.experiments.record.folder import RunFolder
from ringlight.experiments.record.version import code_version
from ringlight.experiments.record.writing import write_whole
from ringlight.experiments.runner.executor_kinds import lost
from ringlight.experiments.runner.experiment import run_alone
from ringlight.experiments.runner.foretold import Foreteller
from ringlight.experiments.runner.progress import Reporter
from ringlight.experiments.runner.repeats import Repeats
from ringlight.extensions.hosts.cluster import Cluster, Host, OwnWorker, known_hosts
from ringlight.extensions.hosts.cut import Cut, cut
from ringlight.extensions.hosts.forks import KEPT_RUN, fork_from_now_on, forked_labs
from ringlight.extensions.hosts.kept import end_forsaken, log_of, looked_after
from ringlight.extensions.hosts.parts.plan import VXLAN_BYTES, tail
from ringlight.extensions.hosts.probe import Needs, Way, checked_ways, probed
from ringlight.extensions.hosts.readiness import (
    free_addresses,
    image_present,
    remove_stale,
    why_not_encrypted,
    why_not_ready,
)
from ringlight.extensions.hosts.spread import Over, SpreadLab, first_taken
from ringlight.fabric.frames import SMALLEST_MTU_BYTES
from ringlight.fabric.keys import plugged
from ringlight.fabric.topology import Fabric
from ringlight.fabric.values import under
from ringlight.testbed.lab import Lab, LabError

#: What keys of processes that make runs begin with; in their state, what such a process is to do, and did.
RUN_KIND, ORDER, MADE = "run ", "order.pickle", "made.pickle"
#: So long a host at which labs begin may be without a worker, seconds.
GONE_S = 30.0
#: The network between hosts is measured up to so many times the largest rate that a lab needs there, and up
#: to this at least, bit/s.
ENOUGH, ENOUGH_BPS = 2.0, 1e8


class HostsBackend(EmulationBackend):
    """The emulated testbed on the hosts of a cluster; its copies make the runs there and have no cluster."""

    def __init__(
        self,
        runtime: str,
        cluster: Cluster | None,
        devices: Sequence[str] = (),
        over: Over | None = None,
        known: tuple[str, tuple[Host, ...]] | None = None,
        series: str = "",
    ) -> None:
        super().__init__(runtime, devices=devices)
        self._cluster, self._over = cluster, over
        #: The scheduler's address, and its hosts.
        self._known = (cluster.address, cluster.hosts) if cluster is not None else known
        #: Of whose runs this is one: a folder of the machine where commands are given.
        self._series = series or secrets.token_hex(8)
        self._machines: dict[str, Mapping[str, Any]] = {}
        self._ways: list[Way] = []
        #: Since when hosts at which labs begin have had no worker, by name.
        self._missed_s: dict[str, float] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return HostsBackend, (
            self.runtime,
            None,
            self.devices,
            self._over,
            self._known,
            self._series,
        )

    @property
    def cluster(self) -> Cluster:
        """Return the cluster. Raises BackendError on a host, which has none."""
        if self._cluster is None:
            raise BackendError("a host knows no other hosts")
        return self._cluster

    def lacks_image(self, name: str) -> str | None:
        there = self.ask_hosts(image_present, name)
        lacking = ", ".join(host for host, has in there.items() if not has)
        return f"Docker has no image {name} on {lacking}" if lacking else None

    def check_ready(self) -> None:
        code = code_version()
        for host, other in self.ask_hosts(code_version).items():
            if other != code:
                raise BackendError(
                    f"host {host}: it has other code of Ringlight ({other}) than this machine ({code})"
                )
        for host, why in self.ask_hosts(why_not_ready, self.runtime).items():
            if why is not None:
                raise BackendError(f"host {host}: {why}")
        self._machines = self.ask_hosts(describe_machine, False)

    def prepare(
        self,
        settings: Sequence[Setting],
        logs: Path | None,
        say: Callable[[str], None],
        earlier: Mapping[str, Any],
    ) -> None:
        super().prepare(settings, logs, say, earlier)
        if logs is not None:
            self._series = f"{platform.node()} {logs.absolute()}"
        if self._over is not None:
            self._check_network(settings, self._over)
        # Runs that are gone on with may have been made on hosts that are there no more.
        self._machines = {**earlier.get("hosts", {}), **self._machines}

    def ask_hosts(
        self, function: Callable[..., Any], *arguments: Any
    ) -> dict[str, Any]:
        """Call a function on each host. Return its results by the host's name. Raises BackendError."""
        try:
            return self.cluster.ask(function, *arguments)
        except LabError as error:
            raise BackendError(str(error)) from None

    def facts(self) -> Mapping[str, Any]:
        # What was measured, was measured on a host.
        first = next(iter(self._machines.values()), {})
        network = {"network": [asdict(way) for way in self._ways]} if self._ways else {}
        return {**first, **super().facts(), "hosts": self._machines, **network}

    def executor(self) -> Executor:
        return self.cluster.executor(
            None if self._over is None else [lot[0] for lot in self.lots()]
        )

    def tidy(self) -> None:
        """Have hosts remove what is left of labs whose worker died before they had a process of their own."""
        with suppress(LabError, OSError):
            there = self.cluster.present()
            now = [
                replace(host, address=there[host.ip])
                for host in self.cluster.hosts
                if host.ip in there
            ]
            self.cluster.ask(remove_stale, hosts=now)

    def watch(self) -> None:
        """Check that the first host of each lab over several hosts still has a worker. Labs on one host are
        not checked.

        Raises MachineGone if a host has had no worker for GONE_S seconds.
        """
        if self._over is None:
            return
        try:
            there, now_s = self.cluster.present(), time.monotonic()
        except OSError:
            # Dask says itself that its scheduler is gone.
            return
        for host in (lot[0] for lot in self.lots()):
            if host.ip in there:
                self._missed_s.pop(host.name, None)
            elif now_s - self._missed_s.setdefault(host.name, now_s) > GONE_S:
                raise MachineGone(
                    f"host {host.name} has no worker any more, and none came within {GONE_S:.0f} s"
                )

    # -- one lab over several hosts

    def refuses(self, plan: RunPlan) -> str | None:
        why = super().refuses(plan)
        if why is not None or self._over is None:
            return why
        return self.cannot_spread(plan.setting.fabric)

    def cannot_spread(self, fabric: Fabric) -> str | None:
        """Return what in a fabric cannot be in a lab over several hosts, ``key: reason``; None if all can.

        Always None if labs are on one host.
        """
        return None if self._over is None else over_hosts(fabric, self._over.hosts)

    def lots(self) -> list[tuple[Host, ...]]:
        """Return groups of hosts that have a lab together, each host at most once. Raises BackendError."""
        assert self._known is not None
        count, hosts = 1 if self._over is None else self._over.hosts, self._known[1]
        if count > len(hosts):
            raise BackendError(
                f"--hosts {count}: there are {len(hosts)} hosts for labs"
            )
        return [
            hosts[first : first + count]
            for first in range(0, len(hosts) - count + 1, count)
        ]

    def _check_network(self, settings: Sequence[Setting], over: Over) -> None:
        """Raise BackendError for what the network between the hosts does not give, a line for each figure."""
        if over.wireguard:
            self._check_encrypted()
        cuts = [(setting, divided(setting.fabric, over.hosts)) for setting in settings]
        most_bps = max(
            (
                _crossing_bps(*divided_setting, *pair)
                for divided_setting in cuts
                for pair in divided_setting[1].crossing_bps
            ),
            default=0,
        )
        lines: dict[str, None] = {}
        for lot in self.lots():
            ways, missed = self._probed(lot, cuts, max(ENOUGH_BPS, ENOUGH * most_bps))
            self._ways += ways
            lines |= dict.fromkeys(missed)
            for _, where in cuts:
                if (
                    why := first_taken(self.cluster, lot, over, len(where.fibres))
                ) is not None:
                    lines[why] = None
        if lines:
            *first_lines, last = lines
            for line in first_lines:
                self._say(line)
            raise BackendError(last)
        fitting = min(way.mtu_bytes for way in self._ways) - VXLAN_BYTES
        self._over = replace(over, mtu_bytes=min(over.mtu_bytes, fitting))

    def _probed(
        self,
        lot: Sequence[Host],
        cuts: Sequence[tuple[Setting, Cut]],
        enough_bps: float,
    ) -> tuple[list[Way], list[str]]:
        """Ways between hosts that have a lab together, and what they miss. Raises BackendError."""
        try:
            return checked_ways(
                partial(probed, self.cluster, lot, enough_bps),
                lambda way: [
                    needs_of(*divided_setting, lot, way) for divided_setting in cuts
                ],
            )
        except LabError as error:
            raise BackendError(str(error)) from None

    def _check_encrypted(self) -> None:
        """Raise BackendError for a host whose light would go unencrypted to others."""
        for host in (host for lot in self.lots() for host in lot):
            try:
                (why,) = self.cluster.ask(
                    why_not_encrypted, host.ip, hosts=[host]
                ).values()
            except LabError as error:
                raise BackendError(str(error)) from None
            if why is not None:
                raise BackendError(f"host {host.name}: {why}")

    def alone(self, plan: RunPlan) -> Made:
        """Make one run on some host and keep no folder for it. Return what was made. Raises BackendError."""
        try:
            made: Made = self.executor().submit(self.make, plan, again=False).result()
        except lost() as error:
            raise BackendError(
                f"Dask lost the run: {str(error) or 'its scheduler is gone'}"
            ) from None
        return made

    def make(self, plan: RunPlan, again: bool = True) -> Made:
        """Build a lab on this host, make the run, and remove the lab. Return what was made.

        The run is made again if it was disturbed and ``again`` is true. A run that cannot be made is a
        record.

        If the lab is over several hosts, a separate process does the work. The end of this worker or of the
        scheduler does not end that process: the next task for the same run of the same folder finds it.
        Raises BackendError if the process was ended.
        """
        worker, key = OwnWorker(), f"{RUN_KIND}{self._series} {plan.name}"
        end_forsaken(RUN_KIND, but=key)
        fork_from_now_on()
        if self._over is None:
            return self._made(
                plan, again, worker.name, lambda: worker.unwanted() or worker.ends()
            )
        with looked_after(
            key, kept_by(partial(self.make_kept, plan, again, worker.name)), worker
        ) as lab:
            try:
                made: Made = pickle.loads((lab.state_dir / MADE).read_bytes())
            except OSError:
                output = log_of(lab).decode(errors="replace").strip()
                raise BackendError(
                    f"host {worker.name}: the run's process was ended: {output[-500:]}"
                ) from None
        return made

    def make_kept(
        self,
        plan: RunPlan,
        again: bool,
        name: str,
        _state: Path,
        unwanted: Callable[[], bool],
    ) -> Made:
        """Make the run in a lab over several hosts, of which this is the first, and return what was made.

        Called in the separate process that :meth:`make` starts.
        """
        lot = next(lot for lot in self.lots() if lot[0].name == name)
        with self.joined(lot) as spread:
            return self._made(plan, again, name, unwanted, spread)

    @contextmanager
    def joined(
        self, lot: Sequence[Host]
    ) -> Iterator[Callable[[Setting], SpreadLab] | None]:
        """Fork the labs of a process on the first of these hosts, and give them parts on the other hosts.

        Yield the function that returns these parts for a setting; None if labs are on one host. Raises
        LabError.
        """
        assert self._known is not None
        over = self._over
        # Forked before there are threads.
        with forked_labs():
            if over is None:
                yield None
                return
            with known_hosts(self._known[0], lot) as cluster:

                def spread(setting: Setting) -> SpreadLab:
                    return SpreadLab(
                        cluster,
                        lot,
                        divided(setting.fabric, over.hosts),
                        setting.section,
                        over,
                    )

                yield spread

    def _made(
        self,
        plan: RunPlan,
        again: bool,
        name: str,
        unwanted: Callable[[], bool],
        spread: Callable[[Setting], SpreadLab] | None = None,
    ) -> Made:
        reporter = _Wanted(unwanted)
        with TemporaryDirectory(prefix="ringlight-run-") as folder:
            logs = Path(folder)
            backend = EmulationBackend(
                self.runtime, free_addresses(), devices=self.devices, spread=spread
            )
            backend.prepare([plan.setting], logs, reporter.say, {})
            repeats = Repeats(reporter, Foreteller()) if again else None
            records, failures = run_alone(backend, plan, reporter, repeats)
            facts = {**backend.facts(), "host": name}
            files = {
                str(file.relative_to(logs)): tail(file)
                for file in logs.rglob("*")
                if file.is_file()
            }
        records = [
            _named(record, name) if isinstance(record, RunFailed) else record
            for record in records
        ]
        return Made(records, failures, facts, files)

    def take(self, plan: RunPlan, made: Made, folder: RunFolder) -> None:
        """Keep what came back of a run besides its records."""
        host = made.facts["host"]
        clock = {
            "wall_clock_minus_monotonic_s": self._machines[host][
                "wall_clock_minus_monotonic_s"
            ]
        }
        logs = self._folder(plan.setting) if made.files else None
        for name, content in made.files.items():
            assert logs is not None
            write_whole(logs / Path(name).name, content.decode(errors="replace"))
        self._labs += [{**lab, "host": host, **clock} for lab in made.facts["labs"]]
        folder.describe(**self.facts())
        ended = (
            "could not be made"
            if any(isinstance(r, RunFailed) for r in made.records)
            else "is over"
        )
        self._say(f"  {plan.name} {ended} (host {host})")


def kept_by(
    work: Callable[[Path, Callable[[], bool]], Any],
) -> Callable[[Lab], list[str]]:
    """Return a function that returns the command line for running ``work`` in a kept process on a host.

    ``work`` gets the folder of the process's state, and a function that returns whether the process was asked
    to end. The pickled result of ``work`` is a file in that folder.
    """

    def command(lab: Lab) -> list[str]:
        (lab.state_dir / ORDER).write_bytes(pickle.dumps(work))
        return [sys.executable, "-m", KEPT_RUN, str(lab.state_dir)]

    return command


def divided(fabric: Fabric, hosts: int) -> Cut:
    """Return how a fabric, plugged together, is cut into parts for so many hosts. Raises ValueError."""
    return cut(plugged(fabric), hosts)


def over_hosts(fabric: Fabric, hosts: int) -> str | None:
    """Return what in a fabric cannot be in a lab over several hosts, ``key: reason``; None if all can."""
    try:
        divided(fabric, hosts)
    except ValueError as error:
        return under("fabric", str(error))
    for name, there in (
        ("onics", fabric.onics),
        *((f"{kind}s", kind) for kind in fabric.devices.values()),
    ):
        if there:
            return f"fabric.{name}: not in a lab over several hosts; leave out --hosts"
    if fabric.foreign_switches:
        (name, *_) = fabric.foreign_switches
        return f"fabric.packet_switches.{name}.controller: not ours, in a lab over several hosts"
    return None


def needs_of(setting: Setting, cut: Cut, hosts: Sequence[Host], way: Way) -> Needs:
    """Return what the path between two hosts must give a lab that is cut.

    These are whole frames of the smallest permitted MTU (bytes), and the rate of all fibres between these
    hosts, as emulated (bits per second).
    """
    number = {host.name: index for index, host in enumerate(hosts)}
    a, b = sorted((number[way.a], number[way.b]))
    crossing_bps = _crossing_bps(setting, cut, a, b)
    return Needs(mtu_bytes=SMALLEST_MTU_BYTES + VXLAN_BYTES, rate_bps=crossing_bps)


def _crossing_bps(setting: Setting, cut: Cut, a: int, b: int) -> float:
    """Rate of all fibres between two hosts, as emulated."""
    return cut.crossing_bps.get((a, b), 0.0) / (
        setting.scale.time * setting.scale.payload
    )


def _named(record: RunFailed, host: str) -> RunFailed:
    return RunFailed(
        t=record.t,
        run=record.run,
        arm=record.arm,
        reason=f"host {host}: {record.reason}",
    )


class _Wanted(Reporter):
    """Says nothing, and ends a run that nobody wants any more: its command was interrupted, or is gone."""

    def __init__(self, unwanted: Callable[[], bool]) -> None:
        super().__init__(quiet=True)
        self._unwanted = unwanted

    def say(self, text: str, style: str | None = None) -> None:
        self._check()

    def advance(self, done: Callable[[], Mapping[str, int]]) -> None:
        self._check()

    def _check(self) -> None:
        if self._unwanted():
            raise BackendError("nobody wants it any more")
