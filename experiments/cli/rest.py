"""Commands that ask a running controller: one for each part of its REST API, as a table or as JSON."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from ringlight.experiments.cli import circuit_commands, claims, ocs
from ringlight.experiments.cli.calls import (
    DryRun,
    Json,
    Switch,
    address,
    call,
    connection,
    get,
    list_of,
)
from ringlight.experiments.cli.common import (
    Column,
    answer,
    echo,
    fail,
    listing,
    say,
    show_json,
    table,
)
from ringlight.experiments.cli.job_commands import job

PANEL = "Ask a running controller"


def _version(requested: bool) -> None:
    if requested:
        from importlib import metadata

        try:
            echo(metadata.version("ringlight"))
        except metadata.PackageNotFoundError:
            echo("not installed; run from a source tree")
        raise typer.Exit


def register(app: typer.Typer) -> None:
    """Add these commands to the application, with the options that say which controller is meant."""

    @app.callback()
    def options(
        controller: Annotated[
            str,
            typer.Option(
                envvar="RINGLIGHT_CONTROLLER",
                help="HOST:PORT of the controller's REST API.",
            ),
        ] = "127.0.0.1:8080",
        token: Annotated[
            str,
            typer.Option(
                envvar="RINGLIGHT_TOKEN",
                help="Token of the REST API; safer as the environment variable.",
            ),
        ] = "",
        cacert: Annotated[
            str,
            typer.Option(
                envvar="RINGLIGHT_CACERT",
                help="File (PEM) of the authority that signed the API's certificate.",
            ),
        ] = "",
        version: Annotated[
            bool,
            typer.Option(
                "--version", callback=_version, is_eager=True, help="Print the version."
            ),
        ] = False,
    ) -> None:
        address.update(controller=controller, token=token, cacert=cacert)

    for command in (
        fabric,
        topology,
        path,
        switches,
        flows,
        ports,
        planes,
        onics,
        regroup,
        events,
        series,
        claims.gpus,
    ):
        app.command(rich_help_panel=PANEL)(command)
    groups = {
        "ocs": ocs.commands,
        "circuits": circuit_commands.circuits,
        "job": job,
        "claim": claims.claim,
    }
    for name, group in groups.items():
        app.add_typer(group, name=name, rich_help_panel=PANEL)


# --- how a cell is written


def _rate(entry: Mapping[str, Any]) -> str:
    from ringlight.fabric.units import format_rate

    return "" if entry["rate_bps"] is None else format_rate(entry["rate_bps"])


# --- fabric and packet switches


def fabric(as_json: Json = False) -> None:
    """Show the nodes and cables of the fabric.

    Examples:
        ringlight fabric
    """
    from ringlight.fabric.keys import fabric_keys

    tables: dict[str, list[Column]] = {
        "gpus": [("GPU", "name"), "server", "model", ("address", "ip")],
        "packet_switches": [("packet switch", "name"), "dpid", "ports", "controller"],
        "optical_switches": [("optical switch", "name"), "size", "driver", "profile"],
        **{
            name: list(key.columns.items())
            for name, key in fabric_keys().items()
            if key.columns
        },
        "links": [
            ("link", lambda link: " - ".join(link["ends"])),
            ("real rate", _rate),
        ],
    }

    def write(document: Any) -> None:
        for number, key in enumerate(key for key in tables if document[key]):
            if number:
                echo()
            listing(document[key], *tables[key])

    answer(get("/v1/fabric"), as_json, write)


def topology(as_json: Json = False) -> None:
    """Show the current packet topology: every connected edge, with the path of its circuit.

    Examples:
        ringlight topology
    """
    light: Column = ("path of the light", lambda edge: " ".join(map(str, edge["path"])))
    list_of(
        "/v1/topology", as_json, "from", "to", ("real rate", _rate), light, of="edges"
    )


def path(source: str, destination: str, as_json: Json = False) -> None:
    """Show the links that packets from one GPU to another use now, by the switches' flow tables.

    Examples:
        ringlight path g0 g3
    """
    columns: list[Column] = [
        "from",
        "to",
        ("real rate", _rate),
        ("equal links", "choices"),
    ]
    reply = call("GET", "/v1/paths", source=source, destination=destination)
    answer(reply, as_json, lambda reply: listing(reply["hops"], *columns, numeric=3))


def switches(as_json: Json = False) -> None:
    """Packet switches and whether they are connected.

    Examples:
        ringlight switches
    """
    list_of("/v1/packet-switches", as_json, ("switch", "name"), "dpid", "connected")


def flows(switch: Switch, as_json: Json = False) -> None:
    """Show the flow table of a packet switch.

    Examples:
        ringlight flows tor0
    """
    match: Column = (
        "match",
        lambda flow: " ".join(f"{k}={v}" for k, v in flow["match"].items()) or "any",
    )
    out: Column = ("out", lambda flow: " ".join(map(str, flow["out_ports"])) or "drop")
    path = f"/v1/packet-switches/{switch}/flows"
    list_of(path, as_json, "priority", match, out, "packets", "bytes")


def ports(switch: Switch, as_json: Json = False) -> None:
    """Ports and counters of a packet switch.

    Examples:
        ringlight ports tor0
    """
    counters = (
        "rx_packets",
        "rx_bytes",
        "tx_packets",
        "tx_bytes",
        "rx_dropped",
        "tx_dropped",
    )
    path = f"/v1/packet-switches/{switch}/ports"
    list_of(path, as_json, "port", "up", ("lit to", "peer"), *counters)


# --- planes with light


def planes(
    name: Annotated[
        str,
        typer.Argument(
            metavar="[PLANE]", help="One plane, with its nodes and lightpaths."
        ),
    ] = "",
    as_json: Json = False,
) -> None:
    """Optical planes: their nodes, and the jobs that use them.

    Examples:
        ringlight planes
    """
    if name:
        answer(get(f"/v1/planes/{name}"), as_json, _write_plane)
        return
    answer(get("/v1/planes"), as_json, _write_planes)


def _write_planes(documents: list[dict[str, Any]]) -> None:
    jobs: Column = ("jobs", lambda plane: " ".join(plane["jobs"]))
    coloured = any(plane["wavelengths"] is not None for plane in documents)
    colours: list[Column] = ["wavelengths"] if coloured else []
    size: Column = ("nodes", "size")
    listing(documents, ("plane", "name"), "kind", size, *colours, "free", jobs)


def _write_plane(document: Mapping[str, Any]) -> None:
    ports: Column = ("ports", lambda node: " ".join(node["ports"]))
    listing(document["nodes"], ("GPU", "gpu"), "job", ports, ("address", "ip"))
    echo()
    cross_connects = [
        {"switch": switch["name"], **xc}
        for switch in document["switches"]
        for xc in switch["lit"]
    ]
    on: Column = (
        "on",
        lambda xc: "" if xc["wavelength"] is None else f"λ{xc['wavelength']}",
    )
    listing(cross_connects, "switch", "ingress", "egress", "from", "to", on)
    for switch in document["switches"]:
        if not switch["reachable"]:
            say(f"{switch['name']} cannot be reached; its light is as last read")


def onics(
    gpu: Annotated[
        str,
        typer.Argument(
            metavar="[GPU]", help="One O-NIC, with its agent's whole report."
        ),
    ] = "",
    timeline: Annotated[
        bool, typer.Option("--flows", help="The timeline of its flows.")
    ] = False,
    as_json: Json = False,
) -> None:
    """O-NICs, and the state that their agents report.

    Examples:
        ringlight onics
        ringlight onics g0 --flows
    """
    if timeline and not gpu:
        fail("--flows needs a GPU", 2)
    if timeline:
        answer(get(f"/v1/onics/{gpu}/flows"), as_json, _write_flows)
    elif gpu:
        show_json(get(f"/v1/onics/{gpu}"))
    else:
        job: Column = ("job", lambda onic: (onic["status"] or {}).get("job"))
        done: Column = (
            "flows done",
            lambda o: (o["status"] or {}).get("counters", {}).get("flows_done"),
        )
        where: list[Column] = [("GPU", "gpu"), "plane", ("answers", "reachable")]
        list_of("/v1/onics", as_json, *where, job, done, "error")


def _write_flows(document: Mapping[str, Any]) -> None:
    if not document["flows"]:
        echo("no flows")
        return
    flows = [
        {
            key: f"{value:.6f}" if isinstance(value, float) else value
            for key, value in flow.items()
        }
        for flow in document["flows"]
    ]
    listing(flows, *flows[0])


# --- regrouping


def regroup(
    jobs: Annotated[
        list[str] | None, typer.Argument(metavar="JOB…", help="Jobs; default: all.")
    ] = None,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Move GPUs so that the least traffic crosses between packet switches; jobs may be running.

    Examples:
        ringlight regroup --dry-run
        ringlight regroup
    """
    with connection() as api:
        from ringlight.experiments.client import regrouped

        try:
            reply = regrouped(api, jobs or None, dry_run)
        except TimeoutError as error:
            fail(str(error))
    answer(reply, as_json, _write_regroup)
    if reply["state"] == "FAILED":
        fail(f"{reply['id']}: {reply['error']}")


