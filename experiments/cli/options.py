"""Options that several commands have, alone or as groups."""

from __future__ import annotations

import functools
import inspect
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from ringlight.experiments.cli.common import fail, say
from ringlight.fabric.extension import loaders
from ringlight.testbed.devices import DeviceKind, optional_kinds
from ringlight.testbed.lab_programs import ProgramOptions, program_kinds

if TYPE_CHECKING:
    from ringlight.experiments.language.expand import Experiment, ScaleFor
    from ringlight.experiments.language.plan import Setting
    from ringlight.testbed.hosts.spread import Over
    from ringlight.testbed.processes import Addresses

EXPERIMENTS, MACHINE = "Experiments", "Labs and this machine"
REST = "127.0.0.1:8080"


def _for_json_alone(requested: bool) -> bool:
    """Keep standard output for what Python prints. Libraries of C print past it, and often only at the end:
    the solver HiGHS has a line that no option turns off. Theirs goes to standard error."""
    out, err = sys.stdout, sys.stderr
    if requested and out is sys.__stdout__ and out and err:
        own = os.dup(out.fileno())
        os.dup2(err.fileno(), out.fileno())
        sys.stdout = os.fdopen(own, "w", encoding=out.encoding, errors=out.errors)
    return requested


Json = Annotated[
    bool,
    typer.Option(
        "--json", help="Print the result as JSON, last, on standard output.", callback=_for_json_alone
    ),
]
Runtime = Annotated[
    Literal["docker", "namespace"],
    typer.Option("--runtime", help="docker: a container per GPU; namespace: processes in Mininet hosts."),
]
RunsFolder = Annotated[Path, typer.Option("--runs", help="Folder for run folders.")]
ScenarioFile = Annotated[Path, typer.Argument(metavar="SCENARIO", help="Scenario file (YAML).")]
#: Of commands that go on with a run folder, which has its file.
ResumedFile = Annotated[
    Path | None,
    typer.Argument(
        metavar="SCENARIO", help="Scenario file (YAML); with --resume RUN by default that of RUN."
    ),
]
Arms = Annotated[
    list[str] | None, typer.Option("--arm", metavar="ARM", help="Only this arm; may be repeated.")
]
Sets = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="PATH=VALUE",
        help="Value (YAML) for a dotted path, in place of the file's, its arms' and its sweep's; may be "
        "repeated.",
    ),
]
Repeat = Annotated[
    int | None,
    typer.Option("--repeat", min=1, max=1000, help="Number of repeats, in place of the file's."),
]
RUNS = Path("runs")
#: Names of extensions' flags that were given. :func:`with_groups` makes an option of each.
LabFlags = Annotated[tuple[str, ...], "flags"]
#: Names of extensions' devices that a lab has. :func:`with_groups` makes an option of each kind's name.
Devices = tuple[str, ...]
#: What was said of each kind of program, whose options :func:`with_groups` takes for this.
Programs = tuple[ProgramOptions, ...]
Dask = Annotated[
    str | None,
    typer.Option(
        "--dask",
        metavar="ADDRESS",
        help="Build labs on hosts: workers of this Dask scheduler (tls://HOST:PORT) with the resource HOST.",
    ),
]


@dataclass(frozen=True)
class Runs:
    """Options that select runs of a scenario file."""

    arm: Arms = None
    point: Annotated[
        list[str] | None,
        typer.Option(
            "--point", metavar="NAME", help="Only this point of a sweep, as ring-3; may be repeated."
        ),
    ] = None
    sets: Sets = None
    repeat: Repeat = None
    resume: Annotated[
        Path | None, typer.Option("--resume", metavar="RUN", help="Continue in this run folder.")
    ] = None

    def file(self, scenario: Path | None) -> Path:
        """Return the scenario file that is meant. Raises UserError if there is none."""
        if scenario is not None:
            return scenario
        if self.resume is None:
            fail("which SCENARIO? name a file, or a run folder with --resume RUN", 2)
        return self.resume / "scenario.yaml"

    def load(self, scenario: Path, scale_for: ScaleFor | None = None) -> Experiment:
        """Return the experiment of a scenario file, with the values that the options set.

        ``scale_for``: chooses the scale if the file leaves it to the machine. Raises ScenarioError.
        """
        from ringlight.experiments.runner.command import load_checked
        from ringlight.experiments.runner.machine import scale_here

        return load_checked(
            scenario, self.repeat, self.resume, self.sets or (), scale_for=scale_for or scale_here
        )


