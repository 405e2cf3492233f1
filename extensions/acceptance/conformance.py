"""``ringlight ocs conformance``: how a new optical switch is accepted."""

from __future__ import annotations

import json
import os
import platform
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ringlight.experiments.cli import ocs
from ringlight.experiments.cli.calls import Json
from ringlight.experiments.cli.common import echo, fail, say, show_json, table

if TYPE_CHECKING:
    from ringlight.testbed.rigs.rig import Rig

#: A line on what is going on comes at most so often, seconds.
_SAY_EVERY_S = 5.0
_MARKS = {"green": "ok", "failed": "FAILED", "skipped": "-"}

Driver = Annotated[
    list[str] | None,
    typer.Option(
        "--driver",
        metavar="NAME",
        help="Only this one; may be repeated. With --target: its driver.",
    ),
]
Target = Annotated[
    str,
    typer.Option(metavar="HOST:PORT", help="Address of a switch that exists already."),
]
Size = Annotated[
    int,
    typer.Option(
        min=0,
        help="Number of duplex faceplate ports; default of an emulated switch: 8.",
    ),
]
Username = Annotated[str, typer.Option(help="User name to log in with.")]
PasswordFile = Annotated[
    str, typer.Option(metavar="FILE", help="Its first line is the password.")
]
PasswordEnv = Annotated[
    str,
    typer.Option(
        metavar="VARIABLE", help="Environment variable that has the password."
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Another key of an inventory entry, such as tls=false.",
    ),
]
Profile = Annotated[str, typer.Option(help="Profile with its declared timing.")]
Ports = Annotated[
    str, typer.Option(metavar="1,2,17,18", help="The only ports that may be touched.")
]
Nic = Annotated[
    str,
    typer.Option(
        metavar="IFACE,IFACE",
        help="Interfaces of this machine that are plugged into these ports.",
    ),
]


Out = Annotated[
    Path | None,
    typer.Option(
        "--out",
        metavar="FOLDER",
        help="Write acceptance.json and the page index.html here.",
    ),
]


def register(app: typer.Typer) -> None:
    """Add these commands to those of ``ringlight ocs``."""
    ocs.commands.command()(conformance)
    ocs.commands.command()(compare)


def conformance(
    driver: Driver = None,
    target: Target = "",
    size: Size = 0,
    username: Username = "",
    password_file: PasswordFile = "",
    password_env: PasswordEnv = "",
    setting: Settings = None,
    profile: Profile = "",
    read_only: Annotated[
        bool, typer.Option("--read-only", help="Write nothing.")
    ] = False,
    ports: Ports = "",
    nic: Nic = "",
    check: Annotated[
        list[str] | None, typer.Option(help="Only this check; may be repeated.")
    ] = None,
    measure: Annotated[
        bool,
        typer.Option(
            "--measure",
            help="Also measure by traffic: dark time, speed, lost frames, loss.",
        ),
    ] = False,
    name: Annotated[
        str, typer.Option(help="Name of the switch on the page, if there is only one.")
    ] = "",
    out: Out = None,
    as_json: Json = False,
) -> None:
    """Test drivers and their switches against the 45 items of the conformance list.

    Without --target: every driver against an emulated switch that speaks its protocol, with packets; root.
    With --target: one driver against an existing switch. Only --ports are changed, and their cross-connects
    are restored. Exit code 1 if an item failed.

    Examples:
        ringlight ocs conformance
        ringlight ocs conformance --driver scpi --target 10.0.0.5:5025 --size 16 --out report
    """
    from ringlight.extensions.acceptance.checks import CHECKS
    from ringlight.extensions.acceptance.measure import measured
    from ringlight.extensions.acceptance.runner import accept

    known = {candidate.name: candidate for candidate in CHECKS}
    if strange := next((name for name in check or () if name not in known), None):
        fail(f"--check: there is no check {strange}; see --json", 2)
    checks = [known[name] for name in check] if check else CHECKS
    entry = _entry(
        driver, target, username, password_file, password_env, setting, profile
    )
    if measure and read_only:
        fail("--measure moves light, which --read-only forbids", 2)
    rigs = (
        _targets(entry, size, ports, nic, read_only)
        if target
        else _emulated(driver, profile, size)
    )
    if name and len(rigs) > 1:
        fail("--name: there are several; choose one with --driver", 2)
    if out is not None:
        _make(out)
    switches = []
    for usual, make in rigs.items():
        called = name or usual
        switches.append(accept(called, partial(make, False), checks, _progress(called)))
        say(f"{called}: {_sum_of(switches[-1])}")
        if measure:
            switches[-1]["measured"] = measured(
                partial(make, True), _progress(called, 0.0)
            )
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    machine = {
        "kernel": platform.release(),
        "processors": str(os.cpu_count()),
        "at": now,
    }
    document = {"acceptance": 1, "at": now, "machine": machine, "switches": switches}
    if out is not None:
        _write(document, out)
    if as_json:
        show_json(document)
    else:
        write(document)
    if any(
        candidate["state"] == "failed"
        for switch in switches
        for candidate in switch["items"]
    ):
        raise typer.Exit(1)


