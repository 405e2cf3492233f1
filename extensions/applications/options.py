"""Options of commands whose labs may have applications."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import typer

from ringlight.experiments.cli.common import fail
from ringlight.extensions.applications.process import APP, Applications

if TYPE_CHECKING:
    from ringlight.experiments.language.plan import Setting

#: Ryu's own applications that ``--app`` takes by name, with the file that brings each.
_SHIPPED = dict.fromkeys(
    ("ryu.app.rest_topology", "os_ken.app.rest_topology"),
    Path(__file__).resolve().parent / "apps" / "rest_topology.py",
)


def _application_files(chosen: list[Path] | None) -> list[Path] | None:
    """Replace the names of Ryu's applications that come with Ringlight by their files."""
    return (
        None if chosen is None else [_SHIPPED.get(str(path), path) for path in chosen]
    )


@dataclass(frozen=True)
class ApplicationOptions:
    """Options of a lab in which applications may run."""

    app_openflow: Annotated[
        str,
        typer.Option(
            "--app-openflow", help="HOST:PORT where switches find the applications."
        ),
    ] = "127.0.0.1:6654"
    app_rest: Annotated[
        str,
        typer.Option("--app-rest", help="HOST:PORT of the applications' REST routes."),
    ] = "127.0.0.1:8081"
    app: Annotated[
        list[Path] | None,
        typer.Option(
            "--app",
            metavar="FILE",
            help="Ryu or os-ken application to run with the lab, or ryu.app.rest_topology; may be repeated.",
            callback=_application_files,
        ),
    ] = None
    observe_links: Annotated[
        bool,
        typer.Option(
            "--observe-links",
            help="Let the applications discover links (LLDP), like Ryu's manager.",
        ),
    ] = False
    app_all: Annotated[
        bool,
        typer.Option(
            "--app-all",
            help="Give the applications all packet switches, not only their own.",
        ),
    ] = False

    name: ClassVar[str] = "applications"
    needs_hosts: ClassVar[bool] = False

    @property
    def is_requested(self) -> bool:
        return bool(self.app)

    @property
    def is_asked(self) -> bool:
        return bool(self.app or self.app_all or self.observe_links)

    def given_to(self, scenario: Path, settings: Sequence[Setting]) -> list[Setting]:
        """Return the settings, with all packet switches left to applications if the options say so.

        Raises UserError.
        """
        if self.app_all and not self.app:
            fail("--app-all: which application? name its file with --app", 2)
        if self.observe_links and not self.app:
            fail("--observe-links: for which application? name its file with --app", 2)
        copies = [
            all_for_applications(setting) if self.app_all else setting
            for setting in settings
        ]
        if self.app and not any(map(_has_switch, copies)):
            remedy = (
                "it has no packet switches"
                if self.app_all
                else "say 'controller: app' of it in the fabric, or give them all with --app-all"
            )
            fail(
                f"--app: no packet switch of {scenario} is for applications; {remedy}",
                2,
            )
        return copies

    def listens(self) -> Mapping[str, str]:
        """Return the addresses of the process, by option. Raises LabError for a file that there is not, and
        for routes that another machine could call."""
        from ringlight.testbed.lab import LabError

        for path in self.app or ():
            if not path.is_file():
                raise LabError(f"--app {path}: there is no such file")
        if self.app_rest.rpartition(":")[0].strip("[]") not in (
            "127.0.0.1",
            "::1",
            "localhost",
        ):
            raise LabError(
                f"--app-rest {self.app_rest}: not a loopback address, and it asks for no token"
            )
        return {"--app-openflow": self.app_openflow, "--app-rest": self.app_rest}

    def facts(self) -> Mapping[str, Any]:
        # The same file may be another one tomorrow.
        files = {
            str(path): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in self.app or ()
        }
        return {"apps": files} if files else {}

    def write(
        self, path: Path, url: str, cacert: str | None, token: Path | None, logs: Path
    ) -> None:
        Applications(
            files=tuple(str(file.absolute()) for file in self.app or ()),
            openflow=self.app_openflow,
            rest=self.app_rest,
            controller=url,
            cacert=cacert,
            log=logs / "apps.log",
            token_file=token,
            observe_links=self.observe_links,
        ).write(path)


def _has_switch(setting: Setting) -> bool:
    return any(
        switch.controller == APP for switch in setting.fabric.packet_switches.values()
    )


def all_for_applications(setting: Setting) -> Setting:
    """Return a copy of a setting whose packet switches are all left to applications."""
    section = {**setting.section, "controller": APP}
    if "packet_switches" in section:
        section["packet_switches"] = {
            name: {key: value for key, value in entry.items() if key != "controller"}
            for name, entry in section["packet_switches"].items()
        }
    switches = {
        name: replace(switch, controller=APP)
        for name, switch in setting.fabric.packet_switches.items()
    }
    return replace(
        setting,
        section=section,
        fabric=replace(setting.fabric, packet_switches=switches),
    )
