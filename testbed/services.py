"""Open vSwitch, Docker and the BPF file system: check that they run, and start those that do not.

Nothing here belongs to a lab: the services are the machine's. They are started by systemd if it runs the
machine, else by hand in sessions of their own, and they are left running.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from ringlight.testbed.descriptors import too_few

OVS_CTL = Path("/usr/share/openvswitch/scripts/ovs-ctl")
OVS_SOCKET = Path("/var/run/openvswitch/db.sock")
DOCKER_SOCKET = Path("/var/run/docker.sock")
DOCKER_PID = Path("/var/run/docker.pid")
_CONTAINERD_PID = Path("/var/run/docker/containerd/containerd.pid")
OPEN_VSWITCH = ("ovs-vswitchd", "ovsdb-server")
DOCKER_LOG = Path("/var/log/ringlight-dockerd.log")
BPF_FS = Path("/sys/fs/bpf")
#: Deadline of a command that starts a service, seconds.
START_S = 60.0
#: What runs where there is no command of that name.
_COMMAND = "ringlight.experiments.cli.app"
#: Without them root can make no networks: bits of a capability set (capabilities(7)).
_CAPABILITIES = {12: "NET_ADMIN", 21: "SYS_ADMIN"}


class ServiceError(RuntimeError):
    """A service is not running and could not be started; the message names it and the remedy."""


def has_systemd() -> bool:
    return Path("/run/systemd/system").is_dir()


def _answers(
    path: Path, request: bytes, expected: bytes, timeout_s: float = 15.0
) -> bool:
    """Return whether a service on a Unix socket answers ``request`` with something that holds ``expected``.

    A service that has ended refuses the connection immediately. A running one may be slow: while many labs
    are built, Open vSwitch answers after seconds.

    Raises ServiceError if this process has no descriptor left to ask with.
    """
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(timeout_s)
            connection.connect(str(path))
            connection.sendall(request)
            return expected in connection.recv(4096)
    except OSError as error:
        if (lacking := too_few(error)) is not None:
            raise ServiceError(lacking) from None
        return False


def docker_running() -> bool:
    return _answers(DOCKER_SOCKET, b"GET /_ping HTTP/1.0\r\n\r\n", b"200 OK")


def open_vswitch_database_running() -> bool:
    """Return whether the database answers, which is the half that knows which bridges there are. Raises
    ServiceError.
    """
    return _answers(
        OVS_SOCKET, b'{"method":"list_dbs","params":[],"id":0}', b"Open_vSwitch"
    )


def open_vswitch_running() -> bool:
    """Return whether the database answers and the switch daemon has its control socket open."""
    if not open_vswitch_database_running():
        return False
    for control in OVS_SOCKET.parent.glob("ovs-vswitchd.*.ctl"):
        if _answers(control, b'{"method":"version","params":[],"id":0}', b"vSwitch"):
            return True
    return False


def bpf_fs_mounted() -> bool:
    mounts = Path("/proc/mounts").read_text().splitlines()
    return any(
        line.split()[1] == str(BPF_FS) and line.split()[2] == "bpf" for line in mounts
    )


def running_pids(*, docker: bool) -> dict[str, int]:
    """Return the process ids of Open vSwitch's daemons, and of Docker's, by the name of each that has left
    its pid.
    """
    files = {name: OVS_SOCKET.parent / f"{name}.pid" for name in OPEN_VSWITCH}
    if docker:
        files |= {"dockerd": DOCKER_PID, "containerd": _CONTAINERD_PID}
    pids: dict[str, int] = {}
    for name, file in files.items():
        with suppress(OSError, ValueError):
            pids[name] = int(file.read_text())
    return pids


def _clean_environment() -> dict[str, str]:
    """Return this process's environment without the label of a lab: a service outlives every lab."""
    environment = {
        k: v for k, v in os.environ.items() if not k.startswith("RINGLIGHT_")
    }
    environment["PATH"] = environment.get("PATH", "") + ":/usr/sbin:/sbin"
    return environment


def _run(command: list[str], what: str) -> None:
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=START_S,
            env=_clean_environment(),
            start_new_session=True,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ServiceError(f"{what} could not be started: {error}") from None
    if done.returncode:
        last = (done.stdout.strip().splitlines() or ["no output"])[-1]
        raise ServiceError(f"{what} could not be started: {last}")