@dataclass(frozen=True)
class Place:
    """Options that select one fabric of a scenario file."""

    arm: Annotated[
        str | None,
        typer.Option("--arm", metavar="ARM", help="The arm whose fabric to use, if there are several."),
    ] = None
    point: Annotated[
        str | None,
        typer.Option("--point", metavar="NAME", help="The point of a sweep to use, such as ring-3."),
    ] = None
    sets: Sets = None

    def setting(self, scenario: Path, scale_for: ScaleFor | None = None) -> Setting:
        """Return the selected setting, whose parts can be plugged together.

        ``scale_for``: chooses the scale if the file leaves it to the machine. Raises UserError, and
        ScenarioError naming the arms or points to choose from.
        """
        from ringlight.experiments.language.expand import load
        from ringlight.experiments.runner.machine import scale_here
        from ringlight.fabric.keys import plugged
        from ringlight.fabric.values import under

        experiment = load(scenario, sets=self.sets or (), scale_for=scale_for or scale_here)
        setting = experiment.one_setting(self.arm, self.point)
        try:
            plugged(setting.fabric)
        except ValueError as error:
            fail(f"{scenario}: {under('fabric', error)}", 2)
        return setting


@dataclass(frozen=True)
class LabOptions:
    """Options of a lab that is built for runs."""

    runtime: Runtime = "docker"
    rest: Annotated[str, typer.Option("--rest", help="HOST:PORT of the controller's REST API.")] = REST
    openflow: Annotated[
        str, typer.Option("--openflow", help="HOST:PORT where switches find the controller.")
    ] = "127.0.0.1:6653"
    devices: Devices = ()

    def addresses(self) -> Addresses:
        """Return the listen addresses of the controller, with the environment's token (None without one)."""
        from ringlight.testbed.processes import Addresses

        return Addresses(self.rest, self.openflow, os.environ.get("RINGLIGHT_TOKEN") or None)


@dataclass(frozen=True)
class OpenLab(LabOptions):
    """Options of a lab that other machines may reach, and in which the user's programs may run."""

    tls_cert: Annotated[
        Path | None,
        typer.Option("--tls-cert", metavar="FILE", help="REST's certificate, with its chain (PEM)."),
    ] = None
    tls_key: Annotated[
        Path | None, typer.Option("--tls-key", metavar="FILE", help="The certificate's private key (PEM).")
    ] = None
    rest_insecure: Annotated[
        bool, typer.Option("--rest-insecure", help="Let REST beyond loopback go without TLS.")
    ] = False
    openflow_insecure: Annotated[
        bool,
        typer.Option(
            "--openflow-insecure",
            help="Let OpenFlow, which asks nobody who they are, be open beyond loopback.",
        ),
    ] = False
    programs: Programs = ()
    flags: LabFlags = ()

    @property
    def wanted_programs(self) -> list[ProgramOptions]:
        """Return the options of the programs that are to run."""
        return [options for options in self.programs if options.is_wanted]

    def heed_flags(self) -> None:
        """Do what the flags of extensions ask for."""
        for name in self.flags:
            lab_flags()[name](self.addresses().url)

    def addresses(self) -> Addresses:
        """Return the listen addresses of the controller. Raises UserError if a TLS file is missing."""
        from dataclasses import replace

        if (self.tls_cert is None) != (self.tls_key is None):
            missing = "cert" if self.tls_cert is None else "key"
            fail(f"--tls-{missing}: missing; TLS needs certificate and key", 2)
        insecure = {"rest": self.rest_insecure, "openflow": self.openflow_insecure}
        return replace(
            super().addresses(),
            tls=None if self.tls_cert is None or self.tls_key is None else (self.tls_cert, self.tls_key),
            insecure=frozenset(door for door, may in insecure.items() if may),
        )


