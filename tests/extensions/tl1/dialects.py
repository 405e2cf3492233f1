"""The dialects of TL1 that are installed, by their protocols' names."""

from typing import Any

from ringlight.fabric.optical_drivers import parts_of_drivers
from ringlight.testbed.emulation.optical.session import protocol_named

#: What begins a session of each, given the switch and the time.
DIALECTS: dict[str, Any] = {
    name: protocol_named(name).session
    for name in parts_of_drivers("emulated_by")
    if name.endswith("-tl1")
}
