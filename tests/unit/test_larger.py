"""Runs at a chosen scale that the machine does not carry are made again at a larger one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ringlight.experiments.analysis.carrying import MEASURED
from ringlight.experiments.analysis.scaling import choose_scale
from ringlight.experiments.backends.simulation.backend import SimulationBackend
from ringlight.experiments.language.expand import Experiment, parse
from ringlight.experiments.language.plan import Setting
from ringlight.experiments.record.events import Aborted, Record
from ringlight.experiments.record.folder import experiment_of
from ringlight.experiments.record.lab_records import LinkRate, ProcessorLoad
from ringlight.experiments.record.lines import read_records
from ringlight.experiments.runner.command import carry_out_experiment
from ringlight.experiments.runner.larger import MOST, TooFast, check_links, check_run
from ringlight.experiments.runner.progress import Reporter
from tests.simulated import late, records_of
from tests.unit.test_scaling import TEXT


def chosen(more: str = "") -> Experiment:
    text = TEXT.replace("compute: 1 s", "compute: 50 ms") + more
    return parse(
        text, "small.yaml", scale_for=lambda plans: choose_scale(plans, MEASURED, 2)
    )


def link(ratio: float, **shares: float) -> LinkRate:
    said: dict[str, Any] = {
        "t": 0.0,
        "fabric": "fabric",
        "link": "a-b",
        "direction": "to b",
    }
    return LinkRate(**said, set_bps=1e6, measured_bps=ratio * 1e6, **shares)


class Slow(SimulationBackend):
    """Its links give their rates from a D on."""

    enough = 4.0

    def open(self, setting: Setting, emit: Callable[[Record], None]) -> Any:
        emit(
            link(
                1.0 if setting.scale.time >= self.enough else 0.8,
                busy=0.95,
                others=0.01,
                stolen=0.0,
            )
        )
        return super().open(setting, emit)


def scales_of(runs: Path) -> list[float]:
    """D of each run folder, in the order in which they were made."""
    found = []
    for folder in sorted(runs.iterdir(), key=lambda path: path.stat().st_ctime_ns):
        scale = experiment_of(folder).scale
        assert scale is not None
        found.append(scale.time)
    return found


def test_links_that_the_machine_does_not_carry_get_a_larger_scale(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    experiment = chosen()
    assert experiment.scale is not None
    begun = experiment.scale.time
    assert begun < Slow.enough
    done, result = carry_out_experiment(
        experiment, Slow(label="measured"), tmp_path, reporter=Reporter()
    )
    times = sorted(scales_of(tmp_path))
    assert times == [begun * 2**n for n in range(len(times))]
    ran = experiment_of(done.path)
    assert ran.scale is not None
    assert (
        times[-1]
        == ran.scale.time
        == ran.plans[0].setting.scale.time
        >= Slow.enough
        > times[-2]
    )
    assert ran.scale.larger[0].startswith(
        "link a-b (to b) gave 80.0 % of its setting, while processors"
    )
    assert result["complete"] is True
    said = capsys.readouterr().err
    assert f"this machine is too slow for time {begun:g}: link a-b" in said
    # The folders before it say why they end.
    for folder in tmp_path.iterdir():
        ended = [
            record
            for record in read_records(folder / "events.jsonl")
            if isinstance(record, Aborted)
        ]
        assert bool(ended) == (folder != done.path)


def test_after_some_attempts_what_there_is_counts(tmp_path: Path) -> None:
    class Hopeless(Slow):
        enough = 1e9

    experiment = chosen()
    assert experiment.scale is not None
    done, _ = carry_out_experiment(
        experiment, Hopeless(label="measured"), tmp_path, reporter=Reporter(quiet=True)
    )
    ran = experiment_of(done.path).scale
    assert ran is not None
    assert len(ran.larger) == MOST
    assert ran.time == experiment.scale.time * 2**MOST


def test_a_scale_that_the_file_states_is_never_changed(tmp_path: Path) -> None:
    experiment = parse(TEXT, "small.yaml", sets=["scale={time: 2, payload: 100}"])
    done, _ = carry_out_experiment(
        experiment, Slow(label="measured"), tmp_path, reporter=Reporter(quiet=True)
    )
    assert list(tmp_path.iterdir()) == [done.path]


@pytest.mark.parametrize(
    ("rate", "too_fast"),
    [
        (link(0.8, busy=0.95, others=0.0, stolen=0.0), True),
        (link(0.97, busy=0.95, others=0.0, stolen=0.0), False),
        # Others had the processors, or nobody: a larger D would mend nothing.
        (link(0.8, busy=0.95, others=0.3, stolen=0.0), False),
        (link(0.8, busy=0.5, others=0.0, stolen=0.0), False),
        (link(0.8), False),
    ],
)
def test_only_want_of_processors_asks_for_more(rate: LinkRate, too_fast: bool) -> None:
    if too_fast:
        with pytest.raises(TooFast):
            check_links([rate])
    else:
        check_links([rate])


def test_late_timers_and_busy_processors_ask_for_more_unless_something_was_made_to_happen() -> (
    None
):
    experiment = chosen()
    (plan,) = experiment.plans
    records = records_of(experiment)
    check_run(plan, records)
    compute_s = plan.jobs[0].loop.compute_s
    with pytest.raises(TooFast, match="compute timers woke"):
        check_run(plan, late(records, 0.1 * compute_s / 0.05))
    middle = records[-1].t / 2
    load = ProcessorLoad(t=middle, run=plan.name, busy=0.97, stolen=0.0, others=0.0)
    with pytest.raises(TooFast, match="processors were 97 % busy"):
        check_run(plan, [*records, load])
    check_run(plan, [*records, replace(load, others=0.5)])
    disturbed = chosen(
        "events: [{when: {at: 1 ms}, do: cancel, target: job train}]\n"
    ).plans[0]
    check_run(disturbed, [*records, load])
