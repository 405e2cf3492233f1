"""OpenFlow over TLS against an Open vSwitch of its own: which certificates it has is one setting for all of a
daemon's bridges, so that of the machine is left alone."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ringlight.controller.__main__ import _openflow_tls
from ringlight.controller.errors import StartError
from ringlight.controller.openflow.errors import ListenError, NotConnectedError
from ringlight.controller.openflow.messages import FlowMod
from ringlight.controller.openflow.plane import OpenFlowPlane

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(
        shutil.which("openssl") is None, reason="openssl is not installed"
    ),
]

SCHEMA = "/usr/share/openvswitch/vswitch.ovsschema"
WAIT_S = 20.0
DPID = 0x71


def openssl(*words: str) -> None:
    subprocess.run(["openssl", *words], check=True, capture_output=True, timeout=30)


def authority(directory: Path, name: str) -> tuple[Path, Path]:
    """A certificate of its own making, and its key."""
    cert, key = directory / f"{name}.pem", directory / f"{name}.key"
    curve = (
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-nodes",
        "-days",
        "2",
    )
    openssl(
        "req",
        "-x509",
        *curve,
        "-subj",
        f"/CN={name}",
        "-keyout",
        str(key),
        "-out",
        str(cert),
    )
    return cert, key


class OwnSwitch:
    """An Open vSwitch in ``directory``, with one bridge that moves no packets."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.socket = directory / "db.sock"
        environment = {"OVS_RUNDIR", "OVS_LOGDIR", "OVS_DBDIR", "OVS_SYSCONFDIR"}
        self._environment = {**os.environ, **dict.fromkeys(environment, str(directory))}
        database = directory / "conf.db"
        self._run("ovsdb-tool", "create", str(database), SCHEMA)
        self._processes: list[subprocess.Popen[bytes]] = []
        self._begin(
            "ovsdb-server",
            str(database),
            f"--remote=punix:{self.socket}",
            self._ctl("db"),
        )
        self._await(self.socket.exists)
        self.vsctl("--no-wait", "init")
        self._begin(
            "ovs-vswitchd",
            f"unix:{self.socket}",
            "--enable-dummy",
            "--disable-system",
            self._ctl("switchd"),
        )
        self.vsctl("add-br", "b0", "--", "set", "bridge", "b0", "datapath_type=dummy")
        self.vsctl(
            "set",
            "bridge",
            "b0",
            f"other_config:datapath-id={DPID:016x}",
            "protocols=OpenFlow13",
        )

    def _ctl(self, name: str) -> str:
        return f"--unixctl={self.directory}/{name}.ctl"

    def _run(self, *words: str) -> None:
        subprocess.run(
            words,
            env=self._environment,
            check=True,
            capture_output=True,
            timeout=WAIT_S,
            text=True,
        )

    def _begin(self, *words: str) -> None:
        with (self.directory / "log").open("ab") as log:
            self._processes.append(
                subprocess.Popen(
                    words,
                    env=self._environment,
                    stdout=log,
                    stderr=log,
                    cwd=self.directory,
                )
            )

    def _await(self, done: object) -> None:
        deadline = time.monotonic() + WAIT_S
        while not done():  # type: ignore[operator]
            assert time.monotonic() < deadline, (self.directory / "log").read_text()[
                -2000:
            ]
            time.sleep(0.05)

    def vsctl(self, *words: str) -> None:
        self._run("ovs-vsctl", f"--db=unix:{self.socket}", "--timeout=15", *words)

    def controlled(self, target: str, key: Path, cert: Path, trusted: Path) -> None:
        self.vsctl("set-ssl", str(key), str(cert), str(trusted))
        self.vsctl("set-controller", "b0", target)
        self.vsctl("set", "controller", "b0", "max_backoff=1000")

    def close(self) -> None:
        for process in reversed(self._processes):
            process.terminate()
            process.wait(10)


@pytest.fixture
def switch(tmp_path: Path) -> Iterator[OwnSwitch]:
    with contextlib.closing(OwnSwitch(tmp_path)) as made:
        yield made


def test_a_switch_comes_in_by_its_certificate_alone(
    switch: OwnSwitch, tmp_path: Path
) -> None:
    ours, our_key = authority(tmp_path, "controller")
    known, known_key = authority(tmp_path, "switch")
    stranger, stranger_key = authority(tmp_path, "stranger")
    plane = OpenFlowPlane("127.0.0.1", 0, _openflow_tls((ours, our_key), known))
    plane.start()
    try:
        target = f"ssl:127.0.0.1:{plane.port}"
        with pytest.raises(
            ListenError, match=f"OpenFlow port 127.0.0.1:{plane.port} is already in use"
        ):
            OpenFlowPlane(
                "127.0.0.1", plane.port, _openflow_tls((ours, our_key), known)
            ).start()
        switch.controlled(target, stranger_key, stranger, ours)
        with pytest.raises(NotConnectedError):
            plane.wait_for([DPID], 3.0)
        switch.controlled(f"tcp:127.0.0.1:{plane.port}", known_key, known, ours)
        with pytest.raises(NotConnectedError):
            plane.wait_for([DPID], 3.0)
        switch.controlled(target, known_key, known, ours)
        plane.wait_for([DPID], WAIT_S)
        mods = [
            FlowMod(
                "add",
                100,
                {"eth_type": 0x0800, "ipv4_dst": f"10.{n >> 8}.{n & 255}.1"},
                (1,),
            )
            for n in range(2000)
        ]
        plane.send_flows(DPID, mods, timeout_s=WAIT_S)
        assert len(plane.flows(DPID, timeout_s=WAIT_S)) >= len(mods)
    finally:
        plane.stop()
    # Nothing listens there any more.
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", plane.port))


def test_what_tls_of_openflow_needs_is_named(tmp_path: Path) -> None:
    ours, our_key = authority(tmp_path, "controller")
    assert _openflow_tls(None, None) is None
    with pytest.raises(
        StartError, match="--openflow-ca: it needs --tls-cert and --tls-key"
    ):
        _openflow_tls(None, ours)
    with pytest.raises(StartError, match=f"--openflow-ca {our_key}: "):
        _openflow_tls((ours, our_key), our_key)