def _write_regroup(document: Mapping[str, Any]) -> None:
    from ringlight.fabric.units import format_size, format_time

    plan = document["plan"]
    moves = [
        ["move", f"{m['gpu']}: {m['from'] or 'dark'} → {m['to']}"]
        for m in plan["moves"]
    ]
    kept = [["stays lit", " - ".join(pair)] for pair in plan["stay_lit"]]
    table(["", "fibre"], [*moves, *kept])
    echo()
    rows = [
        [
            p["job"],
            *(
                "" if p[key] is None else format_time(p[key])
                for key in ("before_s", "after_s")
            ),
        ]
        for p in plan["predicted"]
    ]
    table(["job", "iteration before", "after, predicted"], rows, numeric=1)
    before, after = plan["crossing_bytes_before"], plan["crossing_bytes_after"]
    echo(
        f"\nbetween packet switches per iteration: {format_size(before)} before, {format_size(after)} after; "
        f"{plan['fibres_moved']} fibres moved; {'optimal' if plan['optimal'] else 'heuristic'}"
    )
    for name, whose in document["left_to_others"].items():
        echo(
            f"{name}: packets come through again once {whose} has followed; we do not write its tables"
        )
    if (reason := document["unchanged"]) is not None:
        echo(f"no fibre to move: {reason}")
    echo(
        {"PLANNED": "nothing was changed (dry run)"}.get(
            document["state"], document["state"].lower()
        )
    )


