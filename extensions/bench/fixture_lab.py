"""Labs that the fixture ``ringlight_lab`` gives, and what ``bench`` adds to a lab of scripts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from ringlight.experiments.analysis.rows import Row
from ringlight.experiments.backends.protocol import BackendError
from ringlight.experiments.language.expand import Experiment, parse
from ringlight.experiments.language.plan import RunPlan, Setting
from ringlight.experiments.language.text import SCENARIO_BYTES, ScenarioError, read_text
from ringlight.experiments.record.writing import WriteError
from ringlight.experiments.runner.machine import scale_here
from ringlight.experiments.scripting.scripted_lab import Lab, open_lab
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
from ringlight.fabric.units import format_size, parse_rate, parse_size
from ringlight.testbed.lab import LabError

#: What making a lab raises for reasons that one line says.
FORESEEN = (ScenarioError, BackendError, LabError, WriteError)
#: The name of a mapping that has none.
_NAME = {"name": "test"}


@dataclass(frozen=True)
class Wanted:
    """Request of a test for a lab. ``plans``: plans of one setting. ``key``: distinguishes the request from
    others.
    """

    experiment: Experiment
    plans: tuple[RunPlan, ...]
    runtime: str
    key: tuple[Any, ...]


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
        known = ", ".join(
            format_size(measurement.size_bytes) for measurement in self.sizes
        )
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
        lines = (
            "  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True))
            for line in cells
        )
        return "\n".join([self.collective, *(line.rstrip() for line in lines)])


def request_of(
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
        whole = (
            scenario
            if {"fabric", "fabrics"} & scenario.keys()
            else {"fabric": dict(scenario)}
        )
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


def bench(
    lab: Lab,
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

    The measurements are time, algorithm bandwidth and bus bandwidth of each size. Every result is compared
    with the expected one. Raises ScenarioError for unknown values, BackendError if the run fails.
    """
    __tracebackhide__ = True
    try:
        chosen = parse_sizes(sizes, factor)
        plan = bench_plan(
            lab.plans[0], what_of(collective, algorithm, skew), chosen, calls
        )
    except ValueError as error:
        raise ScenarioError(f"bench: {error}") from None
    records = lab.carry_out(plan)
    measurements = Bench(
        collective, tuple(measured(plan, records, chosen, calls)), checked(records)
    )
    lab.notes.append(str(measurements))
    # A test's own output: pytest shows it with a failure, and with -s at once, in the log of a CI, too.
    print(measurements, flush=True)
    return measurements


def slow(lab: Lab, below: float = SLOW) -> list[str]:
    """Return a line for each direction of a link that gave less than the share ``below`` of its stated
    rate.
    """
    return [words_of(link) for link in slow_links(lab.links, below)]


def summary(lab: Lab) -> str:
    """Return the text that is shown with a failure: the tables so far, and the slow links."""
    lines = [words_of(link) for link in slow_links(lab.links_at_start)]
    return "\n".join(
        [*lab.notes, *(lines or ["no link below its stated rate"]), f"logs: {lab.logs}"]
    )


class Labs:
    """Labs of one pytest session, at most one at a time. ``logs`` makes a lab's log folder."""

    def __init__(self, logs: Callable[[], Path]) -> None:
        self._logs = logs
        self._lab: Lab | None = None
        self._key: tuple[Any, ...] = ()

    def take(self, request: Wanted) -> Lab:
        """Return the lab that was kept, if it fits the request, or a new one. Raises one of ``FORESEEN``."""
        if self._lab is None or self._lab.broken or self._key != request.key:
            self.close()
            self._lab = open_lab(
                request.experiment, request.plans, request.runtime, self._logs()
            )
            self._key = request.key
        return self._lab

    def give_back(self, *, keep: bool) -> None:
        """Take a lab back after a test. A lab in which something went wrong is not kept."""
        if self._lab is not None and (self._lab.broken or not keep):
            self.close()

    def close(self) -> None:
        """Remove the lab that was kept, if there is one."""
        lab, self._lab = self._lab, None
        if lab is not None:
            lab.close()
