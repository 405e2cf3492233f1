"""Every arm of every bundled scenario is told the same, takes as long and gets the same light as ever.

Examples end as they should, too. ``tests/integration/test_examples.py`` has them on the testbed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pytest

from ringlight.experiments.backends.simulation.backend import SimulationBackend
from ringlight.experiments.language.expand import Experiment, load
from ringlight.experiments.language.job_sources import source_of
from ringlight.experiments.language.text import parse_yaml
from ringlight.experiments.record.events import Record
from ringlight.experiments.record.runs import runs_of
from ringlight.experiments.runner.experiment import choose, run_alone
from tests.examples import EXAMPLES, LARGE, assert_as_planned, assert_shown
from tests.matrix import (
    document_of,
    goldens,
    loaded,
    on_reference,
    scenarios,
    simulated,
)
from tests.scenario_notes import notes_of

#: Figures agree to rounding. With another processor's BLAS another one of four million answers may be wrong.
CLOSE = 1e-9
CLOSE_COUNTED = {"output_off simulated": 1e-5}
#: Examples with a sweep.
OTHERWISE = ("dark_time",)
ANEW = "python -m tests.matrix writes it anew"


def differences(found: Any, wanted: Any, where: str) -> Iterator[str]:
    if isinstance(found, dict) and isinstance(wanted, dict):
        for key in wanted | found:
            if key not in wanted or key not in found:
                yield f"{where}.{key}: {'new' if key not in wanted else 'gone'}"
            else:
                yield from differences(found[key], wanted[key], f"{where}.{key}")
    elif (
        isinstance(found, list)
        and isinstance(wanted, list)
        and len(found) == len(wanted)
    ):
        for number, pair in enumerate(zip(found, wanted, strict=True)):
            yield from differences(*pair, f"{where}[{number}]")
    elif isinstance(found, float) and isinstance(wanted, float):
        close = CLOSE_COUNTED.get(where.rpartition(".")[2], CLOSE)
        if found != pytest.approx(wanted, rel=close, abs=1e-12, nan_ok=True):
            yield f"{where}: {found}, not {wanted}"
    elif found != wanted:
        yield f"{where}: {found!r}, not {wanted!r}"


def assert_ended_well(
    name: str, experiment: Experiment, records: Iterable[Sequence[Record]]
) -> None:
    runs = runs_of([record for found in records for record in found], experiment.plans)
    assert [run.plan for run in runs] == list(experiment.plans)
    for run in runs:
        assert_as_planned(run)
    assert_shown(name, runs)


@pytest.mark.parametrize("name", OTHERWISE)
def test_an_example_that_the_matrix_does_not_run_as_users_do(name: str) -> None:
    experiment, backend = (
        load(scenarios()[name], scale_for=on_reference),
        SimulationBackend(),
    )
    assert not choose(experiment, backend).refused
    assert_ended_well(
        name, experiment, [run_alone(backend, plan)[0] for plan in experiment.plans]
    )


def test_what_the_matrix_does_not_run_as_users_do() -> None:
    raws = {path.stem: parse_yaml(path.read_text(), path.name) for path in EXAMPLES}
    assert [name for name, raw in raws.items() if "sweep" in raw] == [*OTHERWISE]


def test_every_bundled_scenario_is_in_the_matrix() -> None:
    assert goldens().keys() == scenarios().keys(), ANEW


@pytest.mark.parametrize("name", scenarios())
def test_the_matrix_is_as_it_was(name: str, long: bool) -> None:
    path = scenarios()[name]
    sourced = source_of(parse_yaml(path.read_text(), path.name).get("jobs")) is not None
    study = sourced and path.parent.name != "examples"
    if (study or name in LARGE or notes_of(name).study) and not long:
        pytest.skip("computes thousands of jobs, or has 256 to 1,024 GPUs; --long does")
    experiment = loaded(path)
    records = simulated(experiment, name)
    if path in EXAMPLES and name not in OTHERWISE:
        assert_ended_well(name, experiment, records.values())
    wanted = json.loads(goldens()[name].read_text())
    found = json.loads(json.dumps(document_of(experiment, records)))
    wrong = list(differences(found, wanted, name))
    assert not wrong, "\n".join([*wrong[:20], f"{len(wrong)} differences; {ANEW}"])
