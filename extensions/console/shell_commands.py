"""Commands for hands in a lab that is up: the prompt, and its single commands."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ringlight.experiments.cli import calls, circuit_commands, options, rest
from ringlight.experiments.cli.common import answer, echo, fail, listing, say, table
from ringlight.experiments.cli.labs import processes_of_lab
from ringlight.extensions.console.looking import (
    PANEL,
    LabId,
    capture,
)
from ringlight.testbed.forkserver import forking
from ringlight.testbed.lab_programs import program_kinds
from ringlight.testbed.packages import check_packages
from ringlight.testbed.preloaded import lab_modules

if TYPE_CHECKING:
    from ringlight.testbed.emulation.attached import Attached


class _Asked:
    """Calls of the prompt to the controller of a lab."""

    def __init__(self, lab: Attached) -> None:
        self._fabric = lab.fabric

    def light(self) -> None:
        from ringlight.fabric.topology import circuit_switches

        fabric = self._fabric
        of_circuits = circuit_switches(fabric)
        if of_circuits or not fabric.optical_switches:
            self._circuits()
        rows = []
        for switch in fabric.optical_switches.values():
            if switch.name not in of_circuits:
                for cross_connect in calls.get(
                    f"/v1/optical-switches/{switch.name}/cross-connects"
                ):
                    colour = (
                        ""
                        if cross_connect["wavelength"] is None
                        else f"λ{cross_connect['wavelength']}"
                    )
                    ends = (
                        f"{switch.name}:{cross_connect['ingress']}",
                        f"{switch.name}:{cross_connect['egress'] - switch.size}",
                    )
                    rows.append([*ends, colour, cross_connect["state"]])
        if rows:
            table(["in", "out", "on", "state"], rows)
        elif not of_circuits and fabric.optical_switches:
            echo("all optical switches are dark: light here belongs to jobs")

    def _circuits(self) -> None:
        circuits = calls.get("/v1/circuits")["circuits"]
        if circuits:
            listing(circuits, *circuit_commands.CIRCUIT_COLUMNS)
        else:
            echo("no circuit is lit")

    def regroup(self, words: list[str]) -> None:
        unknown = [
            word for word in words if word.startswith("-") and word != "--dry-run"
        ]
        if unknown:
            fail(f"there is no option {unknown[0]}; there is --dry-run")
        rest.regroup(
            [word for word in words if word != "--dry-run"],
            dry_run="--dry-run" in words,
        )

    def path(self, source: str, destination: str) -> None:
        rest.path(source, destination)

    def way(self, source: str, target: str) -> str:
        """Return every port that packets pass, from switch to switch; "" if the controller does not answer or
        refuses.
        """
        from ringlight.experiments.client import ApiError, Unreachable

        try:
            hops = calls.call("GET", "/v1/paths", source=source, destination=target)[
                "hops"
            ]
        except (ApiError, Unreachable):
            return ""
        return ", ".join(" ".join(hop["path"]) for hop in hops)

    def why_not(self, source: str, target: str) -> str:
        from ringlight.experiments.client import ApiError, Unreachable

        try:
            calls.call("GET", "/v1/paths", source=source, destination=target)
        except (ApiError, Unreachable) as error:
            return (
                str(error)
                .removeprefix(f"a packet from {source} to {target} ")
                .removeprefix("is ")
            )
        return "the flow tables lead there, yet no answer came"


@options.with_groups
def shell(
    where: Annotated[
        str | None,
        typer.Argument(
            metavar="[LAB|SCENARIO]",
            help="Lab id, or a scenario file whose lab is built first and removed at the end; without it, "
            "the only lab that is up.",
        ),
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option(
            "--file", "-f", help="File of commands, one a line; -: standard input."
        ),
    ] = None,
    *,
    place: options.Place,
    built: options.OpenLab,
) -> None:
    """Mininet's prompt over a lab: nodes, net, light, g0 ping g3, pingall, iperf, link, regroup, py.

    Examples:
        ringlight examples copy disaggregation
        ringlight shell disaggregation.yaml
    """
    from ringlight.testbed.emulation.attached import attach

    lines = lines_of(file)
    if where is not None and options.is_scenario(where):
        with _own_lab(Path(where), place, built) as lab:
            errors = _prompt(lab, lines)
    elif given := [options for options in built.programs if options.is_asked]:
        option = program_kinds()[given[0].name].fact[1]
        remedy = "give a scenario file, or give it to ringlight up"
        fail(f"{option}: only of a lab that is built now; {remedy}", 2)
    else:
        lab = attach(where)
        calls.ask_controller_of(lab)
        errors = _prompt(lab, lines)
    if errors and lines is not None:
        raise typer.Exit(1)


def lines_of(file: Path | None) -> Iterable[str] | None:
    """Return the commands of a file, or of standard input if nobody types there; None to ask for them.

    Raises UserError.
    """
    if file is not None and str(file) != "-":
        from ringlight.experiments.language.text import (
            SCENARIO_BYTES,
            ScenarioError,
            read_text,
        )

        try:
            return read_text(file, SCENARIO_BYTES).splitlines()
        except ScenarioError as error:
            fail(f"--file: {error}", 2)
    return None if file is None and sys.stdin.isatty() else sys.stdin


@contextmanager
def _own_lab(
    scenario: Path, place: options.Place, built: options.OpenLab
) -> Iterator[Attached]:
    """Yield a lab of the command's own, which is removed afterwards."""
    from ringlight.testbed.emulation.attached import of_lab

    check_packages()
    with (
        forking(lab_modules()),
        processes_of_lab(scenario, place, built, follow=True) as processes,
    ):
        addresses = processes.addresses
        say(
            f"lab {processes.lab.id} is up until this prompt ends; REST at {addresses.url}/docs"
        )
        built.announce_pages()
        calls.is_at(addresses.rest, addresses.cacert)
        yield of_lab(processes.lab)


