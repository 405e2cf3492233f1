"""Every example on the testbed, in small: fewer iterations, smaller gradients, and not all of its arms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from ringlight.containers.image_build import ensure_image
from ringlight.experiments.analysis import machine_faults
from ringlight.experiments.backends.emulation import linktest
from ringlight.experiments.backends.emulation.backend import EmulationBackend
from ringlight.experiments.language.expand import Experiment, parse
from ringlight.experiments.language.paths import put
from ringlight.experiments.language.text import parse_yaml, read_text
from ringlight.experiments.record.lines import read_records
from ringlight.experiments.record.runs import Run, runs_of
from ringlight.experiments.runner.command import carry_out_experiment
from ringlight.experiments.runner.machine import scale_here
from ringlight.testbed.addresses import Addresses
from tests.examples import EXAMPLES, LARGE, assert_as_planned, assert_shown
from tests.integration.controller_rig import free_port
from tests.integration.figures import Figures
from tests.scenario_notes import notes_of

pytestmark = [pytest.mark.root, pytest.mark.timeout(600)]

#: What makes an example short; the events' iterations must come.
SMALL: Mapping[str, Mapping[str, Any]] = {
    "all_to_all": {
        "fabric.leaf_spine.gpus_per_leaf": 3,
        "jobs.tokens.workload.iterations": 1,
        "jobs.tokens.workload.size": "20 MB",
    },
    "cut_uplink": {
        # One edge switch with its two GPUs, and one of another pod.
        "jobs": {"train": {"ranks": ["g0", "g1", "g4", "g5"]}},
        "training.iterations": 8,
        "training.gradient": "2 MB",
        "training.compute": "1 ms",
    },
    # The regroup after the fourth must come before the last, also on a busy machine.
    "dark_time": {"training.iterations": 24},
    "dead_switch": {},
    "fat_tree_4": {"training.iterations": 1, "training.gradient": "5 MB"},
    "leaf_spine_arrival": {"training.gradient": "20 MB"},
    "packet_switches": {"training.iterations": 2},
    "queue": {"training.iterations": 8},
    "spare": {"training.iterations": 20},
    # Which path a flow has is by hash, as nowhere else on the testbed but in fat_tree_4.
    "two_cables": {
        "training.iterations": 1,
        "training.gradient": "10 MB",
        "fabrics.two.paths": "hash",
    },
}
#: Examples of 64 GPUs, and longer forms of what test_faults_run.py, test_gpu_loss.py,
#: test_emulation_backend.py and the other examples show on the testbed.
ONLY_LONG = (
    *("sixty_four", "fat_tree_4", "cut_uplink", "dead_switch", "spare", "dark_time"),
    *("all_to_all", "leaf_spine_arrival", "queue", "two_cables"),
)
#: Those that show something of the testbed which other arms and other examples do not, where not all do. A
#: spare GPU is swapped in among containers, below.
ARMS: Mapping[str, Sequence[str]] = {
    "all_to_all": ("skewed",),
    "cut_uplink": ("cut",),
    "dark_time": ("half",),
    "dead_switch": ("killed",),
    "fat_tree_4": ("hash",),
    "packet_switches": ("slow",),
    "spare": ("shrunk", "failed"),
    "two_cables": ("two",),
}


@pytest.fixture(autouse=True)
def nothing_is_made_once_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """However much others take of the processors, other tests among them: no time counts here."""
    for module in (machine_faults, linktest):
        monkeypatch.setattr(module, "TAKEN", 2.0)


def small(path: Path, values: Mapping[str, Any] = {}) -> Experiment:
    """One point of each arm, where it is swept. ``values``: besides those of :data:`SMALL`."""
    raw = parse_yaml(read_text(path), str(path))
    raw.pop("sweep", None)
    short = SMALL.get(path.stem, notes_of(path.stem).small)
    for key, value in {**short, **values, "link_test.duration": "200 ms"}.items():
        raw = put(raw, key, value)
    return parse(yaml.safe_dump(raw, sort_keys=False), str(path), scale_for=scale_here)


def carried_out(
    experiment: Experiment, folder: Path, runtime: str, *arms: str
) -> tuple[list[Run], Figures]:
    """Its runs, of which all must have ended as planned, and their figures."""
    backend = EmulationBackend(
        runtime, Addresses(f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}")
    )
    done, result = carry_out_experiment(experiment, backend, folder, arms=arms)
    assert not done.failures
    assert result["complete"] is True
    assert not result["not_run"]
    runs = runs_of(read_records(done.path / "events.jsonl"), experiment.plans)
    for run in runs:
        assert_as_planned(run)
    figures = Figures(result)
    figures.assert_exact(
        sum(not job.plan.may_fail for run in runs for job in run.jobs.values()),
        sum(job.plan.workload is not None for run in runs for job in run.jobs.values()),
    )
    return runs, figures


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_on_the_testbed(path: Path, tmp_path: Path, long: bool) -> None:
    notes = notes_of(path.stem)
    if (path.stem in (*LARGE, *ONLY_LONG) or notes.only_long) and not long:
        pytest.skip(
            "is large, or other tests show on the testbed what it shows; --long runs it"
        )
    experiment = small(path)
    backend = EmulationBackend("namespace", Addresses("127.0.0.1:1", "127.0.0.1:2"))
    if all(refusals := [backend.refuses(plan) for plan in experiment.plans]):
        pytest.skip(f"no testbed for any of its arms: {refusals[0]}")
    arms = ARMS.get(path.stem, notes.arms or list(experiment.arms))
    runs, _ = carried_out(experiment, tmp_path, "namespace", *arms)
    assert [run.plan for run in runs] == [
        plan for plan in experiment.plans if plan.arm in arms
    ]
    assert_shown(path.stem, runs)
    if notes.reported:
        (page,) = tmp_path.glob("*/report.html")
        assert notes.reported in page.read_text()


def test_a_container_takes_the_place_of_a_lost_one(tmp_path: Path) -> None:
    ensure_image(lambda _: None)
    experiment = small(next(path for path in EXAMPLES if path.stem == "spare"))
    (run,), figures = carried_out(experiment, tmp_path, "docker", "swapped")
    assert_shown("spare", [run])
    assert figures.number("swapped", "event loss job red", "recovery") > 0
