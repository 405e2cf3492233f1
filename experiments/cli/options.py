"""Options that several commands have, alone or as groups."""

from __future__ import annotations

import functools
import inspect
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from ringlight.experiments.cli.common import fail, say
from ringlight.experiments.runner.executor_kinds import (
    RemoteLabs,
    executor_kinds,
    remote_labs,
)
from ringlight.experiments.runner.page_kinds import page_flags
from ringlight.testbed.devices import DeviceKind, optional_kinds
from ringlight.testbed.lab_programs import ProgramOptions, program_kinds

if TYPE_CHECKING:
    from ringlight.experiments.language.expand import Experiment, ScaleFor
    from ringlight.experiments.language.plan import RunPlan, Setting
    from ringlight.testbed.addresses import Addresses

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
        "--json",
        help="Print the result as JSON, last, on standard output.",
        callback=_for_json_alone,
    ),
]
Runtime = Annotated[
    Literal["docker", "namespace"],
    typer.Option(
        "--runtime",
        help="docker: a container per GPU; namespace: processes in Mininet hosts.",
    ),
]
RunsFolder = Annotated[Path, typer.Option("--runs", help="Folder for run folders.")]
ScenarioFile = Annotated[
    Path, typer.Argument(metavar="SCENARIO", help="Scenario file (YAML).")
]
#: Of commands that go on with a run folder, which has its file.
ResumedFile = Annotated[
    Path | None,
    typer.Argument(
        metavar="SCENARIO",
        help="Scenario file (YAML); default with --resume RUN: the file of RUN.",
    ),
]
Arms = Annotated[
    list[str] | None,
    typer.Option("--arm", metavar="ARM", help="Only this arm; may be repeated."),
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
    typer.Option(
        "--repeat", min=1, max=1000, help="Number of repeats, in place of the file's."
    ),
]
RUNS = Path("runs")
#: Flags of extensions' pages that were given. :func:`with_groups` makes an option of each.
PageFlags = Annotated[tuple[str, ...], "flags"]
#: Names of extensions' devices that a lab has. :func:`with_groups` makes an option of each kind's name.
Devices = tuple[str, ...]
#: What was said of each kind of program, whose options :func:`with_groups` takes for this.
Programs = tuple[ProgramOptions, ...]
#: Addresses of other machines that compute, by the name of their kind of executor. :func:`with_groups` makes
#: an option of each kind's name.
Executors = dict[str, str]
#: What was said of machines on which labs may be built, by the name of their kind of executor;
#: :func:`with_groups` takes their options for this.
Remote = dict[str, RemoteLabs]


def is_scenario(where: str | None) -> bool:
    """Return whether ``where`` names a scenario file and not a lab; False for None."""
    return where is not None and (
        Path(where).suffix in (".yaml", ".yml") or "/" in where
    )


@dataclass(frozen=True)
class Runs:
    """Options that select runs of a scenario file."""

    arm: Arms = None
    point: Annotated[
        list[str] | None,
        typer.Option(
            "--point",
            metavar="NAME",
            help="Only this point of a sweep, such as ring-3; may be repeated.",
        ),
    ] = None
    sets: Sets = None
    repeat: Repeat = None
    resume: Annotated[
        Path | None,
        typer.Option("--resume", metavar="RUN", help="Continue in this run folder."),
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
            scenario,
            self.repeat,
            self.resume,
            self.sets or (),
            scale_for=scale_for or scale_here,
        )


