"""The dialects of TL1 that are installed, by their protocols' names."""

from typing import Any

from ringlight.fabric.extension import loaders
from ringlight.testbed.emulation.optical.session import protocol_named

#: What begins a session of each, given the switch and the time.
DIALECTS: dict[str, Any] = {
    name: protocol_named(name).session
    for name in loaders("protocols")
    if name.endswith("-tl1")
}
