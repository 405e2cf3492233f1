"""Runs a comparison in virtual time: the same fabrics, schedules and agents' state machines, and no lab.

What is computed is what an emulation with the scenario's D and S should take if nothing of the machine that
emulates came in between: rates are divided by D·S, times multiplied by D, gradients divided by S. The run
folder is that of an emulated run, on a clock that begins at 0, so results and report are made by the same
code. Runs with something going wrong are left out.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from controller.onic.protocol import Finished, Times
from experiments.runner.progress import Reporter
from fabric.optical_profiles import PROFILES
from fabric.steps import Step, Steps, frozen, frozen_bool
from fabric.topology import Fabric
from fabric.wdm import CLOCKWISE, RingPlan, set_up_steps
from scenarios.comparison import Comparison, grid_of, ring_of
from scenarios.comparison_runner import Plan, plans
from scenarios.runfolder import RunFolder
from scenarios.schema import Setting
from scenarios.simulated import SimulationOptions, finished, simulated_folder
from testbed.simulation.engine import Engine
from testbed.simulation.jobs import Compute, Job, JobResult, simulate
from testbed.simulation.networks import Network, RingNetwork, network_of, scaled
from testbed.simulation.onics import ControlNetwork, OnicPlane
from testbed.simulation.phases import StepCost, synchronous

#: Seconds between two runs on the virtual clock.
PAUSE_S = 1.0
#: Seconds that a control message takes between two O-NICs' agents, and its receiver's time for it. Measured:
#: benchmarks/flow_setup.py, four agents on two processors, 0.35 ms from request to light, in which two
#: messages follow each other. It is the agents' own time and does not become longer with D.
CONTROL_S, HANDLE_S = 150e-6, 25e-6
#: Lease of a grant, seconds (times D): the testbed's.
LEASE_S = 2.0


def simulate_comparison(
    comparison: Comparison, options: SimulationOptions, reporter: Reporter
) -> tuple[Path, dict[str, Any]]:
    """Simulate it all; the run folder and the object of result.json.

    Raises ValueError with one line where a job cannot run.
    """
    fabrics = [setting.fabric for setting in comparison.settings.values()]
    with simulated_folder(
        comparison,
        fabrics,
        options,
        reporter,
        assumptions=_assumptions(comparison),
        left_out=_left_out(comparison),
    ) as folder:
        now_s = 0.0
        for name in comparison.settings:
            for plan in plans(comparison, name, 1):
                if plan.kind != "trouble":
                    now_s = PAUSE_S + _Run(comparison, name, plan, options, now_s, folder, reporter).make()
    return finished(folder, reporter)


def _assumptions(comparison: Comparison) -> list[dict[str, str]]:
    found = []
    if any(grid_of(setting.fabric) for setting in comparison.settings.values()):
        found.append(
            {
                "what": "a control message between two O-NICs' agents",
                "value": f"{1e6 * CONTROL_S:g} + {1e6 * HANDLE_S:g} µs",
                "why": "on its way, and to be handled, emulated time. Measured with four agents of the "
                "emulation that had nothing else to do; more agents share the same processors there and are "
                "slower, here they are not",
            }
        )
    if any(setting.fabric.rings for setting in comparison.settings.values()):
        found.append(
            {
                "what": "changing a ring's light between two steps",
                "value": ", ".join(
                    dict.fromkeys(
                        f"{1e3 * declared_set_up_s(setting):g} ms"
                        for setting in comparison.settings.values()
                        if setting.fabric.rings
                    )
                ),
                "why": "the command and dark times of the switches' profile, times D, in each step in which "
                "a switch changes; the controller's own time for it is left out",
            }
        )
    return found


def _left_out(comparison: Comparison) -> list[str]:
    found = [
        "TCP's slow start and acknowledgements, the delay of Open vSwitch and of the machine's timers: what "
        "the emulation takes longer by.",
        "A rank of the emulation begins to send what it has while the step before still runs, where the "
        "collective allows; here a step begins when the rank's own step before has ended.",
        "The training itself: there are no parameters, no losses and no accuracy.",
    ]
    if comparison.spec.trouble:
        found.append("The runs in which something goes wrong: " + ", ".join(comparison.spec.trouble) + ".")
    return found


def emulated(setting: Setting, tuning_s: float | None = None) -> Fabric:
    """The fabric at the emulation's rates and tuning times. ``tuning_s``: emulated, in place of its own."""
    fabric = scaled(setting.fabric, setting.rate_scale)
    onics = {
        name: replace(onic, tuning_s=onic.tuning_s * setting.time_scale if tuning_s is None else tuning_s)
        for name, onic in fabric.onics.items()
    }
    return replace(fabric, onics=onics)


