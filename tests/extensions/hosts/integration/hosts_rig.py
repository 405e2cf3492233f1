"""Hosts for tests: each with network, mounts and processes of its own, and an Open vSwitch of its own.

All are namespaces of this machine, joined by a bridge in one of them, ``head``, where Dask's scheduler is and
from where commands are given. Nothing of it is in the machine's own network.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from ringlight.containers.image import image_tag
from ringlight.extensions.hosts.certificates import make_certificates
from ringlight.testbed.emulation.kernel.namespaces import in_namespace
from ringlight.testbed.process_start import SOCKET
from tests.forks import COMMAND, Command

ROOT = Path(__file__).resolve().parents[4]
HEAD_IP, PORT = "10.99.0.254", 8786
SCHEDULER = f"tls://{HEAD_IP}:{PORT}"
_REGISTERED = "Registered to"
#: What a machine has after its boot, and no more: who starts labs there finds no others.
_BOOT = """
mount --make-rprivate / && mount -t proc proc /proc
for folder in /run /etc/openvswitch /var/log; do mount -t tmpfs tmpfs $folder; done
mkdir -p /run/openvswitch /run/netns /var/log/openvswitch /run/cgroup
mount --rbind /sys/fs/cgroup /run/cgroup
mount -t sysfs sysfs /sys && mount -t bpf bpf /sys/fs/bpf && mount --rbind /run/cgroup /sys/fs/cgroup
hostname "$1"; ip link set lo up
until ip link show eth0 >/dev/null 2>&1; do sleep 0.02; done
ip link set eth0 address "$3"; ip address add "$2/24" dev eth0; ip link set eth0 mtu 9000 up
/usr/share/openvswitch/scripts/ovs-ctl start --system-id=random >/dev/null 2>&1 </dev/null
[ -z "$5" ] || dockerd --data-root "$5" --bridge none --iptables=false --ip6tables=false \
    -H unix:///var/run/docker.sock >"$5.log" 2>&1 </dev/null &
