"""Links that lose, delay and damage frames, and that flap: what is said of them, and their simulation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from unittest.mock import MagicMock

import pytest
import yaml

from ringlight.experiments.backends.emulation.lab_of_setting import processes_of
from ringlight.experiments.backends.simulation.backend import SimulationBackend
from ringlight.experiments.language.expand import Experiment, parse
from ringlight.experiments.record.events import ActionEnded, Iteration
from ringlight.experiments.runner.experiment import run_alone
from ringlight.extensions.impairments.effect import Impairments
from ringlight.extensions.impairments.log import since
from ringlight.testbed.addresses import Addresses
from ringlight.testbed.emulation.fault_courses import FaultCourses
from ringlight.testbed.emulation.fault_targets import TargetError, read_request
from ringlight.testbed.emulation.faults import Faults
from ringlight.testbed.simulation.tcp import DELAYED_ACK_S
from tests.unit.test_controller_circuits import FABRIC
from tests.unit.test_fault_service import run_backwards

LINK = "link leaf0:2 spine0:1"
SCENARIO: Mapping[str, Any] = {
    "name": "two",
    "description": "Two GPUs behind two switches.",
    "scale": {"payload": 100},
    "fabric": {
        "leaf_spine": {
            "leaves": 2, "spines": 1, "gpus_per_leaf": 1, "gpu": "gpu", "rate": "10 Gbit/s", "queue": "20 ms"
        }
    },
    "training": {"model": "resnet50", "compute": "100 ms", "batch": 4, "iterations": 6},
    "tcp": {"rto_min": "200 ms"},
}  # fmt: skip


def experiment(*events: Mapping[str, Any], **more: Any) -> Experiment:
    return parse(
        yaml.safe_dump({**SCENARIO, "events": list(events), **more}, sort_keys=False),
        "two.yaml",
    )


def with_link(**said: Any) -> Experiment:
    ends = {"ends": ["leaf0:2", "spine0:1"], **said}
    return experiment(fabric={**SCENARIO["fabric"], "impaired": [ends]})


def durations(found: Experiment) -> list[float]:
    """Seconds of each iteration of rank 0."""
    (plan,) = found.plans
    backend = SimulationBackend()
    assert backend.refuses(plan) is None
    records = run_alone(backend, plan)[0]
    assert not [
        one.error for one in records if isinstance(one, ActionEnded) and one.error
    ]
    mine = [one for one in records if isinstance(one, Iteration) and one.rank == 0]
    return [one.allreduce_end - one.compute_start for one in mine]


def impair(name: str = "it", iteration: int = 2, **said: Any) -> dict[str, Any]:
    when = {"job": "train", "iteration": iteration}
    return {
        "name": name,
        "when": when,
        "do": "impair",
        "target": LINK,
        "impairments": said,
    }


def test_a_frame_survives_loss_and_all_of_its_bits() -> None:
    both = Impairments(loss=0.5, bit_errors=1e-4)
    assert both.frame_loss(121) == pytest.approx(1 - 0.5 * (1 - 1e-4) ** 1000)


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ({"jitter": "2 ms", "delay": "1 ms"}, "jitter"),
        ({"loss": 1.5}, "loss"),
        ({"errors": 0.5}, "errors"),
        ({"flap": {"down": "1 s"}}, "flap.up"),
        ({"ends": ["leaf0:2", "leaf1:2"]}, "no link joins leaf0:2 and leaf1:2"),
        ({"los": 0.1}, "los"),
    ],
)
def test_what_cannot_be_is_refused_by_key(said: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=r"fabric\.impaired") as found:
        with_link(**said)
    assert why in str(found.value)
    assert "\n" not in str(found.value)


def test_an_event_needs_impairments_and_they_need_the_event() -> None:
    with pytest.raises(ValueError, match=r"events\.it\.impairments: missing"):
        experiment({"name": "it", "when": "start", "do": "impair", "target": LINK})
    with pytest.raises(ValueError, match=r"events\.it\.impairments: only do: impair"):
        experiment({**impair(loss=0.1), "do": "cut"})
    with pytest.raises(
        ValueError, match=r"events\.it\.target: impair has no target gpu"
    ):
        experiment({**impair(loss=0.1), "target": "gpu g0"})


def test_workers_are_bounded_by_their_paths_where_no_event_delays_frames() -> None:
    for found, delays in (
        (experiment(impair(loss=0.1)), False),
        (experiment(impair(delay="1 ms")), True),
        (with_link(loss=0.1), False),
        (with_link(delay="1 ms"), False),
    ):
        setting = found.plans[0].setting
        assert setting.delays == delays
        processes = processes_of(
            setting, "namespace", Addresses(), bounded=not setting.delays
        )
        assert ("--bounded" in processes._options) != delays


def test_times_are_dilated_and_shares_are_not() -> None:
    found = experiment(
        impair(delay="1 ms", loss=0.1, flap={"down": "1 s", "up": "2 s"}),
        scale={"time": 3},
    )
    assert found.plans[0].events[0].effects == {
        "impairments": Impairments(0.003, 0.0, 0.1, 0.0, 3.0, 6.0)
    }


def test_a_flap_costs_until_tcp_tries_again() -> None:
    plain = durations(experiment())
    found = durations(experiment(impair(flap={"down": "0.5 s", "up": "10 s"})))
    late = [after - before for before, after in zip(plain, found, strict=True)]
    # The queue in front of the link is full: 20 ms.
    assert sorted(late)[-2:] == pytest.approx([0, 3 * 0.22 + DELAYED_ACK_S], abs=1e-3)


def test_a_link_of_the_fabric_flaps_from_the_beginning_and_not_for_ever() -> None:
    plain, found = (
        durations(experiment()),
        durations(with_link(flap={"down": "50 ms", "up": "150 ms"})),
    )
    assert sum(found) > sum(plain) + 0.1
    cut = {
        "name": "cut",
        "when": {"job": "train", "iteration": 2},
        "do": "cut",
        "target": LINK,
    }
    # The cut job never goes on: the flapping must not keep the simulation going.
    (plan,) = experiment(
        impair(iteration=1, flap={"down": "0.5 s", "up": "1 s"}), cut
    ).plans
    records = run_alone(SimulationBackend(), plan)[0]
    assert any(getattr(one, "state", "") == "FAILED" for one in records)


def test_delay_and_loss_slow_an_all_reduce_and_the_end_of_it_restores_it() -> None:
    plain = durations(experiment())
    again = {"when": {"job": "train", "iteration": 4}, "do": "restore", "target": LINK}
    found = durations(experiment(impair(delay="5 ms", jitter="1 ms"), again))
    # Two steps of a ring of two; the second one's parts follow the first's without a gap, so it counts once,
    # and once for the receivers' words that all is there.
    assert found[3] - plain[3] == pytest.approx(2 * 0.006, abs=1e-6)
    assert found[5] == pytest.approx(plain[5])
    # A round trip of 11 ms and a time-out of 211: 21.2 Mbit/s at 2 %, by hand, and not 99.3.
    lossy = durations(experiment(impair(loss=0.02, delay="5 ms")))
    assert (lossy[3] - 0.1) / (plain[3] - 0.1) == pytest.approx(4.8, rel=0.03)


def test_what_has_no_model_is_refused_by_name() -> None:
    backend = SimulationBackend()
    (plan,) = experiment(impair(loss=0.1), tcp={"congestion_control": "cubic"}).plans
    assert (backend.refuses(plan) or "").startswith("tcp.congestion_control: ")
    (plan,) = experiment(
        impair(delay="1 ms"), tcp={"congestion_control": "cubic"}
    ).plans
    assert backend.refuses(plan) is None


def test_more_loss_than_the_model_is_for_is_refused_by_key() -> None:
    (plan,) = experiment(impair(loss=0.03)).plans
    assert (SimulationBackend().refuses(plan) or "").startswith(
        "events.it.impairments: 3 % of full frames"
    )


def test_a_request_for_impairments_names_its_key() -> None:
    ask = {
        "do": "impair",
        "target": LINK,
        "impairments": {"delay_s": 0.001, "loss": 0.1},
    }
    found = read_request(ask).effects["impairments"]
    assert isinstance(found, Impairments)
    assert (found.delay_s, found.loss) == (0.001, 0.1)
    for wrong, key in (
        ({"do": "impair", "target": LINK}, "impairments: is missing"),
        ({**ask, "do": "cut"}, "impairments: does not go with cut"),
        ({**ask, "impairments": {"loss": 2}}, "loss"),
        ({**ask, "impairments": {"delay_s": 1e9}}, "delay_s"),
        ({**ask, "impairments": {"lag": 1}}, "impairments.lag"),
    ):
        with pytest.raises(TargetError, match=key):
            read_request(wrong)


def test_the_impairment_that_was_asked_for_last_stays() -> None:
    network, link = MagicMock(), FABRIC.links[0]
    courses = FaultCourses(FABRIC, network, MagicMock(), MagicMock(), {}, None)
    faults = Faults(FABRIC, network, courses)
    ask = {"do": "impair", "target": f"link {link.a} {link.b}"}
    run_backwards(
        faults, *({**ask, "impairments": {"loss": loss}} for loss in (0.1, 0.2))
    )
    assert network.affected.affect.call_args.args[1]["impairments"].loss == 0.2
    faults.close()


def test_counts_of_a_run_are_what_came_since_it_began() -> None:
    now = [
        {"from": "a:1", "to": "b:1", "frames": 30, "lost": 4},
        {"from": "b:1", "to": "a:1", "frames": 5, "lost": 0},
    ]
    before = [{"from": "b:1", "to": "a:1", "frames": 5, "lost": 0}]
    assert since(now, before) == now[:1]
    assert since(now, [{**now[0], "frames": 10, "lost": 1}, *before])[0]["lost"] == 3
