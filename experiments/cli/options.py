"""Options that several commands have."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ringlight.experiments.cli.common import fail

if TYPE_CHECKING:
    from ringlight.testbed.processes import Addresses

Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON, last, on standard output.")]
Runtime = Annotated[
    str, typer.Option("--runtime", help="docker: a container per GPU; namespace: processes in Mininet hosts.")
]
Rest = Annotated[str, typer.Option("--rest", help="HOST:PORT of the controller's REST API.")]
OpenFlow = Annotated[str, typer.Option("--openflow", help="HOST:PORT where switches find the controller.")]
Apps = Annotated[
    list[Path] | None,
    typer.Option("--app", metavar="FILE", help="Ryu or os-ken application to run, too; may be repeated."),
]
AppAll = Annotated[
    bool, typer.Option("--app-all", help="Applications get all packet switches, not only their own.")
]
AppOpenFlow = Annotated[
    str, typer.Option("--app-openflow", help="HOST:PORT where switches find the applications.")
]
AppRest = Annotated[str, typer.Option("--app-rest", help="HOST:PORT of the applications' REST routes.")]
TlsCert = Annotated[
    Path | None, typer.Option("--tls-cert", metavar="FILE", help="REST's certificate, with its chain (PEM).")
]
TlsKey = Annotated[
    Path | None, typer.Option("--tls-key", metavar="FILE", help="The certificate's private key (PEM).")
]
RestInsecure = Annotated[
    bool, typer.Option("--rest-insecure", help="Let REST beyond loopback go without TLS.")
]
OpenFlowInsecure = Annotated[
    bool,
    typer.Option(
        "--openflow-insecure", help="Let OpenFlow, which asks nobody who they are, be open beyond loopback."
    ),
]
RunsFolder = Annotated[Path, typer.Option("--runs", help="Folder for run folders.")]
ScenarioFile = Annotated[Path, typer.Argument(metavar="SCENARIO", help="Scenario file (YAML).")]
Arms = Annotated[
    list[str] | None, typer.Option("--arm", metavar="ARM", help="Only this arm; may be repeated.")
]
OneArm = Annotated[
    str | None,
    typer.Option("--arm", metavar="ARM", help="The arm whose fabric to use, if there are several."),
]
Points = Annotated[
    list[str] | None,
    typer.Option("--point", metavar="NAME", help="Only this point of a sweep, as ring-3; may be repeated."),
]
OnePoint = Annotated[
    str | None, typer.Option("--point", metavar="NAME", help="The point of a sweep to use, such as ring-3.")
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
Resume = Annotated[Path | None, typer.Option("--resume", metavar="RUN", help="Continue in this run folder.")]

EXPERIMENTS, MACHINE = "Experiments", "Labs and this machine"
REST, OPENFLOW, RUNS = "127.0.0.1:8080", "127.0.0.1:6653", Path("runs")
APP_REST, APP_OPENFLOW = "127.0.0.1:8081", "127.0.0.1:6654"


def addresses(
    rest: Rest = REST,
    openflow: OpenFlow = OPENFLOW,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    rest_insecure: RestInsecure = False,
    openflow_insecure: OpenFlowInsecure = False,
    app_openflow: AppOpenFlow = APP_OPENFLOW,
    app_rest: AppRest = APP_REST,
) -> Addresses:
    """Addresses of the controller and the applications; token from the environment. Raises UserError."""
    from ringlight.testbed.processes import Addresses

    if (tls_cert is None) != (tls_key is None):
        fail(f"--tls-{'cert' if tls_cert is None else 'key'}: missing; TLS needs certificate and key", 2)
    return Addresses(
        rest,
        openflow,
        os.environ.get("RINGLIGHT_TOKEN") or None,
        tls=None if tls_cert is None or tls_key is None else (tls_cert, tls_key),
        insecure=frozenset({"rest"} if rest_insecure else ())
        | ({"openflow"} if openflow_insecure else set()),
        app_openflow=app_openflow,
        app_rest=app_rest,
    )


def with_addresses(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of :func:`addresses` in place of its keyword ``addresses``, which it gets
    made of them."""
    # The class itself is loaded only when a lab is built.
    known = {"Addresses": object}
    theirs = inspect.signature(addresses, eval_str=True, locals=known).parameters
    options = [option.replace(kind=inspect.Parameter.KEYWORD_ONLY) for option in theirs.values()]
    parameters: list[inspect.Parameter] = []
    for own in inspect.signature(command, eval_str=True, locals=known).parameters.values():
        parameters += options if own.name == "addresses" else [own]

    @functools.wraps(command)
    def called(*args: Any, **given: Any) -> None:
        chosen = {name: given.pop(name) for name in theirs if name in given}
        command(*args, addresses=addresses(**chosen), **given)

    # What is left of annotations names the class.
    called.__annotations__ = {}
    called.__dict__["__signature__"] = inspect.Signature(parameters)
    return called


def check_runtime(runtime: str) -> str:
    """Raises UserError."""
    if runtime not in ("docker", "namespace"):
        fail(f"--runtime: {runtime!r} is neither docker nor namespace", 2)
    return runtime