touch "$4"
exec sleep infinity
"""


@dataclass
class NamespaceHost:
    """``process``: unshare's, with whose end all of the host's processes end.

    ``later_s``: by so much its CLOCK_MONOTONIC is later than the machine's; not where optical switches are,
    as eBPF has the machine's.
    """

    name: str
    ip: str
    process: subprocess.Popen[bytes]
    child: int
    later_s: int = 0

    def command(self, words: Sequence[str]) -> list[str]:
        """A command of this host."""
        kinds = [
            "--net",
            "--mount",
            "--pid",
            "--uts",
            "--ipc",
            *(["--time"] if self.later_s else []),
        ]
        return ["nsenter", f"--target={self.child}", *kinds, *words]


@dataclass
class Hosts:
    """``folder``: logs, and the certificates."""

    folder: Path
    head: int
    hosts: list[NamespaceHost] = field(default_factory=list)
    #: By their hosts.
    workers: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    scheduler: subprocess.Popen[bytes] | None = None

    def start_scheduler(self) -> None:
        """Dask's scheduler, which need not listen yet."""
        words = ["--host", HEAD_IP, "--port", str(PORT), "--no-dashboard"]
        with (self.folder / "scheduler.log").open("ab") as log:
            self.scheduler = subprocess.Popen(
                [
                    *self.inside,
                    sys.executable,
                    "-m",
                    "distributed.cli.dask_scheduler",
                    *words,
                ],
                cwd=self.folder,
                env=self.environment,
                stdout=log,
                stderr=log,
            )

    def end_scheduler(self) -> None:
        """Kill Dask's scheduler; the workers end with it."""
        assert self.scheduler is not None
        _end(self.scheduler)

    def start_again(self) -> None:
        """A scheduler and workers after the scheduler's end; those of before have ended."""
        for worker in self.workers.values():
            worker.wait(40)
        self.start_scheduler()
        for host in self.hosts:
            self.start(host)

    @property
    def environment(self) -> dict[str, str]:
        """The environment of processes on hosts; it names no fork server of another namespace."""
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith("RINGLIGHT_")
        }
        return {
            **kept,
            "DASK_CONFIG": str(self.folder / "certificates"),
            "PYTHONDONTWRITEBYTECODE": "",
            # What ends with its whole host removes no files, which on other machines the next boot does.
            "TMPDIR": str(self.folder / "temporary"),
        }

    def ringlight(
        self, *words: str, timeout_s: float = 170.0
    ) -> subprocess.CompletedProcess[str]:
        """A command of ``head``; forked from what has been imported, where labs of tests are."""
        if SOCKET in os.environ:
            with open(f"/proc/{self.head}/ns/net") as network:
                command = in_namespace(
                    network.fileno(),
                    lambda: Command([*COMMAND, *words], self.environment),
                )
            said = command.communicate(timeout_s)
            assert command.returncode is not None
            return subprocess.CompletedProcess(list(words), command.returncode, *said)
        with self.starting(*words) as process:
            try:
                out, err = process.communicate(timeout=timeout_s)
            except subprocess.TimeoutExpired:
                process.kill()
                raise
        return subprocess.CompletedProcess(list(words), process.returncode, out, err)

    def starting(self, *words: str) -> subprocess.Popen[str]:
        """The same, running."""
        return subprocess.Popen(
            ["nsenter", f"--target={self.head}", "--net", "--", *COMMAND, *words],
            cwd=ROOT,
            env=self.environment,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def worker(self, host: NamespaceHost, *options: str) -> subprocess.Popen[bytes]:
        """Dask's worker of a host, as a person starts it."""
        command = [
            sys.executable,
            "-m",
            "distributed.cli.dask_worker",
            SCHEDULER,
            "--no-dashboard",
            "--no-nanny",
        ]
        command += [
            "--resources",
            "HOST=1",
            "--nthreads",
            "1",
            "--name",
            host.name,
            "--host",
            host.ip,
            *options,
        ]
        with (self.folder / f"{host.name}.log").open("ab") as log:
            # Dask's own files are in the folder where it is started.
            return subprocess.Popen(
                host.command(command),
                cwd=self.folder,
                env=self.environment,
                stdout=log,
                stderr=log,
            )

    def registered(self, host: NamespaceHost, *options: str) -> subprocess.Popen[bytes]:
        """A worker that the scheduler knows."""
        heard = self.folder / f"{host.name}.log"
        before = heard.read_text().count(_REGISTERED) if heard.exists() else 0
        worker = self.worker(host, *options)
        _until(
            lambda: heard.exists() and heard.read_text().count(_REGISTERED) > before,
            f"worker of {host.name}",
        )
        return worker

    def start(self, host: NamespaceHost, *options: str) -> None:
        """A host's worker, which has registered."""
        self.workers[host.name] = self.registered(host, *options)

    def limit(self, host: NamespaceHost, mtu: int = 9000, rate: str = "") -> None:
        """What a host's link lets through, both ways; without ``rate`` as much as it can."""
        ends = (
            host.command(["ip", "link", "set", "eth0"]),
            [*self.inside, "ip", "link", "set", host.name],
        )
        for end in ends:
            _run([*end, "mtu", str(mtu)])
        for where, device in ((host.command([]), "eth0"), (self.inside, host.name)):
            if rate:
                shaped = f"tc qdisc add dev {device} root tbf rate {rate} burst 64kb latency 50ms"
                _run([*where, *shaped.split()])
            else:
                _run([*where, "tc", "qdisc", "del", "dev", device, "root"])

    @property
    def inside(self) -> list[str]:
        """Words before a command of ``head``."""
        return ["nsenter", f"--target={self.head}", "--net", "--"]


@contextmanager
def hosts(
    folder: Path,
    count: int = 2,
    workers: bool = True,
    docker: bool = False,
    later_s: int = 0,
) -> Iterator[Hosts]:
    """So many hosts, a scheduler, and a worker on each.

    ``docker``: each with a Docker of its own, which has the worker image of this machine's. ``later_s``: by
    so much the CLOCK_MONOTONIC of all but the first is later.
    """
    make_certificates(folder / "certificates")
    (folder / "temporary").mkdir()
    with ExitStack() as undo:
        head = _unshared(undo, ["--net"], "ip link set lo up; exec sleep infinity")
        found = Hosts(folder, head.pid)
        inside = ["nsenter", f"--target={head.pid}", "--net", "--"]
        _until(lambda: _is_apart(head.pid), "head")
        for words in ("add hub type bridge", "set hub mtu 9000 up"):
            _run([*inside, "ip", "link", *words.split()])
        _run([*inside, "ip", "address", "add", f"{HEAD_IP}/24", "dev", "hub"])
        for number in range(1, count + 1):
            found.hosts.append(
                _host(
                    undo, folder, inside, number, docker, later_s if number > 1 else 0
                )
            )
        for host in found.hosts:
            _until((folder / f"{host.name}.up").exists, host.name)
        # The child is known once it has written that file.
        for host in found.hosts:
            host.child = _child_of(host.process.pid)
        if docker:
            _load_image(found.hosts)
        found.start_scheduler()
        undo.callback(found.end_scheduler)
        if workers:
            for host in found.hosts:
                found.start(host)
        yield found


def _load_image(hosts: Sequence[NamespaceHost]) -> None:
    """Give each host's Docker the worker image of this machine's."""
    with tempfile.TemporaryFile() as image:
        subprocess.run(
            ["docker", "save", image_tag()], check=True, timeout=120, stdout=image
        )
        for host in hosts:
            answers = host.command(["docker", "version"])
            _until(
                lambda answers=answers: (
                    subprocess.run(answers, capture_output=True, timeout=20).returncode
                    == 0
                ),
                f"Docker of {host.name}",
            )
            image.seek(0)
            subprocess.run(
                host.command(["docker", "load", "--quiet"]),
                check=True,
                timeout=120,
                stdin=image,
            )


def _host(
    undo: ExitStack,
    folder: Path,
    inside: Sequence[str],
    number: int,
    docker: bool,
    later_s: int,
) -> NamespaceHost:
    name, ip, mac = f"h{number}", f"10.99.0.{number}", f"02:00:00:00:00:{number:02x}"
    kinds = ["--net", "--mount", "--pid", "--uts", "--ipc", "--fork", "--kill-child"]
    kinds += ["--time", f"--monotonic={later_s}"] if later_s else []
    data = str(folder / f"{name}-docker") if docker else ""
    process = _unshared(
        undo, kinds, _BOOT, name, ip, mac, str(folder / f"{name}.up"), data
    )
    _until(lambda: _is_apart(process.pid), name)
    _run(
        [
            *inside,
            *f"ip link add {name} type veth peer name eth0 netns {process.pid}".split(),
        ]
    )
    _run([*inside, *f"ip link set {name} master hub mtu 9000 up".split()])
    return NamespaceHost(name, ip, process, 0, later_s)


def _unshared(
    undo: ExitStack, kinds: Sequence[str], script: str, *words: str
) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        ["unshare", *kinds, "sh", "-c", script, "sh", *words], stdin=subprocess.DEVNULL
    )
    undo.callback(_end, process)
    return process


def _is_apart(pid: int) -> bool:
    return os.readlink(f"/proc/{pid}/ns/net") != os.readlink("/proc/self/ns/net")


def _child_of(pid: int) -> int:
    found = subprocess.run(
        ["pgrep", "-P", str(pid)],
        capture_output=True,
        text=True,
        check=True,
        timeout=10,
    )
    return int(found.stdout.split()[0])


def kill(worker: subprocess.Popen[bytes]) -> None:
    """A worker of :meth:`Hosts.worker`, which is a child of the process that entered its host."""
    os.kill(_child_of(worker.pid), signal.SIGKILL)
    worker.wait(10)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGKILL)
    process.wait(10)


def _run(command: Sequence[str]) -> None:
    subprocess.run(command, check=True, timeout=10)


def _until(condition: object, what: str, timeout_s: float = 30.0) -> None:
    deadline = time.monotonic() + timeout_s
    assert callable(condition)
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not up after {timeout_s:.0f} s"
        time.sleep(0.05)