@dataclass(frozen=True)
class Place:
    """Options that select one fabric of a scenario file."""

    arm: Annotated[
        str | None,
        typer.Option(
            "--arm",
            metavar="ARM",
            help="The arm whose fabric to use, if there are several.",
        ),
    ] = None
    point: Annotated[
        str | None,
        typer.Option(
            "--point",
            metavar="NAME",
            help="The point of a sweep to use, such as ring-3.",
        ),
    ] = None
    sets: Sets = None

    def setting(self, scenario: Path, scale_for: ScaleFor | None = None) -> Setting:
        """Return the selected setting, whose parts can be plugged together.

        ``scale_for``: chooses the scale if the file leaves it to the machine. Raises UserError, and
        ScenarioError naming the arms or points to choose from.
        """
        return self.runs(scenario, scale_for)[0].setting

    def runs(self, scenario: Path, scale_for: ScaleFor | None = None) -> list[RunPlan]:
        """Return the selected runs, which share one setting. ``scale_for`` and errors as :meth:`setting`."""
        from ringlight.experiments.language.expand import load
        from ringlight.experiments.runner.machine import scale_here
        from ringlight.fabric.keys import plugged
        from ringlight.fabric.values import under

        experiment = load(
            scenario, sets=self.sets or (), scale_for=scale_for or scale_here
        )
        setting = experiment.one_setting(self.arm, self.point)
        try:
            plugged(setting.fabric)
        except ValueError as error:
            fail(f"{scenario}: {under('fabric', error)}", 2)
        arms = [self.arm] if self.arm else []
        points = [self.point] if self.point else []
        return experiment.plans_of(arms, points)


@dataclass(frozen=True)
class LabOptions:
    """Options of a lab that is built for runs."""

    runtime: Runtime = "docker"
    rest: Annotated[
        str, typer.Option("--rest", help="HOST:PORT of the controller's REST API.")
    ] = REST
    openflow: Annotated[
        str,
        typer.Option(
            "--openflow", help="HOST:PORT where switches find the controller."
        ),
    ] = "127.0.0.1:6653"
    devices: Devices = ()

    def addresses(self) -> Addresses:
        """Return the listen addresses of the controller, with the environment's token (None without one)."""
        from ringlight.testbed.addresses import Addresses

        return Addresses(
            self.rest, self.openflow, os.environ.get("RINGLIGHT_TOKEN") or None
        )


@dataclass(frozen=True)
class OpenLab(LabOptions):
    """Options of a lab that other machines may reach, and in which the user's programs may run."""

    tls_cert: Annotated[
        Path | None,
        typer.Option(
            "--tls-cert",
            metavar="FILE",
            help="REST's certificate, with its chain (PEM).",
        ),
    ] = None
    tls_key: Annotated[
        Path | None,
        typer.Option(
            "--tls-key", metavar="FILE", help="The certificate's private key (PEM)."
        ),
    ] = None
    rest_insecure: Annotated[
        bool,
        typer.Option("--rest-insecure", help="Allow REST beyond loopback without TLS."),
    ] = False
    openflow_insecure: Annotated[
        bool,
        typer.Option(
            "--openflow-insecure",
            help="Allow OpenFlow, which has no authentication, beyond loopback.",
        ),
    ] = False
    programs: Programs = ()
    flags: PageFlags = ()

    @property
    def requested_programs(self) -> list[ProgramOptions]:
        """Return the options of the programs that are to run."""
        return [options for options in self.programs if options.is_requested]

    def announce_pages(self) -> None:
        """Tell where the lab is to be seen, on the pages that were asked for."""
        for flag in self.flags:
            page_flags()[flag].announce(self.addresses().url)

    def addresses(self) -> Addresses:
        """Return the listen addresses of the controller. Raises UserError if a TLS file is missing."""
        from dataclasses import replace

        if (self.tls_cert is None) != (self.tls_key is None):
            missing = "cert" if self.tls_cert is None else "key"
            fail(f"--tls-{missing}: missing; TLS needs certificate and key", 2)
        insecure = {"rest": self.rest_insecure, "openflow": self.openflow_insecure}
        return replace(
            super().addresses(),
            tls=None
            if self.tls_cert is None or self.tls_key is None
            else (self.tls_cert, self.tls_key),
            insecure=frozenset(door for door, may in insecure.items() if may),
        )


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
            inspect.Parameter(
                name, inspect.Parameter.KEYWORD_ONLY, default=False, annotation=option
            )
        )
    return options


@functools.cache
def program_options() -> tuple[type[Any], ...]:
    """Return the options of each kind of program. Raises ExtensionError."""
    return tuple(kind.options() for kind in program_kinds().values())


def _executor_option(name: str, help_text: str) -> inspect.Parameter:
    """Return the parameter of an option for the address of a kind's machines."""
    option = typer.Option(f"--{name}", metavar="ADDRESS", help=help_text)
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(
        name, kind, default=None, annotation=Annotated[str | None, option]
    )


