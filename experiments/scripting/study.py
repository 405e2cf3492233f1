"""A study: a scenario that a script makes, checks, simulates and emulates."""

from __future__ import annotations

import copy
import math
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import closing, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from ringlight.experiments.language.bundled import bundled
from ringlight.experiments.language.text import (
    SCENARIO_BYTES,
    parse_yaml,
    plain_yaml,
    read_text,
)
from ringlight.experiments.scripting.added import AddedMethods

if TYPE_CHECKING:
    from ringlight.experiments.backends.protocol import Backend
    from ringlight.experiments.language.expand import Experiment, ScaleFor
    from ringlight.experiments.scripting.runs import Runs

#: Keys of the file, besides its fabric, that say that it is a scenario and not a fabric alone.
_OF_SCENARIOS = {"fabric", "fabrics"}


class ClusterClient(Protocol):
    """A client of a cluster that computes runs, such as ``distributed.Client``."""

    def get_executor(self) -> Executor:
        """Return an executor whose tasks the cluster computes."""
        ...


class Study(AddedMethods):
    """A scenario: a fabric, jobs, arms that are compared, and what is made to happen.

    ``fabric``: a mapping with the keys of ``fabric`` in a file, such as :func:`leaf_spine` returns; or a
    file or another study, whose fabric is taken. ``jobs``: by name, as :func:`training` and :func:`workload`
    return them; one job on all GPUs if left out. ``scale``: D and S of the emulation, ``{"time": 1,
    "payload": 400}`` or ``auto``; if left out, an emulation has the scale that the machine carries, and a
    simulation the real rates. ``sections``: other sections of a scenario file, such as ``tcp``.
    ``directory``: folder to which paths of files are relative.

    Raises ScenarioError if a file cannot be read. Nothing else is checked before :meth:`check`,
    :meth:`simulate` or :meth:`emulate`, which raise ScenarioError naming the key.

    >>> from ringlight.experiments.scripting.parts import leaf_spine, regroup, training
    >>> fabric = leaf_spine(2, 3, "40 Gbit/s", oversubscription=3, ocs=True)
    >>> study = Study(fabric, {"red": training(ranks="g0 g3 g1 g4", iterations=5)})
    >>> study.arm("fragmented").arm("regrouped", events=[regroup()]).arms
    ('fragmented', 'regrouped')
    """

    def __init__(
        self,
        fabric: Mapping[str, Any] | Study | str | Path,
        jobs: Mapping[str, Mapping[str, Any]] | None = None,
        *,
        name: str = "study",
        scale: Mapping[str, float] | str | None = None,
        directory: str | Path = ".",
        **sections: Any,
    ) -> None:
        stated = {"jobs": jobs, "scale": scale}
        self._content: dict[str, Any] = {
            "name": name,
            **_fabric_of(fabric),
            **{key: value for key, value in stated.items() if value is not None},
            **sections,
        }
        self._directory = Path(directory)

    @property
    def name(self) -> str:
        """Return its name, which run folders have."""
        return str(self._content["name"])

    @property
    def directory(self) -> Path:
        """Return the folder to which the paths of its files are relative."""
        return self._directory

    @property
    def content(self) -> dict[str, Any]:
        """Return a copy of the scenario as a mapping: sections by their keys."""
        return copy.deepcopy(self._content)

    @property
    def arms(self) -> tuple[str, ...]:
        """Return the names of its arms."""
        return tuple(self._content.get("arms") or ())

    def __repr__(self) -> str:
        return f"Study({self.name}, arms: {', '.join(self.arms) or 'one'})"

    def arm(
        self,
        name: str,
        *,
        title: str | None = None,
        like: str | None = None,
        events: Sequence[Mapping[str, Any]] | None = None,
        sets: Mapping[str, Any] | None = None,
    ) -> Study:
        """Add an arm, one of the variants that are compared. Return the study.

        ``name``: lower-case letters, digits and hyphens. ``title``: its name in the report. ``like``: arm
        with which it begins. ``events``: in place of the study's. ``sets``: values by the dotted path of what
        they replace, such as ``{"jobs.red.ranks": ["g0", "g1"]}``.
        """
        changes: dict[str, Any] = {"title": title, "like": like}
        changes = {key: value for key, value in changes.items() if value is not None}
        changes |= sets or {}
        if events is not None:
            changes["events"] = [dict(event) for event in events]
        self._content.setdefault("arms", {})[name] = changes
        return self

    def compare(self, baseline: str, *arms: str, **keys: Any) -> Study:
        """Add a comparison of arms with a baseline: all others if no ``arms`` are named. Return the study.

        ``keys``: other keys of ``compare``, such as ``metrics`` and ``job``. They are checked with the rest
        of the study.
        """
        comparison = {
            "baseline": baseline,
            **({"arms": list(arms)} if arms else {}),
            **keys,
        }
        self._content.setdefault("compare", []).append(comparison)
        return self

    def to_yaml(self) -> str:
        """Return the scenario file that says the same."""
        return plain_yaml(self._content)

    def save(self, path: str | Path) -> Path:
        """Write the scenario file that says the same. Return its path. Raises OSError."""
        file = Path(path)
        file.write_text(self.to_yaml(), encoding="utf-8")
        return file

    def check(self) -> dict[str, Any]:
        """Return what ``ringlight check --json`` prints: fabric, jobs, arms, predicted times in seconds.

        If the study states no scale, it is checked with the scale that :meth:`emulate` would choose.
        Raises ScenarioError naming the key that is wrong.
        """
        from ringlight.experiments.runner.check_document import check_document
        from ringlight.experiments.runner.machine import scale_here

        return check_document(self.experiment(scale_here, auto=True))

    def experiment(
        self,
        scale_for: ScaleFor,
        *,
        sweep: Mapping[str, Sequence[Any]] | None = None,
        repeat: int | None = None,
        auto: bool = False,
    ) -> Experiment:
        """Return the checked experiment, with its run plans. Raises ScenarioError naming the key.

        ``scale_for``: chooses the scale if it is left to the machine, with ``auto`` also if none is stated.
        The others: as of :meth:`simulate`.
        """
        from ringlight.experiments.runner.command import parse_checked

        whole = self if sweep is None else self._with_sweep(sweep)
        path = str(self._directory / f"{self.name}.yaml")
        return parse_checked(
            whole.to_yaml(), path, repeat, scale_for=scale_for, auto=auto
        )

    def simulate(
        self,
        *,
        sweep: Mapping[str, Sequence[Any]] | None = None,
        arms: Collection[str] = (),
        repeat: int | None = None,
        processes: int | None = None,
        executor: Executor | ClusterClient | None = None,
        mtu: int | None = None,
        latency: str = "0 s",
        runs: str | Path = "runs",
        quiet: bool = False,
    ) -> Runs:
        """Simulate all arms, or some, in virtual time; needs no root. Return the results.

        ``sweep``: lists of values by dotted path; every combination is simulated. ``repeat``: how often each
        run is made. ``processes``: number of processes that compute the runs, in place of this one; a script
        then needs ``if __name__ == "__main__":``, as they read it again. ``executor``: computes the runs,
        such as a ``ThreadPoolExecutor``, or a cluster's ``distributed.Client``. ``mtu``: bytes of a packet.
        ``latency``: of a transfer's first byte, emulated time with its unit, besides the file's. ``runs``:
        folder in which the run folder is made. ``quiet``: no progress on standard error.

        Raises ScenarioError naming the key, BackendError and WriteError, each with one line.
        """
        from ringlight.experiments.backends.simulation.backend import SimulationBackend
        from ringlight.experiments.runner.machine import real_scale
        from ringlight.fabric.units import parse_time

        experiment = self.experiment(real_scale, sweep=sweep, repeat=repeat)
        backend = SimulationBackend(mtu, parse_time(latency))
        if executor is not None and not isinstance(executor, Executor):
            executor = executor.get_executor()
        spread: dict[str, Any] = {
            "processes": processes,
            "executor": executor,
            "many": math.inf,
        }
        return _carried_out(
            experiment, backend, runs, arms, quiet, suffix="-simulated", **spread
        )

    def emulate(
        self,
        *,
        sweep: Mapping[str, Sequence[Any]] | None = None,
        arms: Collection[str] = (),
        repeat: int | None = None,
        runtime: str = "docker",
        runs: str | Path = "runs",
        executor: str | None = None,
        quiet: bool = False,
    ) -> Runs:
        """Run all arms, or some, on the emulated testbed; needs root. Return the results.

        ``runtime``: docker, or namespace for workers without containers. ``executor``: ``NAME:ADDRESS`` of an
        executor of an extension on whose machines the labs are; None for this machine. The others: as of
        :meth:`simulate`. Raises what :meth:`simulate` raises, and LabError.
        """
        from ringlight.experiments.backends.emulation.backend import EmulationBackend
        from ringlight.experiments.runner.executor_kinds import backend_at
        from ringlight.experiments.runner.machine import scale_here

        labs = (
            nullcontext(EmulationBackend(runtime))
            if executor is None
            else backend_at(executor, runtime)
        )
        with labs as backend:
            experiment = self.experiment(
                scale_here, sweep=sweep, repeat=repeat, auto=True
            )
            return _carried_out(experiment, backend, runs, arms, quiet)

    def _with_sweep(self, sweep: Mapping[str, Sequence[Any]]) -> Study:
        swept = Study.__new__(Study)
        over = {path: list(values) for path, values in sweep.items()}
        swept._content = {**self._content, "sweep": {"over": over}}
        swept._directory = self._directory
        return swept