#: Makes a rig; told whether it is to be measured, which takes more ports.
Make = Callable[[bool], "Rig"]


def compare(
    folders: Annotated[
        list[Path],
        typer.Argument(metavar="FOLDER…", help="Folders that conformance --out wrote."),
    ],
    out: Annotated[
        Path, typer.Option("--out", metavar="FOLDER", help="Folder for the page.")
    ],
) -> None:
    """Make one page that compares switches that were accepted one by one.

    Examples:
        ringlight ocs compare piezo mems --out both
    """
    switches: list[Any] = []
    names: list[str] = []
    accepted_at = machine = None
    for folder in folders:
        path = folder / "acceptance.json" if folder.is_dir() else folder
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
            if document["acceptance"] != 1:
                fail(f"{path}: of another version ({document['acceptance']})", 2)
            names += [str(switch["name"]) for switch in document["switches"]]
            switches += document["switches"]
            accepted_at, machine = document["at"], document["machine"]
        except OSError as error:
            fail(f"{path}: {error.strerror}", 2)
        except (ValueError, KeyError, TypeError, RecursionError):
            fail(f"{path} is not what conformance --out writes", 2)
    if twice := next((name for name in names if names.count(name) > 1), None):
        fail(
            f"two of them are called {twice}; name them apart with --name when they are accepted",
            2,
        )
    _make(out)
    _write(
        {"acceptance": 1, "at": accepted_at, "machine": machine, "switches": switches},
        out,
    )


