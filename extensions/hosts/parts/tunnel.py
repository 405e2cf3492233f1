"""Fibres between hosts: VXLAN interfaces."""

from __future__ import annotations

import errno
import time
from typing import Any

from pyroute2.iproute import IPRoute
from pyroute2.netlink.exceptions import NetlinkError

from ringlight.extensions.hosts.parts.plan import Tunnel
from ringlight.testbed.emulation.kernel import netlink
from ringlight.testbed.emulation.kernel.network_errors import failing


def create_vxlan(
    root: IPRoute,
    name: str,
    tunnel: Tunnel,
    *,
    group: int = 0,
    namespace: int | None = None,
    mac: str | None = None,
) -> None:
    """Make one end of a fibre to another host, with the lab's MTU, in its namespace (a descriptor).

    What leaves there goes from the namespace of ``root``, whole or not at all. Whoever had its number before
    may just be leaving. Raises NetworkError.
    """
    attributes: dict[str, Any] = {
        "ifname": name,
        "mtu": netlink.MTU_BYTES,
        "kind": "vxlan",
        "vxlan_id": tunnel.number,
    }
    attributes |= {
        "vxlan_group": tunnel.remote,
        "vxlan_local": tunnel.local,
        "vxlan_port": tunnel.udp_port,
    }
    attributes |= {"vxlan_learning": 0, "vxlan_df": 1}
    if group:
        attributes["group"] = group
    if namespace is not None:
        attributes["net_ns_fd"] = namespace
    if mac is not None:
        attributes["address"] = mac
    deadline = time.monotonic() + netlink.LEAVING_S
    with failing(f"VXLAN {tunnel.number} to {tunnel.remote} ({name})"):
        while True:
            try:
                root.link("add", **attributes)
                return
            except NetlinkError as error:
                if error.code != errno.EEXIST or time.monotonic() > deadline:
                    raise
            time.sleep(0.02)
