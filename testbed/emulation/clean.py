"""Removes what labs left behind, found by label and by nothing else.

The labs that exist are those with a state directory, a container, a bridge, a BPF directory or a process
labelled so. Only then does a name that begins with ``rl<id>-`` mean anything: an interface or a namespace
that merely looks alike is not ours. Processes that write their title over the label are known to the kind of
program that started them (``testbed.lab_programs``).
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import signal
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from ringlight.testbed import limits, priority, services
from ringlight.testbed.emulation import openvswitch
from ringlight.testbed.emulation.kernel import namespaces, netlink
from ringlight.testbed.lab import (
    BPF_ROOT,
    CONTAINER_LABEL,
    ENVIRONMENT,
    OVS_LABEL,
    STATE_ROOT,
    Lab,
    LabError,
)
from ringlight.testbed.lab_programs import program_kinds

if TYPE_CHECKING:
    import docker

log = logging.getLogger(__name__)

PROCESS_END_S = 5.0


def clean(lab_id: str | None = None) -> list[str]:
    """Remove everything of one lab, or of all labs, including labs that are alive. Return a line for each
    thing removed.

    The call may be repeated. The second time nothing is left to remove. Raises LabError for a bad id, and
    NetworkError, OpenVSwitchError or OSError if something cannot be removed.
    """
    removed = []
    for lab in [Lab(lab_id)] if lab_id else find_labs():
        removed += _end_processes(lab)
        removed += clean_objects(lab)
        if remove_tree(lab.state_dir):
            removed.append(f"state {lab.state_dir}")
    for root in (STATE_ROOT, BPF_ROOT):
        with suppress(OSError):
            root.rmdir()
    if not any_alive():
        priority.restore()
        limits.give_back()
    return removed


def clean_stale() -> list[str]:
    """Remove everything of the labs whose owner is dead. Return a line for each thing removed.

    Raises NetworkError, OpenVSwitchError or OSError if something cannot be removed.
    """
    # Such a lab has a state directory with a lock in it; no need to ask Docker and Open vSwitch.
    return [
        line for lab in _labs_with_state() if is_stale(lab) for line in clean(lab.id)
    ]


def clean_leftovers(lab: Lab) -> list[str]:
    """Remove what a former lab of the same id has left, before the lab is built. Return a line for each thing
    removed. Quick if there is nothing to remove."""
    named = netlink.interfaces_called(lab.prefix) or any(
        namespaces.NETNS_DIR.glob(f"{lab.prefix}*")
    )
    return clean_objects(lab) if named or lab.bpf_dir.exists() else []


def is_stale(lab: Lab) -> bool:
    """Return whether the lab was held once and is not held any more. A lab that was never held does not count
    as stale."""
    held = any((lab.state_dir / name).exists() for name in ("lock", "owner.lock"))
    return held and not lab.is_alive()


def any_alive() -> bool:
    """Return whether any lab is alive."""
    return any(lab.is_alive() for lab in _labs_with_state())


def find_labs() -> list[Lab]:
    """Return every lab that has left a label somewhere."""
    ids = {
        path.name
        for root in (STATE_ROOT, BPF_ROOT)
        if root.is_dir()
        for path in root.iterdir()
    }
    ids |= {lab for pid in _processes() if (lab := _lab_of(pid)) is not None}
    if (api := _docker()) is not None:
        containers = api.containers(all=True, filters={"label": CONTAINER_LABEL})
        ids |= {container["Labels"][CONTAINER_LABEL] for container in containers}
        api.close()
    if services.open_vswitch_database_running():
        for table in ("Bridge", "QoS"):
            out = openvswitch.vsctl("--bare", "--columns=external_ids", "list", table)
            ids |= set(re.findall(rf"\b{OVS_LABEL}=(\S+)", out))
    return _labs(sorted(ids))


def _labs_with_state() -> list[Lab]:
    return _labs(
        sorted(path.name for path in STATE_ROOT.iterdir())
        if STATE_ROOT.is_dir()
        else []
    )


def _labs(names: Iterable[str]) -> list[Lab]:
    labs = []
    for name in names:
        try:
            labs.append(Lab(name))
        except LabError as error:
            log.warning("not ours, although it is labelled so: %s", error)
    return labs


def clean_objects(lab: Lab) -> list[str]:
    """Remove everything of a lab except its processes and its state directory. Return a line for each thing
    removed."""
    removed = _remove_containers(lab)
    # The database is enough: a bridge would be back with the process that died.
    if services.open_vswitch_database_running():
        removed += [
            f"bridge {name}" for name in openvswitch.remove_labelled(OVS_LABEL, lab.id)
        ]
    removed += [
        f"interface {name}"
        for name in netlink.remove_interfaces(lab.prefix, lab.link_group)
    ]
    if namespaces.NETNS_DIR.is_dir():
        for path in sorted(namespaces.NETNS_DIR.glob(f"{lab.prefix}*")):
            namespaces.delete_namespace(path.name)
            removed.append(f"namespace {path.name}")
    if remove_tree(lab.bpf_dir):
        removed.append(f"BPF pins {lab.bpf_dir}")
    return removed


def remove_tree(directory: Path) -> bool:
    """Remove a directory with its content. Return False if there was no such directory."""
    there = directory.exists()
    while directory.exists():
        # Whoever ended the lab may be removing it, too, and so may another lab that comes up meanwhile.
        with suppress(FileNotFoundError):
            shutil.rmtree(directory)
    return there


def _docker() -> docker.APIClient | None:
    if not services.docker_running():
        return None
    import docker

    return docker.APIClient(
        base_url=f"unix://{services.DOCKER_SOCKET}", version="auto", timeout=60
    )


def _remove_containers(lab: Lab) -> list[str]:
    api = _docker()
    if api is None:
        return []
    import docker.errors

    removed = []
    with api:
        containers = api.containers(
            all=True, filters={"label": f"{CONTAINER_LABEL}={lab.id}"}
        )
        for container in containers:
            if container.get("State") == "running":
                with suppress(docker.errors.APIError):
                    api.kill(container["Id"], "SIGKILL")
        for container in containers:
            with suppress(docker.errors.NotFound):
                api.remove_container(container["Id"], force=True, v=True)
            removed.append(f"container {container['Names'][0].lstrip('/')}")
    return removed


def _processes() -> Iterator[int]:
    """Yield the ids of all processes, without this one, its ancestors, and those in containers."""
    spared = set(_ancestors())
    own = os.readlink("/proc/self/ns/pid")
    for path in Path("/proc").iterdir():
        if path.name.isdigit() and int(path.name) not in spared:
            # It may have ended.
            with suppress(OSError):
                if os.readlink(path / "ns/pid") == own:
                    yield int(path.name)


def _lab_of(pid: int) -> str | None:
    """Return the lab of a process: that of its label, or one that a program of labs knows; None if it has none."""
    variable = f"{ENVIRONMENT}=".encode()
    with suppress(OSError):
        for word in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
            if word.startswith(variable):
                return word[len(variable) :].decode(errors="replace")
    known = (kind.lab_of(pid) for kind in program_kinds().values())
    return next((lab for lab in known if lab is not None), None)


def _ancestors() -> Iterator[int]:
    pid = os.getpid()
    while pid > 1:
        yield pid
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        pid = int(fields[1])
    yield 1


def _end_processes(lab: Lab) -> list[str]:
    """Kill the processes of a lab, and those that they start meanwhile. Return a line for each."""
    removed: dict[int, str] = {}
    deadline = time.monotonic() + PROCESS_END_S
    while killed := _kill_processes(lab):
        removed |= killed
        while any(map(_runs, killed)) and time.monotonic() < deadline:
            time.sleep(0.01)
        if time.monotonic() >= deadline:
            break
    return list(removed.values())


def _kill_processes(lab: Lab) -> dict[int, str]:
    """Kill the present processes of a lab. Return a line for each, by its id."""
    killed, descriptors = {}, dict[int, int]()
    # All are looked up before any is killed: a process may be known by the one that started it.
    for pid in _processes():
        with suppress(OSError):
            # Opened first, as the number may pass to another process after the look.
            descriptor = os.pidfd_open(pid)
            if _lab_of(pid) == lab.id:
                descriptors[pid] = descriptor
            else:
                os.close(descriptor)
    for pid, descriptor in descriptors.items():
        with suppress(OSError):
            name = Path(f"/proc/{pid}/comm").read_text().strip()
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
            killed[pid] = f"process {pid} ({name})"
        os.close(descriptor)
    return killed


def _runs(pid: int) -> bool:
    try:
        return (
            Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
            not in "ZX"
        )
    except OSError:
        return False