# --- observation


def events(
    after: Annotated[
        int | None, typer.Option(help="Start with kept events of a higher id.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Follow the controller's events until interrupted.

    Examples:
        ringlight events
        ringlight events --json
    """
    import json

    head = ("id", "t", "event", "timeline")
    with connection() as api:
        for event in api.stream(
            "/v1/events" + ("" if after is None else f"?after={after}")
        ):
            if as_json:
                echo(json.dumps(event))
                continue
            fields = {
                key: value
                for key, value in event.items()
                if value not in (None, [], {})
            }
            rest = " ".join(
                f"{key}={value}" for key, value in fields.items() if key not in head
            )
            echo(f"{event['t']:.3f}  {event['event']:<10} {rest}")


def series(
    last: Annotated[float, typer.Option(help="Seconds to look back.")] = 1.0,
    csv_file: Annotated[
        Path | None, typer.Option("--csv", help="Write the samples there.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Throughput of the packet switches' ports; the table shows the mean of the last seconds.

    Examples:
        ringlight series
        ringlight series --csv ports.csv
    """
    # The controller's clock is that of its own machine; its health answer carries it.
    with connection() as api:
        since = api.get("/v1/health").get("t", time.monotonic()) - last
        reply = api.get("/v1/series", since=since)
    if csv_file is not None:
        _write_csv(csv_file, reply)
    answer(reply, as_json, _write_series)


def _write_series(samples: list[dict[str, Any]]) -> None:
    from ringlight.fabric.units import format_rate

    grouped: dict[tuple[str, int], list[Mapping[str, Any]]] = {}
    for sample in samples:
        grouped.setdefault((sample["switch"], sample["port"]), []).append(sample)
    rows = []
    for (switch, port), mine in sorted(grouped.items()):
        received, sent = (
            sum(s[key] for s in mine) / len(mine) for key in ("rx_bps", "tx_bps")
        )
        peer = mine[-1]["peer"]
        rows.append(
            [
                f"{switch}:{port}",
                peer,
                format_rate(received),
                format_rate(sent),
                len(mine),
            ]
        )
    table(["port", "lit to", "receives", "sends", "samples"], rows, numeric=2)


def _write_csv(path: Path, samples: list[dict[str, Any]]) -> None:
    import csv

    keys = ("t", "switch", "port", "gpu", "peer", "rx_bps", "tx_bps")
    try:
        with path.open("w", encoding="utf-8", newline="") as file:
            rows = csv.DictWriter(file, keys, extrasaction="ignore")
            rows.writeheader()
            rows.writerows(samples)
    except OSError as error:
        fail(f"--csv: {path}: {error.strerror}")