def _wait(running: Callable[[], bool], what: str, timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while not running():
        if time.monotonic() > deadline:
            raise ServiceError(
                f"{what} did not answer within {timeout_s:.0f} s of its start"
            )
        time.sleep(0.1)


def start_open_vswitch() -> None:
    """Start Open vSwitch unless it runs. Raises ServiceError."""
    if open_vswitch_running():
        return
    if has_systemd():
        _run(["systemctl", "start", "openvswitch-switch"], "Open vSwitch")
    elif OVS_CTL.exists():
        _start_ovs_by_hand()
    else:
        raise ServiceError(
            "Open vSwitch is not installed; run: apt-get install openvswitch-switch"
        )
    _wait(open_vswitch_running, "Open vSwitch", 20)


def _start_ovs_by_hand() -> None:
    # ovs-ctl inherits its output to the daemons it leaves behind: a pipe would never end.
    try:
        done = subprocess.run(
            [str(OVS_CTL), "start", "--system-id=random"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=START_S,
            env=_clean_environment(),
            start_new_session=True,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ServiceError(f"Open vSwitch could not be started: {error}") from None
    if done.returncode and not open_vswitch_running():
        raise ServiceError(
            f"Open vSwitch could not be started: {OVS_CTL} start gave {done.returncode}"
        )


def start_docker() -> None:
    """Start Docker unless it answers. Raises ServiceError."""
    if docker_running():
        return
    if has_systemd():
        _run(["systemctl", "start", "docker"], "Docker")
    else:
        dockerd = shutil.which("dockerd", path=_clean_environment()["PATH"])
        if dockerd is None:
            raise ServiceError(
                "Docker is not installed; run: apt-get install docker.io"
            )
        _forget_dead_docker()
        with DOCKER_LOG.open("ab") as log:
            subprocess.Popen(
                [dockerd],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=_clean_environment(),
                start_new_session=True,
                cwd="/",
            )
    try:
        _wait(docker_running, "Docker", 40)
    except ServiceError as error:
        raise ServiceError(f"{error}; its log is {DOCKER_LOG}") from None


def _forget_dead_docker() -> None:
    """Remove the pid file of a dockerd that was killed: a new one refuses to start if the file is there."""
    try:
        pid = int(DOCKER_PID.read_text())
        alive = Path(f"/proc/{pid}/comm").read_text().strip() == "dockerd"
    except (OSError, ValueError):
        alive = False
    if not alive:
        DOCKER_PID.unlink(missing_ok=True)


def mount_bpf_fs() -> None:
    """Mount the BPF file system unless it is. Raises ServiceError."""
    if bpf_fs_mounted():
        return
    _run(["mount", "-t", "bpf", "bpf", str(BPF_FS)], "the BPF file system")


def lacking_capabilities(status: str) -> list[str]:
    """Return the capabilities for building networks that a process lacks, by its ``/proc/PID/status``."""
    match = re.search(r"^CapEff:\s*([0-9a-f]+)$", status, re.MULTILINE)
    held = int(match[1], 16) if match else 0
    return [name for bit, name in _CAPABILITIES.items() if not held >> bit & 1]


def root_needed(what: str) -> str:
    """Return the message that only root can do something, with this command for root.

    The program is named by its path. Without it, sudo looks for programs elsewhere and finds another Python,
    for which the launcher would make the environment again.
    """
    installed = Path(sys.prefix, "bin/ringlight")
    program = (
        [str(installed)] if installed.exists() else [sys.executable, "-m", _COMMAND]
    )
    kept = [name for name in sorted(os.environ) if name.startswith("RINGLIGHT_")]
    command = shlex.join([*program, *sys.argv[1:]])
    if Path(sys.argv[0]).name not in ("ringlight", "app.py"):
        return f"root is needed to {what}; run this program as root"
    if shutil.which("sudo"):
        keep = f"--preserve-env={','.join(kept)} " if kept else ""
        return f"root is needed to {what}; run: sudo {keep}{command}"
    return f"root is needed to {what}; run: su -c {shlex.quote(command)}"


def check_privileges() -> None:
    """Raise ServiceError unless this process is root and may build networks."""
    if os.geteuid() != 0:
        raise ServiceError(root_needed("build networks"))
    if lacking := lacking_capabilities(Path("/proc/self/status").read_text()):
        raise ServiceError(
            f"root lacks the capabilities {', '.join(lacking)} here; a container that builds labs must be "
            "privileged (docker run --privileged)"
        )


def ensure_services(*, docker: bool = True) -> None:
    """Start everything that a lab needs and that does not run. ``docker=False`` is for the namespace
    runtime.
    """
    check_privileges()
    mount_bpf_fs()
    start_open_vswitch()
    if docker:
        start_docker()
