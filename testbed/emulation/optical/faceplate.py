"""The interfaces that stand for the ports of an emulated optical switch's faceplate."""

from __future__ import annotations

import logging
import re

from ringlight.testbed.emulation.kernel.netns import Link, LinkWatcher, entered, set_up
from ringlight.testbed.emulation.optical.datapath import Datapath
from ringlight.testbed.emulation.optical.device import OpticalDevice
from ringlight.testbed.emulation.optical.switch_settings import Settings

log = logging.getLogger(__name__)

_FACEPLATE = re.compile(r"p([1-9]\d{0,4})")


class Faceplate:
    """The interfaces ``p1``, ``p2``, … of the device's namespace, armed as they come and go."""

    def __init__(
        self, settings: Settings, datapath: Datapath, device: OpticalDevice
    ) -> None:
        self._size, self._netns = settings.size, settings.netns
        self._datapath, self._device = datapath, device
        self._armed: dict[int, Link] = {}
        # What a device before this one has armed, so that what vanished meanwhile is noticed.
        self._stale = datapath.plugged()
        self._watcher = LinkWatcher(settings.netns)

    def fileno(self) -> int:
        return self._watcher.fileno()

    def close(self) -> None:
        self._watcher.close()

    def refresh(self) -> None:
        """Takes in the link events that have arrived."""
        present: dict[int, Link] = {}
        for link in self._watcher.changed().values():
            match = _FACEPLATE.fullmatch(link.name)
            if match and int(match[1]) <= self._size:
                present[int(match[1])] = link
        for port, link in list(self._armed.items()):
            if port not in present or present[port].ifindex != link.ifindex:
                self._unplug(port, link.ifindex)
        for port, link in present.items():
            before = self._armed.get(port)
            if before == link or (before is None and not self._plug(port, link)):
                continue
            self._armed[port] = link
            self._device.receive(port, link.carrier)
        for ifindex, port in self._stale.items():
            if all(link.ifindex != ifindex for link in self._armed.values()):
                self._datapath.unplug(ifindex, port, self._size + port)
        self._stale = {}

    def _plug(self, port: int, link: Link) -> bool:
        try:
            with entered(self._netns):
                changed = self._datapath.plug(link.ifindex, port, self._size + port)
                if not link.up and not link.held:
                    set_up(link)
        except OSError as error:
            # It can vanish between the event and now; another event will tell.
            log.warning("port %d: cannot arm %s: %s", port, link.name, error)
            return False
        log.info(
            "port %d: %s is plugged in%s",
            port,
            link.name,
            "" if changed else " as before",
        )
        return True

    def _unplug(self, port: int, ifindex: int) -> None:
        self._datapath.unplug(ifindex, port, self._size + port)
        self._device.unplugged(port)
        del self._armed[port]
        log.info("port %d: unplugged", port)
