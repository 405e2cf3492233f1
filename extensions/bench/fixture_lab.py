"""Lab that the fixture ``ringlight_lab`` gives: it stays up while a test measures in it."""

from __future__ import annotations

import os
import shutil
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from ringlight.containers.image import ImageError
from ringlight.experiments.analysis.result import analyse
from ringlight.experiments.analysis.rows import Row, Value
from ringlight.experiments.backends.emulation.backend import EmulationBackend
from ringlight.experiments.backends.protocol import BackendError
from ringlight.experiments.client import Api
from ringlight.experiments.language.expand import Experiment, parse
from ringlight.experiments.language.plan import RunPlan, Setting
from ringlight.experiments.language.text import SCENARIO_BYTES, ScenarioError, read_text
from ringlight.experiments.record.events import Record
from ringlight.experiments.record.lab_records import LinkRate, PortRate
from ringlight.experiments.record.writing import WriteError
from ringlight.experiments.runner.experiment import nothing_to_run
from ringlight.experiments.runner.foretold import Foreteller
from ringlight.experiments.runner.machine import scale_here
from ringlight.experiments.runner.progress import Reporter
from ringlight.experiments.runner.timeline import run_in
from ringlight.extensions.bench.measuring import (
    SLOW,
    Measured,
    bench_plan,
    checked,
    lines_of,
    measured,
    parse_sizes,
    slow_links,
    what_of,
    words_of,
)
from ringlight.fabric.keys import plugged
from ringlight.fabric.text import visible
from ringlight.fabric.topology import Fabric
from ringlight.fabric.units import format_size, parse_rate, parse_size
from ringlight.testbed.lab import LabError
from ringlight.testbed.processes import Addresses, check_ready

#: What making a lab raises for reasons that one line says.
FORESEEN = (ScenarioError, BackendError, LabError, WriteError)
#: The name of a mapping that has none.
_NAME = {"name": "test"}
#: Programs that a lab starts, by the Debian package that has them.
_PROGRAMS = {"mnexec": "mininet", "tc": "iproute2", "ovs-vsctl": "openvswitch-switch"}


@dataclass(frozen=True)
class Wanted:
    """Request of a test for a lab. ``plans``: plans of one setting. ``key``: distinguishes the request from
    others.
    """

    experiment: Experiment
    plans: tuple[RunPlan, ...]
    runtime: str
    key: tuple[Any, ...]


@dataclass(frozen=True)
class Figures:
    """Result rows, as of a run folder (``experiments.analysis.rows.Row``)."""

    rows: tuple[Row, ...]

    def value(self, metric: str, **where: Any) -> Value:
        """Return the only value of a metric, such as ``value("jct", subject="job red", arm="regrouped")``.

        Raises LookupError listing the rows that there are, unless exactly one row matches.
        """
        of_metric = [row for row in self.rows if row.metric == metric]
        matches = [
            row for row in of_metric if all(getattr(row, key) == value for key, value in where.items())
        ]
        if len(matches) == 1:
            return matches[0].value
        if not of_metric:
            known = ", ".join(sorted({row.metric for row in self.rows}))
            raise LookupError(f"there is no metric {metric}; there are {known}")
        among = "; ".join(f"{row.arm or '-'}, {row.subject}, repeat {row.repeat}" for row in of_metric)
        raise LookupError(f"{len(matches)} rows of {metric} are as asked; there are: {among}")


