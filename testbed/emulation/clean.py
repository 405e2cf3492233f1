"""Removes what labs left behind, found by label and by nothing else.

The labs that exist are those with a state directory, a container, a bridge, a BPF directory or a process
labelled so. Only then does a name that begins with ``rl<id>-`` mean anything: an interface or a namespace
that merely looks alike is not ours.
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
    ids |= {value for _, value in _labelled_processes()}
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


def _labelled_processes() -> Iterator[tuple[int, str]]:
    """Processes with a lab in their environment, without this one, its ancestors, and those in containers."""
    spared = set(_ancestors())
    own = os.readlink("/proc/self/ns/pid")
    variable = f"{ENVIRONMENT}=".encode()
    for path in Path("/proc").iterdir():
        if not path.name.isdigit() or int(path.name) in spared:
            continue
        try:
            if os.readlink(path / "ns/pid") != own:
                continue
            words = (path / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        for word in words:
            if word.startswith(variable):
                yield int(path.name), word[len(variable) :].decode(errors="replace")


def _ancestors() -> Iterator[int]:
    pid = os.getpid()
    while pid > 1:
        yield pid
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        pid = int(fields[1])
    yield 1


def _end_processes(lab: Lab) -> list[str]:
    removed = []
    waiting: list[int] = []
    for pid, value in _labelled_processes():
        if value != lab.id:
            continue
        with suppress(OSError):
            descriptor = os.pidfd_open(pid)
            # The number may have passed to another process since it was looked at.
            if any(same == (pid, lab.id) for same in _labelled_processes()):
                name = Path(f"/proc/{pid}/comm").read_text().strip()
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)
                removed.append(f"process {pid} ({name})")
                waiting.append(pid)
            os.close(descriptor)
    deadline = time.monotonic() + PROCESS_END_S
    while any(_runs(pid) for pid in waiting) and time.monotonic() < deadline:
        time.sleep(0.01)
    return removed


def _runs(pid: int) -> bool:
    try:
        return (
            Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
            not in "ZX"
        )
    except OSError:
        return False
