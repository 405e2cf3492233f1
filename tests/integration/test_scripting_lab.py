"""``rl.lab``: a lab that a script builds, measures in, and that leaves nothing."""

from __future__ import annotations

import pytest

import ringlight as rl
from ringlight.testbed.emulation.clean import find_labs

pytestmark = pytest.mark.root


def test_a_script_has_a_lab_regroups_and_leaves_nothing() -> None:
    fabric = rl.leaf_spine(2, 2, "40 Gbit/s", oversubscription=4, ocs=True)
    jobs = {
        "red": rl.training("resnet50", ranks="g0 g2", compute="100 ms", iterations=4)
    }
    study = rl.Study(fabric, jobs, name="lab").arm("regrouped", events=[rl.regroup()])
    with rl.lab(study, runtime="namespace") as lab:
        assert lab.id in [known.id for known in find_labs()]
        assert set(lab.fabric.gpus) == {"g0", "g1", "g2", "g3"}
        assert lab.rest.get("/v1/health")["status"] == "ok"
        before = lab.rest.get("/v1/circuits")["circuits"]
        assert all(link.measured_bps > 0 for link in lab.links)
        # No job is there yet: nothing is moved.
        assert lab.regroup(dry_run=True)["plan"]["moves"] == []
        figures = lab.run("regrouped")
        assert figures.value("state", job="red") == "SUCCEEDED"
        assert lab.rest.get("/v1/circuits")["circuits"] != before
        logs = lab.logs
        assert logs.is_dir()
    assert lab.id not in [known.id for known in find_labs()]
    assert not logs.exists()
    with pytest.raises(rl.BackendError, match="was closed"):
        lab.run()