@dataclass(frozen=True)
class OverHosts:
    """Options of one lab over several hosts."""

    hosts: Annotated[
        int | None,
        typer.Option("--hosts", metavar="N", min=2, max=64, help="With --dask: one lab over N hosts."),
    ] = None
    vxlan_port: Annotated[
        int,
        typer.Option("--vxlan-port", min=1, max=65535, help="UDP port of light between the hosts of a lab."),
    ] = 14789
    vxlan_number: Annotated[
        int | None,
        typer.Option(
            "--vxlan-number",
            min=1,
            max=(1 << 24) - 1,
            help="VXLAN number of a lab's first cut fibre; the others follow. Default: drawn.",
        ),
    ] = None

    wireguard: Annotated[
        bool,
        typer.Option(
            "--wireguard",
            help="Only where light between hosts is encrypted: workers are at WireGuard addresses.",
        ),
    ] = False

    def chosen(self) -> Over | None:
        """Return the options of a lab over several hosts; None for a lab on one host."""
        from ringlight.testbed.hosts.spread import Over

        if self.hosts is None:
            return None
        return Over(self.hosts, self.vxlan_port, self.vxlan_number, wireguard=self.wireguard)


def machine(lab: LabOptions) -> ScaleFor:
    """Return the function that chooses the scale of labs on this machine. It measures the machine if it is
    not calibrated.
    """
    from ringlight.experiments.runner.machine import scale_here

    return functools.partial(scale_here, devices=lab.devices, measure=say)


def _device_options(kinds: Mapping[str, DeviceKind]) -> list[inspect.Parameter]:
    """Return the parameter of an option for each kind of device."""
    options = []
    for name, kind in kinds.items():
        word = name.replace("_", "-")
        option = Annotated[bool, typer.Option(f"--{word}/--no-{word}", help=kind.help)]
        options.append(
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=False, annotation=option)
        )
    return options


@functools.cache
def program_options() -> tuple[type[Any], ...]:
    """Return the options of each kind of program. Raises ExtensionError."""
    return tuple(kind.options() for kind in program_kinds().values())


def _expanded(parameter: inspect.Parameter) -> list[inspect.Parameter]:
    """Return the parameters of the options that a parameter of extensions stands for; any other as it is."""
    if parameter.annotation == Devices:
        return _device_options(optional_kinds())
    if parameter.annotation == Programs:
        groups = (inspect.signature(group, eval_str=True).parameters for group in program_options())
        return [option for group in groups for option in group.values()]
    if parameter.annotation == LabFlags:
        return [_flag(name) for name in lab_flags()]
    return [parameter]


def _taken(group: type[Any], given: dict[str, Any]) -> Any:
    """Return a group's object, made of its options, which are taken out of ``given``."""
    return group(**{field.name: given.pop(field.name) for field in fields(group)})


@functools.cache
def lab_flags() -> dict[str, Callable[[str], None]]:
    """Return the functions of extensions' flags, by name. Raises ExtensionError."""
    return {name: load() for name, load in loaders("lab_flags").items()}


def _flag(name: str) -> inspect.Parameter:
    """Return the parameter of an extension's flag."""
    option = typer.Option(f"--{name.replace('_', '-')}", help=inspect.getdoc(lab_flags()[name]))
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, kind, default=False, annotation=Annotated[bool, option])


def with_groups(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command whose options include those of each parameter that is a group, and one for each kind
    of device where a parameter is of devices.

    The same goes for programs and flags. The command gets one object for each group. Raises ExtensionError.
    """
    groups: dict[str, tuple[type, list[str]]] = {}
    parameters: list[inspect.Parameter] = []
    for own in inspect.signature(command, eval_str=True).parameters.values():
        if own.annotation in (Runs, Place, LabOptions, OpenLab, OverHosts):
            options = inspect.signature(own.annotation, eval_str=True).parameters
            groups[own.name] = own.annotation, list(options)
            parameters += options.values()
        else:
            parameters.append(own)
    devices, programs = optional_kinds(), program_options()
    has_devices, has_programs, has_flags = (
        any(parameter.annotation == group for parameter in parameters)
        for group in (Devices, Programs, LabFlags)
    )
    parameters = [option for parameter in parameters for option in _expanded(parameter)]

    @functools.wraps(command)
    def called(**given: Any) -> None:
        if has_devices:
            given["devices"] = tuple(name for name in devices if given.pop(name))
        if has_programs:
            given["programs"] = tuple(_taken(group, given) for group in programs)
        if has_flags:
            given["flags"] = tuple(name for name in lab_flags() if given.pop(name))
        for name, (group, options) in groups.items():
            given[name] = group(**{option: given.pop(option) for option in options})
        command(**given)

    # What is left of annotations names the groups.
    called.__annotations__ = {}
    only_names = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in parameters]
    called.__dict__["__signature__"] = inspect.Signature(only_names)
    return called