def load(path: str | Path) -> Study:
    """Return the study in a scenario file, whose paths stay relative to the file's folder.

    Raises ScenarioError if the file cannot be read.
    """
    file = Path(path)
    content = parse_yaml(read_text(file, SCENARIO_BYTES), str(file))
    study = Study({}, directory=file.parent)
    study._content = {"name": file.stem, **content}
    return study


def example(name: str) -> Study:
    """Return the study in a bundled scenario file, which ``ringlight examples`` lists.

    Raises ScenarioError listing the names if there is none of this name.

    >>> example("disaggregation").arms[:2]
    ('a-fragmented', 'a-regrouped')
    """
    return load(bundled(name))


def _fabric_of(fabric: Mapping[str, Any] | Study | str | Path) -> dict[str, Any]:
    """Return the sections of a scenario that are its fabrics."""
    if isinstance(fabric, str | Path):
        fabric = load(fabric)
    whole = fabric.content if isinstance(fabric, Study) else fabric
    named = {
        key: copy.deepcopy(whole[key])
        for key in ("parameters", "fabric", "fabrics")
        if key in whole
    }
    if _OF_SCENARIOS & named.keys():
        return named
    return {"fabric": copy.deepcopy(dict(whole))}


def _carried_out(
    experiment: Experiment,
    backend: Backend,
    runs: str | Path,
    arms: Collection[str],
    quiet: bool,
    **more: Any,
) -> Runs:
    from ringlight.experiments.analysis.rows import from_json
    from ringlight.experiments.runner.command import carry_out_experiment
    from ringlight.experiments.runner.progress import Reporter
    from ringlight.experiments.scripting.runs import Runs
    from ringlight.experiments.scripting.sweep_progress import (
        MOST_LISTED,
        SweepReporter,
    )

    chosen = [plan for plan in experiment.plans if not arms or plan.arm in arms]
    counted = backend.label == "simulated" and len(chosen) > MOST_LISTED
    reporter = (
        SweepReporter(len(chosen), quiet=quiet) if counted else Reporter(quiet=quiet)
    )
    with closing(reporter):
        done, result = carry_out_experiment(
            experiment,
            backend,
            Path(runs),
            arms=arms,
            reporter=reporter,
            watched=True,
            **more,
        )
    return Runs(tuple(from_json(result)), done.path, result, done.failures)
