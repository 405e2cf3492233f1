"""Links that lose, delay and damage frames, and that flap: what is said of them, and their simulation."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pytest
import yaml

from ringlight.experiments.backends.emulation.lab import since
from ringlight.experiments.backends.emulation.lab_of_setting import processes_of
from ringlight.experiments.backends.simulation.backend import SimulationBackend
from ringlight.experiments.language.expand import Experiment, parse
from ringlight.experiments.record.events import ActionEnded, Iteration
from ringlight.experiments.runner.experiment import one_alone
from ringlight.fabric.impairments import DELAYED_ACK_S, Impairments, reno_bps, resumed_s
from ringlight.fabric.light import Modulation, Optics, bit_errors
from ringlight.testbed.emulation.fault_targets import TargetError, read_request
from ringlight.testbed.emulation.kernel.survival import ALL, survival
from ringlight.testbed.processes import Addresses

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
    return parse(yaml.safe_dump({**SCENARIO, "events": list(events), **more}, sort_keys=False), "two.yaml")


def with_link(**said: Any) -> Experiment:
    ends = {"ends": ["leaf0:2", "spine0:1"], **said}
    return experiment(fabric={**SCENARIO["fabric"], "impaired": [ends]})


def durations(found: Experiment) -> list[float]:
    """Seconds of each iteration of rank 0."""
    (plan,) = found.plans
    backend = SimulationBackend()
    assert backend.refuses(plan) is None
    records = one_alone(backend, plan)[0]
    assert not [one.error for one in records if isinstance(one, ActionEnded) and one.error]
    mine = [one for one in records if isinstance(one, Iteration) and one.rank == 0]
    return [one.allreduce_end - one.compute_start for one in mine]


def impair(name: str = "it", iteration: int = 2, **said: Any) -> dict[str, Any]:
    when = {"job": "train", "iteration": iteration}
    return {"name": name, "when": when, "do": "impair", "target": LINK, "impairments": said}


def test_a_frame_survives_all_of_its_bits() -> None:
    assert Impairments(bit_errors=1e-6).frame_errors(996) == pytest.approx(1 - (1 - 1e-6) ** 8000)
    both = Impairments(loss=0.5, bit_errors=1e-4)
    assert both.frame_loss(121) == pytest.approx(1 - 0.5 * (1 - 1e-4) ** 1000)


@pytest.mark.parametrize("errors", [0.0, 1e-9, 1e-6, 1e-3])
def test_the_kernel_multiplies_powers_of_two(errors: float) -> None:
    shares = survival(errors)
    for length in (64, 1518, 9018, 16384):
        share = ALL
        for k, one in enumerate(shares):
            if length & (1 << k):
                share = share * one >> 31
        assert share / ALL == pytest.approx((1 - errors) ** (8 * length), abs=2e-8)


@pytest.mark.parametrize(("down_s", "tries"), [(0.1, 1), (0.2, 1), (0.25, 3), (0.6, 3), (0.61, 7), (1.5, 15)])
def test_tcp_tries_again_after_twice_as_long_each_time(down_s: float, tries: int) -> None:
    assert resumed_s(down_s, 0.2) == pytest.approx(0.2 * tries + DELAYED_ACK_S)


def test_reno_gets_less_with_loss_and_with_distance() -> None:
    assert reno_bps(0.0, 0.01, 0.2, 8948) == math.inf
    assert reno_bps(1.0, 0.01, 0.2, 8948) == 0
    # The halving alone, where time-outs are rare: 1 / (RTT sqrt(4 p / 3)) segments per second.
    few = reno_bps(1e-8, 0.1, 0.2, 1000)
    assert few == pytest.approx(8000 / (0.1 * math.sqrt(4e-8 / 3)), rel=0.01)
    assert (
        reno_bps(0.01, 0.02, 0.2, 8948) < reno_bps(0.01, 0.01, 0.2, 8948) < reno_bps(0.001, 0.01, 0.2, 8948)
    )


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
    with pytest.raises(ValueError, match=r"events\.it\.target: impair has no target gpu"):
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
        processes = processes_of(setting, "namespace", Addresses(), bounded=not setting.delays)
        assert ("--bounded" in processes._options) != delays


def test_times_are_dilated_and_shares_are_not() -> None:
    found = experiment(impair(delay="1 ms", loss=0.1, flap={"down": "1 s", "up": "2 s"}), scale={"time": 3})
    assert found.plans[0].events[0].impairments == Impairments(0.003, 0.0, 0.1, 0.0, 3.0, 6.0)


def test_a_flap_costs_until_tcp_tries_again() -> None:
    plain = durations(experiment())
    found = durations(experiment(impair(flap={"down": "0.5 s", "up": "10 s"})))
    late = [after - before for before, after in zip(plain, found, strict=True)]
    # The queue in front of the link is full: 20 ms.
    assert sorted(late)[-2:] == pytest.approx([0, 3 * 0.22 + DELAYED_ACK_S], abs=1e-3)


def test_a_link_of_the_fabric_flaps_from_the_beginning_and_not_for_ever() -> None:
    plain, found = durations(experiment()), durations(with_link(flap={"down": "50 ms", "up": "150 ms"}))
    assert sum(found) > sum(plain) + 0.1
    cut = {"name": "cut", "when": {"job": "train", "iteration": 2}, "do": "cut", "target": LINK}
    # The cut job never goes on: the flapping must not keep the simulation going.
    (plan,) = experiment(impair(iteration=1, flap={"down": "0.5 s", "up": "1 s"}), cut).plans
    records = one_alone(SimulationBackend(), plan)[0]
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
    (plan,) = experiment(impair(delay="1 ms"), tcp={"congestion_control": "cubic"}).plans
    assert backend.refuses(plan) is None


def test_more_loss_than_the_model_is_for_is_refused_by_key() -> None:
    (plan,) = experiment(impair(loss=0.03)).plans
    assert (SimulationBackend().refuses(plan) or "").startswith("events.it.impairments: 3 % of full frames")


def test_a_request_for_impairments_names_its_key() -> None:
    ask = {"do": "impair", "target": LINK, "impairments": {"delay_s": 0.001, "loss": 0.1}}
    found = read_request(ask).impairments
    assert found is not None
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


def test_counts_of_a_run_are_what_came_since_it_began() -> None:
    now = [
        {"from": "a:1", "to": "b:1", "frames": 30, "lost": 4},
        {"from": "b:1", "to": "a:1", "frames": 5, "lost": 0},
    ]
    before = [{"from": "b:1", "to": "a:1", "frames": 5, "lost": 0}]
    assert since(now, before) == now[:1]
    assert since(now, [{**now[0], "frames": 10, "lost": 1}, *before])[0]["lost"] == 3


@pytest.mark.parametrize(("modulation", "at_sensitivity"), [("nrz", 1e-12), ("pam4", 1e-14)])
def test_light_below_the_sensitivity_has_errors_before_it_is_dark(
    modulation: Modulation, at_sensitivity: float
) -> None:
    optics = Optics(sensitivity_dbm=-20, modulation=modulation)
    powers = [-20 - 0.05 * step for step in range(120)]
    found = [bit_errors(optics, power) for power in powers]
    assert found[0] == 0
    assert found[1] < 100 * at_sensitivity
    assert found == sorted(found)
    dark = powers[found.index(1.0)]
    # By hand: NRZ's Q falls from 7.03 to 3.0; PAM4's from 3.41 to 2.42, where 30 symbols of a codeword are
    # wrong on average.
    assert dark == pytest.approx({"nrz": -23.7, "pam4": -21.5}[modulation], abs=0.1)
    assert optics.reads(dark + 0.1)
    assert not optics.reads(dark)
    assert not Optics(sensitivity_dbm=-20).reads(-20.01)


def test_errors_of_nrz_are_those_of_its_q() -> None:
    optics = Optics(sensitivity_dbm=-20, modulation="nrz")
    # 2 dB less light is a Q of 7.034 / 1.585 = 4.438.
    assert bit_errors(optics, -22) == pytest.approx(4.54e-6, rel=0.02)


def test_weak_light_slows_a_job_and_damages_frames() -> None:
    circuit = {
        "servers": {"s0": {"gpus": {"g0": "t"}}, "s1": {"gpus": {"g1": "t"}}},
        "packet_switches": {"tor0": {"ports": 1}},
        "optical_switches": {"ocs0": {"size": 2, "profile": "ideal", "loss_db": 4.5}},
        "links": [{"ends": [f"g{n}", f"ocs0:{n + 1}"], "rate": "10 Gbit/s"} for n in range(2)],
        "circuits": [["g0", "g1"]],
    }
    clear, weak = (
        durations(experiment(fabric={**circuit, "light": {"sensitivity_dbm": least, "modulation": "nrz"}}))
        for least in (-5, -3.1)
    )
    assert weak[2] > 1.002 * clear[2]
    (plan,) = experiment(fabric={**circuit, "light": {"sensitivity_dbm": -2.5, "modulation": "nrz"}}).plans
    assert (SimulationBackend().refuses(plan) or "").startswith("fabric.light: at g")
    with pytest.raises(ValueError, match="g0"):
        experiment(fabric={**circuit, "light": {"sensitivity_dbm": -3}})
