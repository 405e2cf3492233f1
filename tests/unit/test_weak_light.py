"""Light below the sensitivity: its bit errors, what they do to frames, and what TCP makes of that."""

from __future__ import annotations

import math
from typing import Any

import pytest
import yaml

from ringlight.experiments.backends.simulation.backend import SimulationBackend
from ringlight.experiments.language.expand import Experiment, parse
from ringlight.experiments.record.events import Iteration
from ringlight.experiments.runner.experiment import run_alone
from ringlight.fabric.light import Modulation, Optics, bit_errors, frame_errors
from ringlight.testbed.emulation.kernel.survival import ALL, survival
from ringlight.testbed.simulation.tcp import DELAYED_ACK_S, reno_bps, resumed_s


def test_a_frame_survives_all_of_its_bits() -> None:
    assert frame_errors(1e-6, 996) == pytest.approx(1 - (1 - 1e-6) ** 8000)


@pytest.mark.parametrize("errors", [0.0, 1e-9, 1e-6, 1e-3])
def test_the_kernel_multiplies_powers_of_two(errors: float) -> None:
    shares = survival(errors)
    for length in (64, 1518, 9018, 16384):
        share = ALL
        for k, one in enumerate(shares):
            if length & (1 << k):
                share = share * one >> 31
        assert share / ALL == pytest.approx((1 - errors) ** (8 * length), abs=2e-8)


@pytest.mark.parametrize(
    ("down_s", "tries"), [(0.1, 1), (0.2, 1), (0.25, 3), (0.6, 3), (0.61, 7), (1.5, 15)]
)
def test_tcp_tries_again_after_twice_as_long_each_time(
    down_s: float, tries: int
) -> None:
    assert resumed_s(down_s, 0.2) == pytest.approx(0.2 * tries + DELAYED_ACK_S)


def test_reno_gets_less_with_loss_and_with_distance() -> None:
    assert reno_bps(0.0, 0.01, 0.2, 8948) == math.inf
    assert reno_bps(1.0, 0.01, 0.2, 8948) == 0
    # The halving alone, where time-outs are rare: 1 / (RTT sqrt(4 p / 3)) segments per second.
    few = reno_bps(1e-8, 0.1, 0.2, 1000)
    assert few == pytest.approx(8000 / (0.1 * math.sqrt(4e-8 / 3)), rel=0.01)
    assert (
        reno_bps(0.01, 0.02, 0.2, 8948)
        < reno_bps(0.01, 0.01, 0.2, 8948)
        < reno_bps(0.001, 0.01, 0.2, 8948)
    )


@pytest.mark.parametrize(
    ("modulation", "at_sensitivity"), [("nrz", 1e-12), ("pam4", 1e-14)]
)
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


def experiment(least_dbm: float, **light: Any) -> Experiment:
    """Two GPUs joined by light that loses 4.5 dB, as a receiver of this sensitivity has it."""
    fabric = {
        "servers": {"s0": {"gpus": {"g0": "t"}}, "s1": {"gpus": {"g1": "t"}}},
        "packet_switches": {"tor0": {"ports": 1}},
        "optical_switches": {"ocs0": {"size": 2, "profile": "ideal", "loss_db": 4.5}},
        "links": [
            {"ends": [f"g{n}", f"ocs0:{n + 1}"], "rate": "10 Gbit/s"} for n in range(2)
        ],
        "circuits": [["g0", "g1"]],
        "light": {"sensitivity_dbm": least_dbm, **light},
    }
    scenario = {
        "name": "two",
        "description": "Two GPUs joined by light.",
        "scale": {"payload": 100},
        "fabric": fabric,
        "training": {
            "model": "resnet50",
            "compute": "100 ms",
            "batch": 4,
            "iterations": 3,
        },
        "tcp": {"rto_min": "200 ms"},
    }
    return parse(yaml.safe_dump(scenario, sort_keys=False), "two.yaml")


def iteration_s(experiment: Experiment) -> float:
    """Seconds of the last iteration of rank 0."""
    (plan,) = experiment.plans
    backend = SimulationBackend()
    assert backend.refuses(plan) is None
    last = [
        one
        for one in run_alone(backend, plan)[0]
        if isinstance(one, Iteration) and one.rank == 0
    ][-1]
    return last.allreduce_end - last.compute_start


def test_weak_light_slows_a_job_and_damages_frames() -> None:
    clear, weak = (
        iteration_s(experiment(least, modulation="nrz")) for least in (-5, -3.1)
    )
    assert weak > 1.002 * clear
    (plan,) = experiment(-2.5, modulation="nrz").plans
    assert (SimulationBackend().refuses(plan) or "").startswith("fabric.light: at g")
    with pytest.raises(ValueError, match="g0"):
        experiment(-3)
