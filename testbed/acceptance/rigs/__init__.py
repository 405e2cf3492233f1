"""The rigs that can be made on this machine, by name."""

from testbed.acceptance.rig import Rig
from testbed.acceptance.rigs.bridge import OpenFlowRig
from testbed.acceptance.rigs.emulated import ScpiRig, WssRig
from testbed.acceptance.rigs.gnmi import GnmiRig
from testbed.acceptance.rigs.tl1 import CalientTl1Rig, PolatisTl1Rig
from testbed.acceptance.rigs.web import CalientRestRig, PolatisRestconfRig

RIGS: dict[str, type[Rig]] = {
    "scpi": ScpiRig,
    "scpi-wss": WssRig,
    "polatis-tl1": PolatisTl1Rig,
    "calient-tl1": CalientTl1Rig,
    "polatis-restconf": PolatisRestconfRig,
    "calient-rest": CalientRestRig,
    "ocp-gnmi": GnmiRig,
    "openflow": OpenFlowRig,
}