def declared_set_up_s(setting: Setting) -> float:
    """Emulated seconds from the command to light that is certain, as the profile of a ring's WSSs declares.

    Where each step sets its light anew, what stands is taken away by a command of its own.
    """
    ring = ring_of(setting.fabric)
    assert ring is not None
    profile = PROFILES[setting.fabric.optical_switches[ring.switches[0]].profile].dilated(setting.time_scale)
    commands = 2 if ring.reconfigure == "each-step" else 1
    return profile.command_s + profile.dark_bounds_s(commands=commands)[2]


def lit_steps(steps: Steps, plan: RingPlan) -> Steps:
    """The steps, with the wavelength and the direction that the plan gives each transfer."""
    emits = [[plan.transmit.get(a, {}).get(b) for b in plan.nodes] for a in plan.nodes]

    def make() -> Iterator[Step]:
        for step in steps:
            ends = zip(step.sources.tolist(), step.destinations.tolist(), strict=True)
            chosen = [emits[source][destination] for source, destination in ends]
            wavelengths = frozen([emit.wavelength for emit in chosen if emit])
            clockwise = frozen_bool([emit.port == CLOCKWISE for emit in chosen if emit])
            yield replace(step, wavelengths=wavelengths, clockwise=clockwise)

    return Steps(steps.name, steps.world_size, steps.chunks, steps.steps, make)