def _prompt(lab: Attached, lines: Iterable[str] | None) -> int:
    """Run the prompt in a lab. Return the number of commands that were refused."""
    from ringlight.extensions.console.prompt import Prompt
    from ringlight.extensions.console.view import View

    view = View(lab)
    try:
        return Prompt(view, _Asked(lab), lines).said.errors
    finally:
        view.stop()


def execute(
    context: typer.Context,
    node: Annotated[
        str,
        typer.Argument(
            metavar="NODE", help="GPU, switch, averager, or O-NIC: onic-g0."
        ),
    ],
    network: Annotated[
        bool,
        typer.Option(
            "--network",
            help="In the node's network with this machine's programs, even while a job runs.",
        ),
    ] = False,
    lab_id: LabId = None,
) -> None:
    """Run a command at a node: exec NODE -- COMMAND. In the container of its job, else in its network.

    Examples:
        ringlight exec g0 -- ip addr
        ringlight exec g0 --network -- ping -c 1 10.0.0.2
    """
    from ringlight.testbed.emulation.attached import attach

    words = context.args[1:] if context.args[:1] == ["--"] else context.args
    if not words:
        fail("no command is given; write: ringlight exec NODE -- COMMAND", 2)
    lab = attach(lab_id)
    place = lab.place(node)
    if place.container is not None and not network:
        terminal = ["-it"] if sys.stdin.isatty() and sys.stdout.isatty() else ["-i"]
        command = ["docker", "exec", *terminal, place.container, *words]
    else:
        command = place.command(words)
    sys.stdout.flush()
    # In our place: its signals, its terminal and its exit code are then its own.
    try:
        os.execvpe(command[0], command, lab.environment())
    except OSError as error:
        fail(f"{command[0]}: {error.strerror}", 127)


