"""Describe the environment of a run for environment.json, so that a reader can judge and repeat the run."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import time
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from ringlight.experiments.language.plan import Setting
from ringlight.experiments.record.version import ROOT
from ringlight.fabric.frames import describe
from ringlight.fabric.units import format_rate

_PACKAGES = (
    "ringlight",
    "os-ken",
    "mininet",
    "numpy",
    "highspy",
    "networkx",
    "fastapi",
    "matplotlib",
)
_PROGRAMS = {
    "open_vswitch": ["ovs-vswitchd", "--version"],
    "docker": ["dockerd", "--version"],
    "iproute2": ["ip", "-V"],
    "clang": ["clang", "--version"],
}


def describe_setting(setting: Setting) -> dict[str, Any]:
    """Return scales and rates of one lab. Rates are emulated, with their unit."""
    fabric, scale = setting.fabric, setting.scale
    return {
        "fabric": setting.name,
        "time_dilation": scale.time,
        "payload_scale": scale.payload,
        "mtu_bytes": setting.frames.mtu_bytes,
        "short_queues": list(describe(fabric, setting.frames)),
        "emulated_rates": {
            format_rate(rate): format_rate(rate / scale.rate)
            for rate in sorted(
                {link.rate_bps for link in (*fabric.links, *fabric.cables)}
            )
        },
    }


def describe_machine(simulated: bool) -> dict[str, Any]:
    """Return machine and versions. If ``simulated``, the versions of the emulation's programs are left
    out."""
    programs = {} if simulated else _PROGRAMS
    return {
        **({"commit": commit} if (commit := _commit()) else {}),
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "wall_clock_minus_monotonic_s": time.time() - time.monotonic(),
        "kernel": platform.release(),
        "distribution": platform.freedesktop_os_release().get("PRETTY_NAME", "unknown"),
        "python": platform.python_version(),
        "processors": os.cpu_count(),
        "processor": _processor(),
        "memory_GiB": round(
            os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1
        ),
        "tcp_default": _read("/proc/sys/net/ipv4/tcp_congestion_control"),
        "versions": {
            **{name: _package(name) for name in _PACKAGES},
            **{name: _program(command) for name, command in programs.items()},
        },
    }


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except OSError:
        return "unknown"


def _processor() -> str:
    model = re.search(r"^model name\s*: (.+)$", _read("/proc/cpuinfo"), re.MULTILINE)
    return model[1].strip() if model else platform.machine()


def _package(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "not installed"


def _commit() -> str:
    """Return the commit of the sources, ``-dirty`` if files differ from it; empty if git does not know."""
    if not (ROOT / ".git").exists():
        # An installed package: git would answer for the project in whose folder it is.
        return ""
    output, _ = _outputs(
        "git",
        "-C",
        str(ROOT),
        "describe",
        "--always",
        "--dirty",
        "--abbrev=10",
        "--exclude",
        "*",
    )
    return output


def _program(command: list[str]) -> str:
    path = shutil.which(
        command[0], path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    )
    if path is None:
        return "not installed"
    return next(filter(None, (*_outputs(path, *command[1:]), "unknown"))).splitlines()[
        0
    ]


def _outputs(*command: str) -> tuple[str, str]:
    """Return what a program writes to its output and to its errors; both empty if the program cannot be
    run."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=10, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return "", ""
    return done.stdout.strip(), done.stderr.strip()
