"""The rigs that can be made on this machine, by name."""

from ringlight.testbed.acceptance.rig import Rig
from ringlight.testbed.acceptance.rigs.bridge import OpenFlowRig
from ringlight.testbed.acceptance.rigs.emulated import ScpiRig, WssRig
from ringlight.testbed.acceptance.rigs.gnmi import GnmiRig, SonicGnmiRig
from ringlight.testbed.acceptance.rigs.tl1 import CalientTl1Rig, PolatisTl1Rig
from ringlight.testbed.acceptance.rigs.web import CalientRestRig, PolatisRestconfRig, SonicRestRig

RIGS: dict[str, type[Rig]] = {
    "scpi": ScpiRig,
    "scpi-wss": WssRig,
    "polatis-tl1": PolatisTl1Rig,
    "calient-tl1": CalientTl1Rig,
    "polatis-restconf": PolatisRestconfRig,
    "calient-rest": CalientRestRig,
    "ocp-gnmi": GnmiRig,
    "sonic-ocs": SonicRestRig,
    "sonic-ocs-gnmi": SonicGnmiRig,
    "openflow": OpenFlowRig,
}
