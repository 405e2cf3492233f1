"""An emulated lab for scripts: it stays up while a script, or a test, measures in it."""

from __future__ import annotations

import os
import shutil
import socket
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any

from ringlight.containers.image import ImageError
from ringlight.experiments.analysis.result import analyse
from ringlight.experiments.backends.emulation.backend import EmulationBackend
from ringlight.experiments.backends.protocol import BackendError
from ringlight.experiments.client import Api, regrouped
from ringlight.experiments.language.expand import Experiment
from ringlight.experiments.language.plan import RunPlan
from ringlight.experiments.language.text import ScenarioError
from ringlight.experiments.record.events import Record
from ringlight.experiments.record.lab_records import LinkRate, PortRate
from ringlight.experiments.runner.experiment import nothing_to_run
from ringlight.experiments.runner.foretold import Foreteller
from ringlight.experiments.runner.machine import scale_here
from ringlight.experiments.runner.progress import Reporter
from ringlight.experiments.runner.timeline import run_in
from ringlight.experiments.scripting.added import AddedMethods
from ringlight.experiments.scripting.runs import Figures
from ringlight.experiments.scripting.study import Study
from ringlight.fabric.text import visible
from ringlight.fabric.topology import Fabric
from ringlight.testbed.addresses import Addresses
from ringlight.testbed.lab import LabError
from ringlight.testbed.readiness import check_ready
from ringlight.testbed.services import ServiceError
from ringlight.testbed.setup import check_programs


@dataclass(repr=False)
class Lab(AddedMethods):
    """A lab that is up; use it as a context manager, or :meth:`close` it.

    ``id``: its id, which everything has that belongs to it. ``fabric``: as plugged together. ``rest``: client
    of its controller's REST API, ``lab.rest.get("/v1/topology")``; ``url``: where that is. ``logs``: folder
    with the output of its processes. ``notes``: lines that a test shows if it fails. ``broken``: whether
    something went wrong in it.
    """

    id: str
    fabric: Fabric
    rest: Api
    url: str
    logs: Path
    plans: tuple[RunPlan, ...]
    notes: list[str] = field(default_factory=list)
    broken: bool = False
    _experiment: Experiment | None = None
    _lab: Any = None
    _links: list[Record] = field(default_factory=list)
    _runs: int = 0
    _remove: Callable[[], object] = lambda: None

    def __repr__(self) -> str:
        return f"Lab({self.id}, {self.url})"

    def __enter__(self) -> Lab:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def links(self) -> tuple[LinkRate, ...]:
        """Return the rate that each direction of the links gave when the lab came up, bits per second.

        A link that was measured while other processes used the processors is measured again first. Raises
        BackendError.
        """
        self._there.measure_links_again()
        return self.links_at_start

    @property
    def links_at_start(self) -> tuple[LinkRate, ...]:
        """Return the rates of :attr:`links` as they are known, bits per second; measure nothing."""
        return tuple(record for record in self._links if type(record) is LinkRate)

    def regroup(
        self, jobs: Sequence[str] = (), *, dry_run: bool = False
    ) -> dict[str, Any]:
        """Have the controller move GPUs so that the least traffic crosses between packet switches.

        ``jobs``: their ids; all if left out. ``dry_run``: only plan. Return the document of the regroup, when
        it is done. Raises BackendError if it fails, ApiError if it is refused.
        """
        document = regrouped(self.rest, list(jobs) or None, dry_run)
        if document["state"] == "FAILED":
            raise BackendError(f"{document['id']}: {document['error']}")
        return document

    def run(self, arm: str | None = None) -> Figures:
        """Make the scenario's own runs in this lab, or those of an arm. Return their rows, as those of a run
        folder.

        Raises ScenarioError for an unknown arm or if there is nothing to run, BackendError if a job fails
        that was not meant to.
        """
        __tracebackhide__ = True
        assert self._experiment is not None
        path = self._experiment.path
        plans = [plan for plan in self.plans if arm is None or plan.arm == arm]
        if not plans:
            arms = ", ".join(dict.fromkeys(plan.arm for plan in self.plans))
            raise ScenarioError(
                f"{path}: there is no arm {arm} in this lab; there are {arms}"
            )
        if (why := nothing_to_run(plans[0])) is not None:
            raise ScenarioError(f"{path}: {why}")
        records = [record for plan in plans for record in self.carry_out(plan)]
        rates = [record for record in records if isinstance(record, PortRate)]
        run_records = [
            *self._links,
            *(record for record in records if not isinstance(record, PortRate)),
        ]
        analysis = analyse(
            self._experiment, run_records, "measured", rates, foretell=Foreteller()
        )
        return Figures(tuple(analysis.rows))

    def carry_out(self, plan: RunPlan) -> Sequence[Record]:
        """Carry out a run plan in this lab. Return its records. Raises BackendError if a job fails."""
        __tracebackhide__ = True
        self._runs += 1
        if plan.name not in {own.name for own in self.plans}:
            plan = replace(plan, name=f"{plan.name}-{self._runs}")
        try:
            outcome = run_in(self._there, plan, lambda _: None, Reporter())
        except BaseException:
            self.broken = True
            raise
        if outcome.failures:
            self.broken = True
            raise BackendError(outcome.failures[0])
        return outcome.records

    def close(self) -> None:
        """Remove the lab; may be called again."""
        self.broken = True
        lab, self._lab = self._lab, None
        try:
            if lab is not None:
                lab.close()
        finally:
            self.rest.close()
            self._remove()

    @property
    def _there(self) -> Any:
        """Return the lab of the emulation. Raises BackendError if it was closed."""
        if self._lab is None:
            raise BackendError(f"lab {self.id} was closed")
        return self._lab