@dataclass(frozen=True, repr=False)
class Bench:
    """The table of nccl-tests. ``sizes``: of each size time, algorithm and bus bandwidth, at the fabric's
    real rates; ``checked``: parts of results that were compared with what they must be."""

    collective: str
    sizes: tuple[Measured, ...]
    checked: int | None

    def __repr__(self) -> str:
        return f"Bench({self.collective}, {len(self.sizes)} sizes)"

    def at(self, size: str) -> Measured:
        """Return the measurement of one size, such as ``4 MiB``. Raises LookupError naming the measured
        sizes.
        """
        for measurement in self.sizes:
            if measurement.size_bytes == parse_size(size):
                return measurement
        known = ", ".join(format_size(measurement.size_bytes) for measurement in self.sizes)
        raise LookupError(f"{size} was not measured; there are {known}")

    @property
    def rows(self) -> tuple[Row, ...]:
        """The same as result rows: metrics ``time``, ``algbw`` and ``busbw`` of each size."""
        return tuple(
            Row(
                "",
                f"{self.collective} {format_size(measurement.size_bytes)}",
                metric,
                value,
                unit,
                "measured",
            )
            for measurement in self.sizes
            for metric, value, unit in (
                ("time", measurement.time_s, "s"),
                ("algbw", measurement.algbw_bps, "bit/s"),
                ("busbw", measurement.busbw_bps, "bit/s"),
            )
        )

    def __str__(self) -> str:
        cells = [("size", "time", "algorithm bandwidth", "bus bandwidth", "result")]
        cells += lines_of(self.sizes, self.checked)
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        lines = ("  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)) for line in cells)
        return "\n".join([self.collective, *(line.rstrip() for line in lines)])


def why_not(runtime: str) -> str | None:
    """Return why this machine cannot build a lab now, in one line with the remedy; None if it can."""
    if sys.platform != "linux":
        return f"needs Linux, and this is {sys.platform}"
    if os.geteuid() == 0:
        search = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
        for program, package in _PROGRAMS.items():
            if shutil.which(program, path=search) is None:
                return f"{program} is not installed; run: apt-get install {package}"
    try:
        check_ready(runtime, _addresses())
    except (LabError, ImageError) as error:
        return str(error)
    return None


def _addresses() -> Addresses:
    """Two free ports, so that another lab on this machine is nobody's concern."""
    with closing(socket.socket()) as rest_socket, closing(socket.socket()) as other:
        for probe in (rest_socket, other):
            probe.bind(("127.0.0.1", 0))
        rest, openflow = (f"127.0.0.1:{probe.getsockname()[1]}" for probe in (rest_socket, other))
        return Addresses(rest, openflow)


def wanted(
    scenario: str | Path | Mapping[str, Any],
    test: Path,
    root: Path,
    *,
    arm: str | None = None,
    runtime: str = "docker",
    slowed: Mapping[str, float] | None = None,
) -> Wanted:
    """Return what a test in the file ``test`` of the project ``root`` requests. Raises ScenarioError, one
    line.

    ``scenario``: a file, next to the test or below ``root``; or the content of such a file, of which
    ``fabric`` is enough; or that fabric alone. ``slowed``: shares of their stated rate at which links at some
    ports are built.
    """
    if isinstance(scenario, Mapping):
        whole = scenario if {"fabric", "fabrics"} & scenario.keys() else {"fabric": dict(scenario)}
        path, text = test, yaml.safe_dump({**_NAME, **whole}, sort_keys=False)
    else:
        beside = test.parent / scenario
        path = beside if beside.exists() else root / scenario
        text = read_text(path, SCENARIO_BYTES)
    experiment = parse(text, str(path), scale_for=scale_here, auto=True)
    plans = experiment.plans_of([arm] if arm else [])
    arms = ", ".join(experiment.arms)
    setting = plans[0].setting
    if any(plan.setting is not setting for plan in plans):
        raise ScenarioError(f"{path}: it has several fabrics; name an arm: {arms}")
    try:
        built = replace(setting, section=_slowed(setting, slowed or {}))
        plugged(setting.fabric)
    except ValueError as error:
        raise ScenarioError(f"{path}: {error}") from None
    plans = [replace(plan, setting=built) for plan in plans]
    key = (str(path), text, arm, runtime, tuple(sorted((slowed or {}).items())))
    return Wanted(experiment, tuple(plans), runtime, key)


def _slowed(setting: Setting, shares: Mapping[str, float]) -> Mapping[str, Any]:
    """The fabric's section with some links slower than everybody else is told. Raises ValueError."""
    links = [dict(link) for link in setting.section.get("links", ())]
    for port, share in shares.items():
        if not 0 < share < 1:
            raise ValueError(f"slowed: {port}: {share} is no share between 0 and 1")
        entries = [link for link in links if port in link["ends"]]
        if not entries:
            raise ValueError(f"slowed: none of the links of the fabric ends at {port}")
        for link in entries:
            link["rate"] = f"{parse_rate(link['rate']) * share:.0f} bit/s"
    return {**setting.section, "links": links} if shares else setting.section


@dataclass(repr=False)
class RinglightLab:
    """A lab that is up. ``fabric``: as plugged together; ``api``: of its controller; ``rest``: where that is.
    ``logs``: folder of what its processes say; pytest keeps it."""

    _lab: Any
    _experiment: Experiment
    _plans: tuple[RunPlan, ...]
    _links: list[Record]
    fabric: Fabric
    api: Api
    rest: str
    logs: Path
    id: str
    #: Whether something went wrong in it: the next test gets another.
    broken: bool = False
    _told: list[str] = field(default_factory=list)
    _runs: int = 0

    def __repr__(self) -> str:
        return f"RinglightLab({self.id})"

    def bench(
        self,
        collective: str = "all-reduce",
        *,
        sizes: str = "64KiB..4MiB",
        factor: float = 4.0,
        calls: int = 3,
        algorithm: str = "",
        skew: float = 0.0,
    ) -> Bench:
        """Measure a collective among all GPUs of the scenario's jobs like ``ringlight bench``. Return the
        measurements.

        The measurements are time, algorithm bandwidth and bus bandwidth of each size. Every result is
        compared with the expected one. Raises ScenarioError for unknown values, BackendError if the run
        fails.
        """
        __tracebackhide__ = True
        try:
            chosen = parse_sizes(sizes, factor)
            plan = bench_plan(self._plans[0], what_of(collective, algorithm, skew), chosen, calls)
        except ValueError as error:
            raise ScenarioError(f"bench: {error}") from None
        records = self._carry_out(plan)
        measurements = Bench(collective, tuple(measured(plan, records, chosen, calls)), checked(records))
        self._told.append(str(measurements))
        # A test's own output: pytest shows it with a failure, and with -s at once, in the log of a CI, too.
        print(measurements, flush=True)
        return measurements

    def run(self, arm: str | None = None) -> Figures:
        """Make the scenario's own runs in this lab, or those of an arm. Return their rows, as those of a run
        folder.

        Raises ScenarioError for an unknown arm or if there is nothing to run, BackendError if a job fails
        that was not meant to.
        """
        __tracebackhide__ = True
        plans = [plan for plan in self._plans if arm is None or plan.arm == arm]
        if not plans:
            arms = ", ".join(dict.fromkeys(plan.arm for plan in self._plans))
            raise ScenarioError(
                f"{self._experiment.path}: there is no arm {arm} in this lab; there are {arms}"
            )
        if (why := nothing_to_run(plans[0])) is not None:
            raise ScenarioError(f"{self._experiment.path}: {why}")
        records = [record for plan in plans for record in self._carry_out(plan)]
        rates = [record for record in records if isinstance(record, PortRate)]
        run_records = [*self._links, *(record for record in records if not isinstance(record, PortRate))]
        return Figures(analyse(self._experiment, run_records, "measured", rates, foretell=Foreteller()).rows)

    @property
    def _there(self) -> Any:
        """Return the lab. Raises BackendError when a test has closed it."""
        if self._lab is None:
            raise BackendError(f"lab {self.id} was closed by the test")
        return self._lab

    @property
    def links(self) -> tuple[LinkRate, ...]:
        """Return the rate that each direction of the links gave when the lab came up.

        A link that was measured while other processes used the processors is measured again first. Raises
        BackendError.
        """
        self._there.measure_links_again()
        return tuple(record for record in self._links if type(record) is LinkRate)

    def slow_links(self, below: float = SLOW) -> list[str]:
        """Return a line for each direction of a link that gave less than the share ``below`` of its stated
        rate.
        """
        return [words_of(link) for link in slow_links(self.links, below)]

    def told(self) -> str:
        """Return the text that is shown with a failure: the tables so far, and the slow links."""
        slow = [words_of(link) for link in slow_links(self._links)]
        return "\n".join([*self._told, *(slow or ["no link below its stated rate"]), f"logs: {self.logs}"])

    def _carry_out(self, plan: RunPlan) -> Sequence[Record]:
        __tracebackhide__ = True
        self._runs += 1
        name = (
            f"{plan.name}-{self._runs}"
            if plan.name not in {other.name for other in self._plans}
            else plan.name
        )
        try:
            outcome = run_in(self._there, replace(plan, name=name), lambda _: None, Reporter())
        except BaseException:
            self.broken = True
            raise
        if outcome.failures:
            self.broken = True
            raise BackendError(outcome.failures[0])
        return outcome.records

    def close(self) -> None:
        """Remove the lab; may be called again. The next test gets another."""
        self.broken = True
        lab, self._lab = self._lab, None
        try:
            if lab is not None:
                lab.close()
        finally:
            self.api.close()


class Labs:
    """Labs of one pytest session, at most one at a time. ``logs`` makes a lab's log folder."""

    def __init__(self, logs: Callable[[], Path]) -> None:
        self._logs = logs
        self._lab: RinglightLab | None = None
        self._key: tuple[Any, ...] = ()

    def take(self, request: Wanted) -> RinglightLab:
        """Return the lab that was kept, if it fits the request, or a new one. Raises one of ``FORESEEN``."""
        if self._lab is None or self._lab.broken or self._key != request.key:
            self.close()
            self._lab, self._key = _opened(request, self._logs()), request.key
        return self._lab

    def give_back(self, *, keep: bool) -> None:
        """The test is over. A lab in which something went wrong is not kept."""
        if self._lab is not None and (self._lab.broken or not keep):
            self.close()

    def close(self) -> None:
        lab, self._lab = self._lab, None
        if lab is not None:
            lab.close()


def _opened(request: Wanted, logs: Path) -> RinglightLab:
    addresses, plan = _addresses(), request.plans[0]
    backend = EmulationBackend(request.runtime, addresses)
    for run_plan in request.plans:
        if (why := backend.refuses(run_plan)) is not None:
            raise ScenarioError(f"{request.experiment.path}: {why}")
    records: list[Record] = []
    backend.prepare([plan.setting], logs, _say, {})
    lab = backend.open(plan.setting, records.append)
    api = Api(addresses.rest)
    return RinglightLab(
        lab, request.experiment, request.plans, records, lab.setting.fabric, api, addresses.rest, logs,
        lab.processes.lab.id,
    )  # fmt: skip


def _say(text: str) -> None:
    sys.stderr.write(f"ringlight: {visible(text)}\n")
