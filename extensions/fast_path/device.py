"""The fast path as a device of labs. Commands load this to name their options."""

from __future__ import annotations

from ringlight.testbed.devices import Device, DeviceKind, Site


class FastPath(DeviceKind):
    help = "Forward packets in the kernel, by the flow tables of our controller's packet switches."
    forwards = True

    def plan(self, site: Site) -> Device | None:
        """Return the fast path of a lab, None where Open vSwitch forwards in the kernel.

        Raises EbpfError, BuildError or OSError where this machine cannot do it.
        """
        from ringlight.extensions.fast_path.carrier import Carrier
        from ringlight.testbed.emulation.bridges import has_kernel_datapath

        if has_kernel_datapath():
            return None
        smoother = site.lab.interface("smoother", 1), site.lab.interface("smoother", 2)
        return Carrier(
            site.bridges, site.state / "fastpath.sock", smoother, site.lab.link_group
        )


FAST_PATH = FastPath()