def lab(
    fabric: Mapping[str, Any] | Study | str | Path,
    jobs: Mapping[str, Mapping[str, Any]] | None = None,
    *,
    arm: str | None = None,
    runtime: str = "docker",
) -> Lab:
    """Build a lab of a fabric and return it; needs root.

    ``fabric`` and ``jobs``: as of :class:`Study`; a study has its own jobs. ``arm``: whose fabric it is if
    the study has several. ``runtime``: docker, or namespace for workers without containers. Raises
    ScenarioError naming the key, BackendError and LabError, each with one line; then nothing is left.
    """
    study = fabric if isinstance(fabric, Study) else Study(fabric, jobs, name="lab")
    experiment = study.experiment(scale_here, auto=True)
    plans = experiment.plans_of([arm] if arm else [])
    setting = experiment.one_setting(arm)
    if (why := why_not(runtime)) is not None:
        raise LabError(why)
    logs = Path(tempfile.mkdtemp(prefix="ringlight-lab-"))
    try:
        made = open_lab(
            experiment,
            [plan for plan in plans if plan.setting is setting],
            runtime,
            logs,
        )
    except BaseException:
        shutil.rmtree(logs, ignore_errors=True)
        raise
    made._remove = lambda: shutil.rmtree(logs, ignore_errors=True)
    return made


def open_lab(
    experiment: Experiment, plans: Sequence[RunPlan], runtime: str, logs: Path
) -> Lab:
    """Build a lab for the plans of one setting. Return it.

    ``logs``: folder for the output of its processes. Raises as :func:`lab`.
    """
    addresses, setting = _addresses(), plans[0].setting
    backend = EmulationBackend(runtime, addresses)
    for plan in plans:
        if (why := backend.refuses(plan)) is not None:
            raise ScenarioError(f"{experiment.path}: {why}")
    links: list[Record] = []
    backend.prepare([setting], logs, _say, {})
    made = backend.open(setting, links.append)
    return Lab(
        made.processes.lab.id,
        made.setting.fabric,
        Api(addresses.rest),
        addresses.url,
        logs,
        tuple(plans),
        _experiment=experiment,
        _lab=made,
        _links=links,
    )


def why_not(runtime: str) -> str | None:
    """Return why this machine cannot build a lab now, in one line with the remedy; None if it can."""
    if sys.platform != "linux":
        return f"needs Linux, and this is {sys.platform}"
    if os.geteuid() == 0:
        try:
            check_programs(runtime)
        except ServiceError as error:
            return str(error)
    try:
        check_ready(runtime, _addresses())
    except (LabError, ImageError) as error:
        return str(error)
    return None


def _addresses() -> Addresses:
    """Return addresses with two free ports, so that another lab of this machine is nobody's concern."""
    with (
        closing(socket.socket()) as rest_socket,
        closing(socket.socket()) as openflow_socket,
    ):
        for probe in (rest_socket, openflow_socket):
            probe.bind(("127.0.0.1", 0))
        rest, openflow = (
            f"127.0.0.1:{p.getsockname()[1]}" for p in (rest_socket, openflow_socket)
        )
        return Addresses(rest, openflow)


def _say(text: str) -> None:
    sys.stderr.write(f"ringlight: {visible(text)}\n")
