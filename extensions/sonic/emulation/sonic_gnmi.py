"""gNMI of a SONiC optical circuit switch, from the device's side: as sonic-gnmi has it.

What is in the tree: `sonic_tree`; what gNMI can do here: `gnmi_session`. A path is in one of two schemas:

- The models (sonic-gnmi's translib client): ``/sonic-ocs:sonic-ocs/OCS_CROSS_CONNECT``, prefix target
  ``OC-YANG`` or none. A value is an object with the node's name, ``{"sonic-ocs:OCS_CROSS_CONNECT": {…}}``, in
  answers as in a Set, which is taken without it, too. Source: doc/gNMI_usage_examples.md of
  sonic-net/sonic-telemetry at 1074593.
- The databases: origin ``sonic-db``, ``/CONFIG_DB/localhost/OCS_CROSS_CONNECT/1A-16B/a_side``; STATE_DB is
  read only. A table's value is ``{"1A-16B": {"a_side": "1A", "b_side": "16B"}}``. ``sonic_db`` and no origin
  are the same, and a replacement without a value deletes. Sources: SONiC_GNMI_Server_Interface_Design.md,
  revision 0.1 (sonic-net/SONiC at 18b9ca5), whose paths lack ``localhost``; tests/gnmi of
  sonic-net/sonic-mgmt, which have it.

The design document has sonic-gnmi commit the cross-connects of a Set to CONFIG_DB all at once, and so does
this one: deletions, replacements, updates. Unverified: answers of a real switch about these models, and the
statuses of its refusals.
"""

from __future__ import annotations

from typing import Any

from pygnmi.spec.v080 import gnmi_pb2 as gnmi

from ringlight.extensions.gnmi.gnmi_session import (
    Asked,
    GnmiSession,
    json_value,
    read_value,
)
from ringlight.extensions.gnmi.grpc_calls import CallError, Status
from ringlight.extensions.gnmi.yang_tree import Entries, Path, Step, bare
from ringlight.extensions.sonic.emulation.sonic_tree import (
    DATABASES,
    MODULES,
    REVISION,
    WIRES,
    InUse,
    SonicTreeChange,
    as_json,
    by_name,
    model_path,
    model_value,
    tree,
)
from ringlight.testbed.emulation.optical.commands import DeviceError
from ringlight.testbed.emulation.optical.session import ManagementProtocol

_NATIVE = ("", "sonic-db", "sonic_db")


def _check_origin(prefix: Any, path: Any) -> None:
    """Raises CallError for an origin that has no such path."""
    origin, names = (
        path.origin or prefix.origin,
        [elem.name for elem in (*prefix.elem, *path.elem)],
    )
    native = bool(names) and names[0] in DATABASES
    # Some clients take the module before the first name for an origin.
    known = _NATIVE if native else ("", "openconfig", *names[:1])
    if origin not in known or (prefix.target or path.target) not in (
        "",
        "OC-YANG",
        *DATABASES,
    ):
        raise CallError(
            Status.INVALID_ARGUMENT,
            f"origin {origin[:20]!r} has no /{'/'.join(names)[:60]}",
        )


class SonicSession(GnmiSession):
    """One client's connection."""

    models = tuple((module, "SONiC", REVISION) for module in MODULES)
    modules = MODULES

    def _tree(self, paths: list[Path], now_ns: int) -> dict[str, Any]:
        merged: dict[str, Any] = {}
        for path in dict.fromkeys(paths):
            _merge(merged, tree(self._device, now_ns, path))
        return merged

    def _path(self, prefix: Any, path: Any) -> Path:
        _check_origin(prefix, path)
        return super()._path(prefix, path)

    def _value(self, node: Any, encoding: int, place: Path) -> Any:
        value = as_json(node)
        if place and place[0].name not in DATABASES:
            name = (
                place[-1].name
                if encoding == gnmi.JSON
                else f"{place[0].name}:{place[-1].name}"
            )
            value = {name: [value] if place[-1].keys else value}
        return json_value(value, encoding)

    def _shown(self, path: Path) -> Any:
        if path and path[0].name not in DATABASES:
            path = (Step(f"{path[0].name}:{path[0].name}"), *path[1:])
        shown = super()._shown(path)
        if path and path[0].name in DATABASES:
            shown.origin = "sonic-db"
        return shown

    def _refusal(self, error: DeviceError) -> str:
        return by_name(str(error), self._device.size)

    def _asked(self, request: Any) -> Asked:
        change = SonicTreeChange(self._device)
        for item in request.delete:
            change.delete(model_path(self._path(request.prefix, item)))
        for replaces, updates in ((True, request.replace), (False, request.update)):
            for item in updates:
                given_path = self._path(request.prefix, item.path)
                path = model_path(given_path)
                if replaces and path[: len(WIRES)] == WIRES:
                    change.delete(path)
                if replaces and item.val.WhichOneof("value") is None:
                    continue
                change.update(
                    path,
                    model_value(
                        given_path, _unwrapped(read_value(item.val), given_path)
                    ),
                )
        try:
            return change.commands(), lambda: None
        except InUse as error:
            raise CallError(Status.FAILED_PRECONDITION, str(error)) from None


def _merge(into: dict[str, Any], more: dict[str, Any]) -> None:
    """Put one part of a tree beside another."""
    for name, child in more.items():
        if isinstance(child, dict) and not isinstance(child, Entries) and name in into:
            _merge(into[name], child)
        elif name in into and isinstance(child, Entries):
            into[name].update(child)
        else:
            into[name] = child


def _unwrapped(value: Any, path: Path) -> Any:
    """A value without the name of its node around it."""
    if (
        not isinstance(value, dict)
        or len(value) != 1
        or not path
        or path[0].name in DATABASES
    ):
        return value
    ((name, inner),) = value.items()
    if bare(name) != path[-1].name:
        return value
    return (
        inner[0]
        if path[-1].keys and isinstance(inner, list) and len(inner) == 1
        else inner
    )


PROTOCOL = ManagementProtocol(
    SonicSession,
    9340,
    "gnmic -a {address} --insecure {option}get --path sonic-db:/CONFIG_DB/localhost/OCS_CROSS_CONNECT",
)