@dataclass
class _Run:
    """One run of the job, from ``start_s`` on the virtual clock."""

    comparison: Comparison
    fabric: str
    plan: Plan
    options: SimulationOptions
    start_s: float
    folder: RunFolder
    reporter: Reporter

    def make(self) -> float:
        """Makes it; when it has ended, on the virtual clock. Raises ValueError where the job cannot run."""
        plan, comparison = self.plan, self.comparison
        jobs = self._jobs()
        self.reporter.start_run(plan.title, {job.name: job.iterations for job in jobs})
        began = time.monotonic()
        self._note(
            "run_started",
            0.0,
            kind=plan.kind,
            case=self.fabric,
            variant=plan.variant,
            repeat=plan.repeat,
            simulated=True,
            jobs={job.name: list(job.ranks) for job in jobs},
            request=dict(plan.request),
            point=dict(plan.point) if plan.point else None,
        )
        self._note("released", 0.0, at=self.start_s)
        setting = comparison.settings[self.fabric]
        grid = grid_of(setting.fabric)
        if grid is not None:
            found = self._on_grid(setting, jobs)
        elif setting.fabric.rings:
            found = {job.name: self._on_ring(setting, job) for job in jobs}
        else:
            found = simulate(self._network(emulated(setting), jobs), jobs, progress=self._progress)
        for job in jobs:
            if (failed := found[job.name].failed) is not None:
                raise ValueError(f"{plan.title}: {failed}")
            self._note_iterations(job, found[job.name], by_flow=grid is not None)
        end_s = max(result.end_s for result in found.values())
        self._note("run_ended", end_s)
        self.reporter.end_run()
        self.reporter.say(f"  {end_s:.2f} s of virtual time in {time.monotonic() - began:.2f} s")
        return self.start_s + end_s

    def _jobs(self) -> list[Job]:
        request = self.plan.request
        return [
            Job(
                name,
                ranks,
                self.comparison.steps(self.fabric),
                request["gradient_bytes"],
                Compute(request["compute_s"]),
                request["iterations"],
            )
            for name, ranks in self.comparison.jobs(self.fabric).items()
        ]

    def _on_grid(self, setting: Setting, jobs: list[Job]) -> dict[str, JobResult]:
        """With the O-NICs' state machines: every flow asks for its light."""
        faults = self.plan.faults or {}
        fabric = emulated(setting, faults.get("tuning_s"))
        ways = self.comparison.ways(self.fabric)
        assert ways is not None
        control = ControlNetwork(CONTROL_S + faults.get("control_delay_s", 0.0), HANDLE_S)
        engine = Engine()
        numbers = itertools.count(1)

        def done(gpu: str, flow: Finished) -> None:
            self._note(
                "flow",
                flow.close_s,
                gpu=gpu,
                flow=next(numbers),
                peer=flow.peer,
                port=flow.port,
                wavelength=flow.wavelength,
                waited=flow.waited,
                **{
                    f"t_{name}": None if at_s is None else self.start_s + at_s
                    for name, at_s in (
                        ("open", flow.opened_s),
                        ("request", flow.request_s),
                        ("grant", flow.grant_s),
                        ("lit", flow.lit_s),
                        ("close", flow.close_s),
                        ("released", flow.released_s),
                    )
                },
            )

        times = Times.dilated(LEASE_S, setting.time_scale)
        plane = OnicPlane(engine, fabric, ways, control, times, done)
        network = self._network(fabric, jobs)
        found = simulate(network, jobs, gate=plane, engine=engine, progress=self._progress)
        self._note(
            "onics",
            max(result.end_s for result in found.values()),
            messages=dict(plane.messages),
            flows=len(plane.waits_s),
            receiver_overlaps=plane.overlaps,
        )
        return found

    def _on_ring(self, setting: Setting, job: Job) -> JobResult:
        """In step, as the light is set for all at once; where it changes, that takes what is declared."""
        fabric, options = emulated(setting), self.options
        ring, plan = ring_of(fabric), self.comparison.ring_plan(self.fabric)
        assert ring is not None
        assert plan is not None
        changes = set_up_steps(plan)
        declared_s = declared_set_up_s(setting)
        job = replace(
            job,
            steps=lit_steps(job.steps, plan),
            synchronised=True,
            cost=StepCost(declared_s, in_steps=tuple(changes)),
        )
        network = RingNetwork(fabric, ring, latency_s=options.latency_s, share=options.payload_share)
        found = simulate(network, [job], progress=self._progress)[job.name]
        step_s = synchronous(network, job.ranks, job.steps, job.vector_bytes, job.cost).step_s
        begins_s = (np.cumsum(step_s) - step_s).tolist()
        self._note(
            "ring",
            found.end_s,
            ring={"statistics": {"declared_s": declared_s}},
            set_ups=[
                {
                    "t": self.start_s + float(it.computed_s.max()) + begins_s[number],
                    "step": index * len(changes) + number,
                    "total_s": declared_s,
                    "write_s": None,
                }
                for index, it in enumerate(found.iterations)
                for number, changed in enumerate(changes)
                if changed
            ],
        )
        return found

    def _network(self, fabric: Fabric, jobs: list[Job]) -> Network:
        options = self.options
        ranks = [gpu for job in jobs for gpu in job.ranks]
        return network_of(fabric, ranks, latency_s=options.latency_s, share=options.payload_share)

    def _progress(self, job: str, iteration: int, _now_s: float) -> None:
        self.reporter.advance({job: iteration + 1}, {job: int(self.plan.request["iterations"])})

    def _note(self, event: str, at_s: float, **fields: Any) -> None:
        """An event, ``at_s`` seconds after the run's begin."""
        self.folder.copy({"t": self.start_s + at_s, "event": event, "run": self.plan.name, **fields})

    def _note_iterations(self, job: Job, found: JobResult, *, by_flow: bool) -> None:
        flows = dict.fromkeys(range(len(job.ranks)), 0)
        if by_flow:
            for step in job.steps:
                for source in step.sources.tolist():
                    flows[source] += 1
        for index, it in enumerate(found.iterations):
            times = zip(it.begin_s.tolist(), it.computed_s.tolist(), it.end_s.tolist(), strict=True)
            for rank, (begin_s, computed_s, end_s) in enumerate(times):
                self._note(
                    "iteration",
                    end_s,
                    job=job.name,
                    rank=rank,
                    i=index,
                    compute_start=self.start_s + begin_s,
                    compute_end=self.start_s + computed_s,
                    allreduce_end=self.start_s + end_s,
                    lateness_s=0.0,
                    max_stall_s=0.0,
                    loss=None,
                    **({"flows": flows[rank]} if by_flow else {}),
                )
