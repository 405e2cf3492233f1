"""Preparation of the machine for labs, done once: services, eBPF object, worker image.

Every step looks first and does nothing if nothing is to be done, so a start-up check costs well under a
second. ``ringlight doctor`` prints :func:`doctor_checks`.
"""

from __future__ import annotations

import os
import platform
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ringlight.testbed import programs, services

Progress = Callable[[str], None]
#: A worker image of other sources that is younger may belong to a test run that goes on now.
OLD_IMAGE_S = 3600.0
#: What a person calls us by: the launcher in the tree, or the command of an installed package.
OURSELVES = (
    "./ringlight"
    if (Path(__file__).resolve().parents[1] / "ringlight").is_file()
    else "ringlight"
)


@dataclass(frozen=True)
class Check:
    """Check of one thing that the machine has or lacks, with the one command that repairs it."""

    name: str
    ok: bool
    detail: str
    mend: str = ""


def ensure_ready(progress: Progress, *, runtime: str = "docker") -> None:
    """Make the machine ready for a lab. Raises ServiceError or ImageError with one line each."""
    from ringlight.testbed.emulation.kernel.build import build_object
    from ringlight.testbed.emulation.optical.datapath import SOURCE

    services.check_privileges()
    # Before anything is started.
    check_programs(runtime)
    services.ensure_services(docker=runtime == "docker")
    build_object(SOURCE)
    if runtime == "docker":
        from ringlight.containers.image import image_present

        if not image_present():
            from ringlight.containers.image_build import ensure_image

            remove_old_images(ensure_image(progress), progress)


def check_programs(runtime: str) -> None:
    """Raise ServiceError, one line with the remedy, for all programs that labs need and that are missing."""
    # A Docker that answers may be one without programs here.
    if lacking := programs.missing(
        docker=runtime == "docker" and not services.docker_running()
    ):
        raise services.ServiceError(
            f"this machine lacks {', '.join(lacking)}; run: apt-get install {' '.join(lacking)}"
        )


def remove_old_images(
    keep: str, progress: Progress, age_s: float = OLD_IMAGE_S
) -> None:
    """Remove the images that were made before ``keep`` from other sources and that nothing needs any more.

    Those are images with its name and our label, older than ``age_s`` seconds, of which there is no
    container; and none while a lab lives, which may yet start workers. Raises ImageError.
    """
    from ringlight.containers.image_build import remove_images
    from ringlight.testbed.emulation import clean

    if not clean.any_alive():
        for tag in remove_images(keep, age_s):
            progress(f"Removed the old image {tag}")


def _program(what: str, package: str) -> Check:
    installed = programs.present(what)
    return Check(
        what, installed, "" if installed else "not found", f"apt-get install {package}"
    )


def _simgrid() -> Check:
    """Return the state of SimGrid. It is optional: only one comparison of the test suite needs it."""
    there = any(Path("/usr/lib/python3/dist-packages").glob("simgrid.*.so"))
    state = (
        "there"
        if there
        else "absent, its test is skipped: apt-get install python3-simgrid"
    )
    return Check("SimGrid", True, state)


def _kernel_has_tc(kind: str) -> bool:
    """Return whether the kernel knows a queueing discipline. This is tried on a dummy veth that is removed
    again.
    """
    from pyroute2.iproute import IPRoute
    from pyroute2.netlink.exceptions import NetlinkError

    name = f"rlq{os.getpid() % 10000}"
    with IPRoute() as netlink:
        try:
            netlink.link("add", ifname=name, kind="veth", peer={"ifname": name + "p"})
            index = netlink.link_lookup(ifname=name)[0]
        except NetlinkError:
            return False
        try:
            if kind == "clsact":
                netlink.tc("add", kind, index)
            else:
                netlink.tc("add", kind, index, "1:", default=0x10)
        except NetlinkError:
            return False
        finally:
            netlink.link("del", index=index)
    return True


def _port_free(port: int) -> Check:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            return Check(
                f"port {port}",
                False,
                error.strerror or "taken",
                f"ss -ltnp 'sport = :{port}'  # then stop it",
            )
    return Check(f"port {port}", True, "free")


def _memory_gib() -> float:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30


def doctor_checks() -> list[Check]:
    """Return all checks, in the order in which a person would repair what fails. Changes nothing."""
    root = os.geteuid() == 0
    checks = [
        Check(
            "root",
            root,
            "yes" if root else f"uid {os.geteuid()}",
            f"sudo {OURSELVES} doctor",
        ),
        Check(
            "kernel",
            platform.system() == "Linux",
            f"{platform.release()}, {os.cpu_count()} cores, {_memory_gib():.0f} GiB",
        ),
        *(_program(*needed) for needed in programs.OF_LABS + programs.OF_DOCKER),
        _simgrid(),
        Check(
            "Open vSwitch runs",
            services.open_vswitch_running(),
            "",
            f"{OURSELVES} setup",
        ),
        Check("Docker runs", services.docker_running(), "", f"{OURSELVES} setup"),
        Check(
            "BPF file system",
            services.bpf_fs_mounted(),
            "/sys/fs/bpf",
            f"{OURSELVES} setup",
        ),
    ]
    if root:
        checks += [
            Check(
                f"kernel has {kind}",
                _kernel_has_tc(kind),
                what,
                f"modprobe {module}  # or use a kernel that has it",
            )
            for kind, what, module in (
                ("htb", "rates of links", "sch_htb"),
                ("clsact", "the emulated optical switch", "cls_bpf"),
            )
        ]
    if services.docker_running():
        from ringlight.containers.image import image_present, image_tag

        checks.append(
            Check("worker image", image_present(), image_tag(), f"{OURSELVES} setup")
        )
    return [*checks, _port_free(8080), _port_free(6653)]
