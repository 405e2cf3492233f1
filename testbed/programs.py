"""Programs that must be installed on a machine that builds labs, and the Debian/Ubuntu packages that have
them.

The launcher in the root of the tree executes this file before anything is installed, so it uses the standard
library alone.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

#: What Docker and the worker image need: a program, and the package that has it.
OF_DOCKER = (
    ("dockerd", "docker.io"),
    ("iptables", "iptables"),
    ("mmdebstrap", "mmdebstrap"),
)
#: What every lab needs: a program or a file, and its package.
OF_LABS = (
    ("ovs-vswitchd", "openvswitch-switch"),
    ("mnexec", "mininet"),
    ("clang", "clang"),
    ("mount", "mount"),
    ("sysctl", "procps"),
    ("ethtool", "ethtool"),
    ("ping", "iputils-ping"),
    ("tcpdump", "tcpdump"),
    ("ip", "iproute2"),
    ("tc", "iproute2"),
    ("/usr/include/bpf/bpf_helpers.h", "libbpf-dev"),
    ("/usr/include/linux/bpf.h", "linux-libc-dev"),
)


def missing(*, docker: bool = True) -> list[str]:
    """Return the packages of missing programs and files, each once. ``docker=False`` leaves out what only
    Docker needs.
    """
    needed = OF_LABS + (OF_DOCKER if docker else ())
    return list(dict.fromkeys(package for what, package in needed if not present(what)))


def present(what: str) -> bool:
    """Return whether a program is there, or a file if its path is given."""
    if what.startswith("/"):
        return Path(what).exists()
    search = os.environ.get("PATH", "") + ":/usr/sbin:/sbin:/usr/local/sbin"
    return shutil.which(what, path=search) is not None
