"""Debian's netconfd under the NETCONF driver: the protocol of a server that is not ours, and no light."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from ringlight.controller.optical.base import OpticalSwitchDriver
from ringlight.controller.optical.registry import make_driver
from ringlight.fabric.crossconnect import CrossConnect
from ringlight.testbed.rigs.emulated import HOSTS, SIZE
from ringlight.testbed.rigs.network import nobodys_address
from ringlight.testbed.rigs.rig import WRONG_PASSWORD, Recovery, Rig, lacks
from tests.extensions.polatis import netconf_server
from tests.extensions.polatis.netconf_server import (
    BASE,
    MODEL,
    PASSWORD,
    USER,
    NetconfServer,
)

DARK_DBM = -60.0
#: What stands in the datastore as power, whatever else stands there: light at the ports with a host, and
#: behind one egress.
POWERS = {
    **{port: 0.0 if port <= HOSTS else DARK_DBM for port in range(1, SIZE + 1)},
    SIZE + 2: -1.5,
}
#: What it is said to be dark for; a datastore never is.
DARK_S = 0.01
_PAIR = re.compile(r"<ingress>(\d+)</ingress>\s*<egress>(\d+)</egress>")
_CROSS_CONNECTS = f'<cross-connects xmlns="{MODEL}"'


class NetconfRig(Rig):
    """netconfd and its candidate datastore; what else it can be is in the driver's own tests."""

    inputs, outputs = range(1, SIZE + 1), range(SIZE + 1, 2 * SIZE)
    failed_port = 2 * SIZE
    addition, removal = r"\bmerge\b|\bcreate\b", r"\bdelete\b"
    recoveries = ("RESTORE",)

    @classmethod
    def missing(cls) -> str:
        return netconf_server.missing()

    def __init__(self) -> None:
        self.hosts = {}
        self._directory = Path(tempfile.mkdtemp(prefix="ringlight-netconf-"))
        for name, password in (("password", PASSWORD), ("wrong", WRONG_PASSWORD)):
            (self._directory / name).write_text(f"{password}\n")
        try:
            self._server = NetconfServer(2 * SIZE, [2 * SIZE], powers=POWERS)
        except BaseException:
            shutil.rmtree(self._directory)
            raise

    @property
    def plugged(self) -> Collection[int]:
        return range(1, HOSTS + 1)

    def close(self) -> None:
        self._server.close()
        shutil.rmtree(self._directory, ignore_errors=True)

    def _make(self, address: str, password: str = "password") -> OpticalSwitchDriver:
        entry = {
            "driver": "polatis-netconf",
            "address": address,
            "username": USER,
            "password_file": str(self._directory / password),
            "host_key": self._server.host_key,
            "profile": {"dark_s": DARK_S},
        }
        return make_driver("ocs0", entry, SIZE)

    def driver(self, direct: bool = False) -> OpticalSwitchDriver:
        return self._make(self._server.address)

    def unreachable(self) -> OpticalSwitchDriver:
        return self._make(nobodys_address())

    def locked_out(self) -> OpticalSwitchDriver | None:
        return self._make(self._server.address, "wrong")

    def truth(self) -> set[CrossConnect]:
        found = f'<filter type="subtree">{_CROSS_CONNECTS}/></filter>'
        (told,) = self._server.ask(
            f"<get-config><source><running/></source>{found}</get-config>"
        )
        return {CrossConnect(int(a), int(b)) for a, b in _PAIR.findall(told)}

    def _edit(self, config: str) -> None:
        edit = f"<edit-config><target><candidate/></target><config>{config}</config></edit-config>"
        self._server.ask(edit, "<commit/>")

    def external_connect(self, cross_connect: CrossConnect) -> None:
        ends = f"<ingress>{cross_connect.ingress}</ingress><egress>{cross_connect.egress}</egress>"
        self._edit(f"{_CROSS_CONNECTS}><pair>{ends}</pair></cross-connects>")

    def wipe(self) -> None:
        self._edit(f'{_CROSS_CONNECTS} xmlns:nc="{BASE}" nc:operation="replace"/>')

    def writes(self) -> list[str]:
        seen, self._server.seen = self._server.seen, []
        return seen

    def lose_next_reply(self, effect: bool) -> None:
        self._server.lose = effect

    @contextmanager
    def broken_reads(self) -> Iterator[None]:
        self._server.garble = True
        try:
            yield
        finally:
            self._server.garble = False

    def drop_sessions(self) -> None:
        self._server.drop()

    @contextmanager
    def fault(
        self, kind: str, *, count: int | None = None, seconds: float | None = None
    ) -> Iterator[None]:
        if kind == "half":
            lacks("batches that can be half done: an edit is done whole or not at all")
        if kind not in ("autonomous", "deny", "garbage", "truncate", "slow-drip"):
            lacks("light behind its datastore")
        self._server.chatter = kind == "autonomous"
        self._server.mishap = "" if kind == "autonomous" else kind
        try:
            yield
        finally:
            self._server.chatter, self._server.mishap = False, ""

    @contextmanager
    def locked_by_another(self) -> Iterator[None]:
        target = "<target><candidate/></target>"
        with self._server.session() as ask:
            ask(f"<lock>{target}</lock>")
            yield
            ask(f"<unlock>{target}</unlock>")

    def plug(self, faceplate: int, plugged: bool) -> None:
        """Its meter is set by hand."""
        power = POWERS[faceplate] if plugged else DARK_DBM
        leaves = f"<port-id>{faceplate}</port-id><power>{power:.2f}</power>"
        self._edit(f'<opm-power xmlns="{MODEL}"><port>{leaves}</port></opm-power>')

    def restart(self, recovery: Recovery) -> None:
        self._server.restart()
