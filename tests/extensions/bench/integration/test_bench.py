"""``ringlight bench`` on an emulated fabric: the table, exact results, a link that is slower than stated."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ringlight.experiments.analysis import machine_faults
from ringlight.experiments.backends.emulation import linktest
from ringlight.experiments.backends.emulation.backend import EmulationBackend
from ringlight.experiments.language.expand import parse
from ringlight.experiments.runner.experiment import run_alone
from ringlight.extensions.bench.measuring import (
    bench_plan,
    checked,
    measured,
    slow_links,
)
from ringlight.testbed.addresses import Addresses
from ringlight.workloads.graph import Collective, Split
from tests.integration.controller_rig import free_port
from tests.unit.test_simulated_workloads import SWITCH

pytestmark = [pytest.mark.root, pytest.mark.timeout(300)]

#: 12.5 Mbit/s a NIC.
SCALE = "scale: {time: 5, payload: 400}"


def test_a_link_that_is_half_as_fast_as_stated_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All-to-all of unequal parts over three links as stated and one that is built at half its rate."""
    for module in (machine_faults, linktest):
        # However much others take of the processors, nothing is measured again.
        monkeypatch.setattr(module, "TAKEN", 2.0)
    text = (
        SWITCH.replace("scale: {time: 20, payload: 400}", SCALE)
        + "  red: {ranks: all}\n"
    )
    (plan,) = parse(
        text + "training: {model: resnet50, compute: 1 ms, batch: 8, iterations: 1}\n"
        "link_test: {duration: 1 s}\n",
        "bench.yaml",
    ).plans
    sizes = (4 << 20, 16 << 20)
    made = bench_plan(
        plan, Collective("all-to-all-v", split=Split(seed=3, skew=1.0)), sizes, 2
    )
    # The lab is built from the section, and everybody else goes by the fabric.
    links = [
        {**link, "rate": "12.5 Gbit/s"} if link["ends"][0] == "g2" else link
        for link in made.setting.section["links"]
    ]
    built = replace(made.setting, section={**made.setting.section, "links": links})
    addresses = Addresses(f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}")
    records, failures = run_alone(
        EmulationBackend("namespace", addresses), replace(made, setting=built)
    )
    assert not failures
    found = list(measured(made, records, sizes, 2))
    assert [one.size_bytes for one in found] == list(sizes)
    assert found[1].time_s > found[0].time_s
    assert all(0 < one.busbw_bps < 25e9 for one in found)
    # Two sizes, three calls of each, four ranks: at least what came from each of three others.
    assert (checked(records) or 0) >= 2 * 3 * 4 * 3
    slow = slow_links(records)
    # On a full machine a sound link may be named, too, but not before that one.
    assert "g2" in min(slow, key=lambda link: link.measured_bps / link.set_bps).link
