"""gNMI of an Open Compute Project optical circuit switch, from the device's side.

What is in the tree and what a Set may change: `ocp_tree`; what gNMI can do here: `gnmi_session`.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from ringlight.extensions.gnmi.gnmi_session import (
    Asked,
    GnmiSession,
    read_path,
    read_value,
)
from ringlight.extensions.gnmi.yang_tree import Path, Step
from ringlight.extensions.ocp.emulation.ocp_tree import (
    MODULES,
    VERSION,
    Names,
    OcpTreeChange,
    tree,
)
from ringlight.testbed.emulation.optical.session import ManagementProtocol, Switch


def _recall(switch: Switch) -> None:
    """Takes up names of connections. Raises ValueError or TypeError."""
    switch.shared(Names, switch.device)


class OcpSession(GnmiSession):
    """One client's connection."""

    models = tuple(
        (name, "Open Compute Project", VERSION)
        for name in sorted({*MODULES.values()} - {"openconfig-platform"})
    )
    modules = MODULES
    without = {1: "state", 2: "config", 3: "config"}  # noqa: RUF012

    def __init__(self, switch: Switch) -> None:
        super().__init__(switch)
        self._names = switch.shared(Names, switch.device)

    def _tree(self, paths: list[Path], now_ns: int) -> dict[str, Any]:
        tops = {path[0].name if path else "*" for path in paths}
        return tree(
            self._switch, self._names, now_ns, tops.pop() if len(tops) == 1 else None
        )

    def _asked(self, request: Any) -> Asked:
        change = OcpTreeChange(self._device, self._names)
        for item in request.delete:
            change.delete(read_path(request.prefix, item))
        for replaces, updates in ((True, request.replace), (False, request.update)):
            for item in updates:
                path, value = read_path(request.prefix, item.path), read_value(item.val)
                if replaces and path[:1] == (Step("connections"),):
                    change.delete(path)
                change.update(path, value)
        commands, names, removed = change.commands()
        return commands, partial(self._names.give, names, removed)


PROTOCOL = ManagementProtocol(
    OcpSession,
    9339,
    "gnmic -a {address} --insecure {option}get --path /connections",
    _recall,
)
