"""SCPI and TL1 of one emulated Calient switch that moves packets: root, eBPF."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ringlight.testbed.rigs.emulated import ScpiRig
from ringlight.testbed.rigs.network import run
from tests.extensions.tl1.talk import Client

pytestmark = pytest.mark.root


class Rig(ScpiRig):
    protocol = "calient-tl1"
    profile = "calient-s320"


@pytest.fixture(scope="module")
def rig() -> Iterator[Rig]:
    made = Rig()
    try:
        yield made
    finally:
        made.close()


def test_circuits_of_others_are_in_its_own_group(rig: Rig) -> None:
    rig.external_connect(rig.xc(1, 2))
    with Client(rig.addresses["calient-tl1"]) as calient:
        assert calient.ask("ENT-CRS::2,3:2::LAB,1WAY;").outcome == "COMPLD"
        assert calient.ask("ACT-CRS::2,3:3::1.1.2>1.1.3,LAB;").outcome == "COMPLD"
        assert rig.truth() == {rig.xc(1, 2), rig.xc(2, 3)}
        listed = calient.ask("RTRV-CRS:::4::ALL;").rows
        assert [row.partition(":")[0] for row in listed] == [
            "1.1.1>1.1.2",
            "1.1.2>1.1.3",
        ]
        assert [row.split("GRPNAME=")[1].split(",")[0] for row in listed] == [
            "SYSTEM",
            "LAB",
        ]
        assert calient.ask("DLT-CRS-ALL;").outcome == "COMPLD"
    assert rig.truth() == set()


def test_loss_of_light_is_reported(rig: Rig) -> None:
    namespace = rig.hosts[4].namespace
    with Client(rig.addresses["calient-tl1"]) as calient:
        try:
            for state, severity, level in (("down", "**", "MJ"), ("up", "A", "CL")):
                run("ip", "-n", namespace, "link", "set", "eth0", state)
                report = calient.report()
                assert (report.severity, report.verb) == (severity, "REPT ALM PORT")
                assert report.rows[0].startswith(f"1.1.4-IN:{level},LOS,SA,")
        finally:
            run("ip", "-n", namespace, "link", "set", "eth0", "up")
