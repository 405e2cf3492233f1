"""The bundled comparison over divided light, in small, from the file to the figures, on real labs."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from ringlight.experiments.analysis import machine_faults
from ringlight.experiments.backends.emulation import linktest
from ringlight.experiments.backends.emulation.backend import EmulationBackend
from ringlight.experiments.language.expand import parse, put
from ringlight.experiments.language.text import parse_yaml, read_text
from ringlight.experiments.runner.command import carry_out_experiment
from ringlight.fabric.frames import LARGEST_MTU_BYTES
from ringlight.testbed.addresses import Addresses
from tests.integration.controller_rig import free_port
from tests.integration.figures import Figures
from tests.simulated import bundled

pytestmark = [pytest.mark.root, pytest.mark.timeout(600)]

#: Circuits that are divided again are those of test_demand.py.
ARMS = ("sip-ocs", "sip-ring")


def test_light_carries_what_the_workload_sends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # However much others take of the processors: no time counts here.
    for module in (machine_faults, linktest):
        monkeypatch.setattr(module, "TAKEN", 2.0)
    raw = parse_yaml(read_text(bundled("sip_ml_8")), "sip_ml_8.yaml")
    # Light is divided every 0.2 s, which is the most often that may be asked for.
    small = {"scale.time": 40, "scale.payload": 100, "jobs.train.workload.batch": 4}
    for key, value in {**small, "link_test.duration": "200 ms"}.items():
        raw = put(raw, key, value)
    backend = EmulationBackend(
        "namespace", Addresses(f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}")
    )
    done, result = carry_out_experiment(
        parse(yaml.safe_dump(raw, sort_keys=False), "sip_ml_8.yaml"),
        backend,
        tmp_path,
        arms=ARMS,
    )
    assert not done.failures
    found = Figures(result)
    found.assert_exact(2, 2)
    # Each of eight GPUs to the next and to the third next.
    assert len(found.all("link_rate")) == 2 * 2 * 8
    for arm in ARMS:
        divided = found.number(arm, "job train", "divisions")
        # A busy machine may hold a frame up for longer than the guard of a division.
        stray = sum(
            found.number(arm, f"fabric {arm}", name)
            for name in ("misdirected", "unset_drops")
        )
        assert stray <= divided
        assert (
            found.number(arm, "job train", "light_bytes_wrong")
            <= stray * LARGEST_MTU_BYTES
        )
        assert found.number(arm, "job train", "light_payload") > 1e6
        for counter in ("collisions", "unrouted"):
            assert found.of(arm, f"fabric {arm}", counter) == 0
    # So with light that stands nothing is lost, and no byte is wrong.
    assert found.of("sip-ocs", "job train", "divisions") == 0
    # As many circuits as ports: no GPU has more.
    assert found.number("sip-ocs", "job train", "lightpaths_used") <= 8 * 4
    assert found.number("sip-ring", "job train", "divisions") >= 3
    assert found.number("sip-ring", "job train", "division_dark") >= 0.04