def ping(
    source: Annotated[str, typer.Argument(metavar="[GPU]")] = "",
    target: Annotated[str, typer.Argument(metavar="[GPU]")] = "",
    count: Annotated[int, typer.Option("--count", "-c", min=1)] = 4,
    control: Annotated[
        bool,
        typer.Option(
            "--control", help="Use the O-NICs' control network, not their lightpaths."
        ),
    ] = False,
    lab_id: LabId = None,
) -> None:
    """Ping from one GPU to another; without names, every GPU from every other. Exit code 1 for a loss.

    Between GPUs with O-NICs it uses the current lightpath, and prints it.

    Examples:
        ringlight ping
        ringlight ping g0 g3
    """
    from ringlight.extensions.console import measures
    from ringlight.testbed.emulation.attached import attach

    if bool(source) != bool(target):
        fail("name two GPUs, or none for all", 2)
    lab = attach(lab_id)
    calls.ask_controller_of(lab)
    _known(lab, *([source, target] if source else []))
    if control and not lab.fabric.onics:
        fail(
            "--control: there are no O-NICs in this lab, and so no control network beside the light",
            2,
        )
    if source:
        _ping_one(lab, source, target, count, control=control)
        return
    pinged: dict[tuple[str, str], measures.Pinged] = {}
    for row in measures.ping_all(lab, list(lab.fabric.gpus), control=control):
        pinged |= {(result.source, result.target): result for result in row}
        if row:
            marks = [
                result.target if result.rtt_s is not None else "X" for result in row
            ]
            echo(" ".join([row[0].source, "->", *marks]))
    echo(measures.results(pinged))
    if lab.fabric.onics and not control:
        echo(measures.by_light(pinged))
    if left := measures.untried(pinged, len(lab.fabric.gpus), measures.PING_ALL_S):
        fail(left)
    if any(result.rtt_s is None for result in pinged.values()):
        raise typer.Exit(1)


def _ping_one(
    lab: Attached, source: str, target: str, count: int, *, control: bool
) -> None:
    """Lines of single pings, and the way that they took. Raises LabError; typer.Exit for a loss."""
    from ringlight.extensions.console import measures

    by_light = source in lab.fabric.onics and not control
    places = lab.places()
    if source not in places or target not in places:
        lab.place(
            source if source not in places else target
        )  # says why there is nothing
    lost = 0
    for _ in range(count):
        if by_light:
            result = measures.ping_light(lab, places, source, target)
        else:
            result = measures.ping(lab, places[source], source, target)
        echo(measures.line(result))
        lost += result.rtt_s is None
    if result.rtt_s is None:
        say(
            measures.no_answer(result)
            if by_light
            else _Asked(lab).why_not(source, target)
        )
    elif source in lab.fabric.onics:
        echo(
            "answers took the control network"
            if by_light
            else "over the control network"
        )
    elif way := _Asked(lab).way(source, target):
        echo(f"over {way}")
    if lost:
        raise typer.Exit(1)


def iperf(
    client: Annotated[str, typer.Argument(metavar="GPU")],
    server: Annotated[str, typer.Argument(metavar="GPU")],
    seconds: Annotated[
        float, typer.Option("--time", "-t", min=0.1, max=3600, help="Seconds to send.")
    ] = 5.0,
    lab_id: LabId = None,
    as_json: options.Json = False,
) -> None:
    """Measure the TCP rate from one GPU to another by iperf, in emulated and in real units.

    Examples:
        ringlight iperf g0 g1 -t 3
    """
    from ringlight.extensions.console import measures
    from ringlight.fabric.units import format_rate
    from ringlight.testbed.emulation.attached import attach

    lab = attach(lab_id)
    _known(lab, client, server)
    say(f"iperf from {client} to {server}: {seconds:g} s")
    measurement = measures.iperf(lab, client, server, seconds)
    document = {
        "from": client,
        "to": server,
        "received_bps": measurement.received_bps,
        "sent_bps": measurement.sent_bps,
        "real_received_bps": measurement.received_bps * lab.scale,
        "over": measurement.over,
    }

    def write(_: object) -> None:
        real = format_rate(measurement.received_bps * lab.scale)
        emulated = f"{format_rate(measurement.received_bps)} received, {format_rate(measurement.sent_bps)} sent"
        echo(f"{client} -> {server}: {emulated}; as real, {real}")
        if measurement.over is not None:
            echo(f"over {measurement.over}")

    answer(document, as_json, write)


def _known(lab: Attached, *gpus: str) -> None:
    """Raises UserError."""
    for name in gpus:
        if name not in lab.fabric.gpus:
            fail(f"there is no GPU {name}; there is {', '.join(lab.fabric.gpus)}", 2)


def register(app: typer.Typer) -> None:
    """Add these commands."""
    for command in (shell, ping, iperf, capture):
        app.command(rich_help_panel=PANEL)(command)
    app.command(
        "exec",
        rich_help_panel=PANEL,
        context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    )(execute)