def _taken(group: type[Any], given: dict[str, Any]) -> Any:
    """Return a group's object, made of its options, which are taken out of ``given``."""
    return group(**{field.name: given.pop(field.name) for field in fields(group)})


def _page_flag(name: str, help_text: str) -> inspect.Parameter:
    """Return the parameter of a page's flag."""
    option = typer.Option(f"--{name.replace('_', '-')}", help=help_text)
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(
        name, kind, default=False, annotation=Annotated[bool, option]
    )


@dataclass(frozen=True)
class _Additions:
    """Options that extensions add to commands with a parameter of a certain annotation.

    ``options``: returns the parameters in place of it. ``taken``: takes their values out of those given, and
    returns the parameter's own.
    """

    annotation: Any
    options: Callable[[], list[inspect.Parameter]]
    taken: Callable[[dict[str, Any]], Any]


def _options_of(groups: Iterable[type[Any]]) -> list[inspect.Parameter]:
    """Return the parameters of groups of options."""
    return [
        option
        for group in groups
        for option in inspect.signature(group, eval_str=True).parameters.values()
    ]


def _chosen(names: Iterable[str], given: dict[str, Any]) -> tuple[str, ...]:
    """Return the names of the flags that were given, all of which are taken out of ``given``."""
    return tuple(name for name in list(names) if given.pop(name))


def _taken_addresses(given: dict[str, Any]) -> dict[str, str]:
    """Return the addresses of executors that were given, by kind, which are taken out of ``given``."""
    addresses = {name: given.pop(name) for name in executor_kinds()}
    return {name: address for name, address in addresses.items() if address is not None}


_ADDITIONS = (
    _Additions(
        Devices,
        lambda: _device_options(optional_kinds()),
        lambda given: _chosen(optional_kinds(), given),
    ),
    _Additions(
        Programs,
        lambda: _options_of(program_options()),
        lambda given: tuple(_taken(group, given) for group in program_options()),
    ),
    _Additions(
        PageFlags,
        lambda: [_page_flag(name, page.help) for name, page in page_flags().items()],
        lambda given: _chosen(page_flags(), given),
    ),
    _Additions(
        Executors,
        lambda: [
            _executor_option(name, kind.help) for name, kind in executor_kinds().items()
        ],
        _taken_addresses,
    ),
    _Additions(
        Remote,
        lambda: _options_of(remote_labs().values()),
        lambda given: {
            name: _taken(labs, given) for name, labs in remote_labs().items()
        },
    ),
)


def _additions_of(parameter: inspect.Parameter) -> _Additions | None:
    """Return what extensions add in place of a parameter; None if it stands for itself."""
    return next(
        (added for added in _ADDITIONS if parameter.annotation == added.annotation),
        None,
    )


def with_groups(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command whose options include those of each parameter that is a group, and those that
    extensions add: devices, programs, flags, executors and labs on other machines.

    The command gets one object for each. Raises ExtensionError.
    """
    groups: dict[str, tuple[type, list[str]]] = {}
    parameters: list[inspect.Parameter] = []
    for own in inspect.signature(command, eval_str=True).parameters.values():
        if isinstance(own.annotation, type) and is_dataclass(own.annotation):
            options = inspect.signature(own.annotation, eval_str=True).parameters
            groups[own.name] = own.annotation, list(options)
            parameters += options.values()
        else:
            parameters.append(own)
    expanded: list[inspect.Parameter] = []
    added: dict[str, _Additions] = {}
    for parameter in parameters:
        additions = _additions_of(parameter)
        if additions is None:
            expanded.append(parameter)
        else:
            expanded += additions.options()
            added[parameter.name] = additions

    @functools.wraps(command)
    def called(**given: Any) -> None:
        for name, additions in added.items():
            given[name] = additions.taken(given)
        for name, (group, options) in groups.items():
            given[name] = group(**{option: given.pop(option) for option in options})
        command(**given)

    # What is left of annotations names the groups.
    called.__annotations__ = {}
    only_names = [
        parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in expanded
    ]
    called.__dict__["__signature__"] = inspect.Signature(only_names)
    return called