def _make(out: Path) -> None:
    """Make the folder of --out, before minutes of checks. Raises UserError."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=out):
            pass
    except OSError as error:
        fail(f"--out: {out}: {error.strerror}", 2)


def _write(document: Mapping[str, Any], out: Path) -> None:
    from ringlight.extensions.acceptance.page import render

    (out / "acceptance.json").write_text(
        json.dumps(document, indent=1) + "\n", encoding="utf-8"
    )
    (out / "index.html").write_text(render(document, out / "figures"), encoding="utf-8")
    say(f"wrote {out / 'index.html'}")


def _emulated(
    drivers: Sequence[str] | None, profile: str, size: int
) -> Mapping[str, Make]:
    from ringlight.testbed import services
    from ringlight.testbed.rigs import rigs
    from ringlight.testbed.rigs.emulated import (
        HOSTS,
        MAX_SIZE,
        MEASURED_HOSTS,
        MEASURED_SIZE,
        SIZE,
        ScpiRig,
    )

    known = rigs()
    if size and not HOSTS < size <= MAX_SIZE:
        fail(f"--size {size}: of an emulated switch {HOSTS + 1} to {MAX_SIZE}", 2)
    if strange := next((name for name in drivers or () if name not in known), None):
        fail(
            f"--driver: there is no emulated switch for {strange}; there are {', '.join(known)}",
            2,
        )
    if os.geteuid() != 0:
        fail(f"{services.root_needed('build networks')}; or name a --target")
    chosen = {
        name: rig for name, rig in known.items() if not drivers or name in drivers
    }
    for name in [name for name, rig in chosen.items() if rig.missing()]:
        say(f"{name} is left out: {chosen.pop(name).missing()}")
    for name in chosen:
        _check_kind(name)

    def making(rig: type[Rig]) -> Make:
        def make(to_measure: bool) -> Rig:
            if not issubclass(rig, ScpiRig) or rig.wavelength is not None:
                return rig()
            if to_measure:
                return rig(MEASURED_SIZE, profile or None, MEASURED_HOSTS)
            return rig(size or SIZE, profile or None)

        return make

    called = f", {profile}" if profile else ""
    makers = {f"{name}{called}": making(rig) for name, rig in chosen.items()}
    return makers or fail("--driver: none of them can be tested on this machine")


def _check_kind(name: str) -> None:
    """Check that the driver that a rig is for can be made, and its switch emulated. Raises UserError."""
    from ringlight.controller.optical.registry import check_driver
    from ringlight.fabric.optical_drivers import driver_kinds
    from ringlight.testbed.emulation.optical.session import protocol_named

    kind = driver_kinds().get(name)
    if kind is None:
        return
    try:
        check_driver(name)
        if kind.protocol is not None:
            protocol_named(kind.protocol)
    except ValueError as error:
        fail(f"--driver {name}: {error}", 2)


def _entry(
    drivers: Sequence[str] | None,
    target: str,
    username: str,
    password_file: str,
    password_env: str,
    settings: Sequence[str] | None,
    profile: str,
) -> dict[str, Any]:
    """Return the inventory entry of the target, made from the options. Raises UserError."""
    from ringlight.fabric.optical_profiles import profiles

    if profile and profile not in profiles():
        fail(
            f"--profile: there is no {profile!r}; there are {', '.join(profiles())}", 2
        )
    entry: dict[str, Any] = {
        "address": target,
        "profile": profiles()[profile or "ideal"].declared(),
    }
    if target and len(drivers or ()) != 1:
        fail("--target: name its --driver, one", 2)
    given = {
        "username": username,
        "password_file": password_file,
        "password_env": password_env,
    }
    entry |= {
        "driver": (drivers or [""])[0],
        **{key: value for key, value in given.items() if value},
    }
    for text in settings or ():
        key, separator, value = text.partition("=")
        if not separator or not key:
            fail(f"--set: {text!r} is not KEY=VALUE", 2)
        try:
            entry[key] = json.loads(value)
        except ValueError:
            entry[key] = value
    if not target and (settings or any(given.values())):
        fail(
            "--username, --password-file, --password-env and --set are of a --target", 2
        )
    return entry


def _targets(
    entry: Mapping[str, Any], size: int, ports: str, nic: str, read_only: bool
) -> Mapping[str, Make]:
    from ringlight.extensions.acceptance.device import DeviceRig

    if not size:
        fail("--target: say its --size, in duplex faceplate ports", 2)
    numbers = [word.strip() for word in ports.split(",") if word.strip()]
    if wrong := next((word for word in numbers if not word.isdigit()), None):
        fail(f"--ports: {wrong!r} is not a port's number", 2)
    nics = [word.strip() for word in nic.split(",") if word.strip()]
    if len(nics) not in (0, 2):
        fail("--nic: name two interfaces", 2)

    def make(to_measure: bool) -> Rig:
        try:
            return DeviceRig(
                entry,
                size,
                [int(word) for word in numbers],
                nics=nics,
                read_only=read_only,
            )
        except ValueError as error:
            fail(str(error), 2)
        except OSError as error:
            fail(f"--nic {nic}: {error}", 2)

    return {f"{entry['driver']} at {entry['address']}": make}


def _progress(name: str, every_s: float = _SAY_EVERY_S) -> Callable[[str], None]:
    last_said_s = time.monotonic()

    def progress(text: str) -> None:
        nonlocal last_said_s
        if time.monotonic() - last_said_s >= every_s:
            last_said_s = time.monotonic()
            say(f"{name}: {text}")

    return progress


def _sum_of(switch: Mapping[str, Any]) -> str:
    states = [item["state"] for item in switch["items"]]
    counts = (
        f"{states.count(state)} {state}" for state in ("green", "failed", "skipped")
    )
    return f"{', '.join(counts)} of {len(states)} items, {len(switch['checks'])} checks in {switch['seconds']} s"


def write(document: Mapping[str, Any]) -> None:
    """Print the table of items by switch, what failed, and what each switch lacks."""
    switches = document["switches"]
    rows = []
    for number, item in enumerate(switches[0]["items"]):
        states = [_MARKS[switch["items"][number]["state"]] for switch in switches]
        rows.append([item["item"], item["what"], *states])
    table(["", "item", *(switch["name"] for switch in switches)], rows)
    for state, word in (("failed", "FAILED"), ("skipped", "lacks")):
        item_numbers: dict[tuple[str, str], list[int]] = {}
        for switch in switches:
            for item in switch["items"]:
                if item["state"] == state:
                    item_numbers.setdefault((switch["name"], item["text"]), []).append(
                        item["item"]
                    )
        for (name, text), numbers in item_numbers.items():
            echo(f"{name} {word} {text} (item {', '.join(map(str, numbers))})")
