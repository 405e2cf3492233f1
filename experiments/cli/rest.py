"""Commands that ask a running controller: one for each part of its REST API, as a table or as JSON."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from experiments.cli.common import fail, say, show_json, table

if TYPE_CHECKING:
    from experiments.client import Api

Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show the plan; change nothing.")]
Mode = Annotated[
    str, typer.Option(help="safe: refuse busy ports; update: take them; replace: nothing else stays.")
]
Switch = Annotated[str, typer.Argument(metavar="SWITCH")]
JobId = Annotated[str, typer.Argument(metavar="JOB")]

PANEL = "Ask a running controller"

_address = {"controller": "127.0.0.1:8080", "token": ""}

ocs = typer.Typer(help="Optical switches: ports, cross-connects, alarms.", no_args_is_help=True)
circuits = typer.Typer(help="End-to-end circuits over all optical switches.", no_args_is_help=True)
job = typer.Typer(help="Training jobs.", no_args_is_help=True)


def _usage_errors() -> tuple[type[BaseException], ...]:
    """The command-line parser's own errors, whichever copy of click typer uses."""
    error: type[BaseException] = typer.BadParameter
    while error.__base__ is not None and error.__base__ is not Exception:
        error = error.__base__
    return (error, typer.Abort)


USAGE_ERRORS = _usage_errors()


def _version(asked: bool) -> None:
    if asked:
        from importlib import metadata

        try:
            typer.echo(metadata.version("ringlight"))
        except metadata.PackageNotFoundError:
            typer.echo("not installed; run from a source tree")
        raise typer.Exit


def register(app: typer.Typer) -> None:
    """Add these commands to the application, with the options that say which controller is meant."""

    @app.callback()
    def options(
        controller: Annotated[
            str,
            typer.Option(envvar="RINGLIGHT_CONTROLLER", help="HOST:PORT of the controller's REST API."),
        ] = "127.0.0.1:8080",
        token: Annotated[
            str, typer.Option(envvar="RINGLIGHT_TOKEN", help="Its token; better given as variable.")
        ] = "",
        version: Annotated[
            bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
        ] = False,
    ) -> None:
        _address.update(controller=controller, token=token)

    for command in (fabric, topology, path, switches, flows, ports, grids, onics, regroup, events, series):
        app.command(rich_help_panel=PANEL)(command)
    for name, group in (("ocs", ocs), ("circuits", circuits), ("job", job)):
        app.add_typer(group, name=name, rich_help_panel=PANEL)


def _api() -> Api:
    from experiments.client import Api

    return Api(_address["controller"], _address["token"] or None)


def _get(path: str, **query: Any) -> Any:
    with _api() as api:
        return api.get(path, **query)


def _rows(entries: Iterable[Mapping[str, Any]], keys: Iterable[str]) -> list[list[object]]:
    keys = list(keys)
    return [[_cell(entry.get(key)) for key in keys] for entry in entries]


def _cell(value: object) -> object:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "" if value is None else value


def _rate(bits_per_second: float | None) -> str:
    from fabric.units import format_rate

    return "" if bits_per_second is None else format_rate(bits_per_second)


# --- fabric and packet switches


def fabric(as_json: Json = False) -> None:
    """What is plugged together."""
    found = _get("/v1/fabric")
    if as_json:
        show_json(found)
        return
    table(["GPU", "server", "model", "address"], _rows(found["gpus"], ["name", "server", "model", "ip"]))
    typer.echo()
    table(["packet switch", "dpid", "ports"], _rows(found["packet_switches"], ["name", "dpid", "ports"]))
    typer.echo()
    optical = _rows(found["optical_switches"], ["name", "size", "driver", "profile"])
    table(["optical switch", "size", "driver", "profile"], optical)
    if found["grids"]:
        typer.echo()
        sides = _rows(found["grids"], ["name", "rows", "columns", "wavelengths"])
        table(["grid", "rows", "columns", "wavelengths"], sides)
    typer.echo()
    links = [[" - ".join(link["ends"]), _rate(link["rate_bps"])] for link in found["links"]]
    table(["link", "real rate"], links)


def topology(as_json: Json = False) -> None:
    """What packets see now: every lit edge with the path of its light."""
    found = _get("/v1/topology")
    if as_json:
        show_json(found)
        return
    rows = [[e["from"], e["to"], _rate(e["rate_bps"]), " ".join(map(str, e["path"]))] for e in found["edges"]]
    table(["from", "to", "real rate", "path of the light"], rows)


def path(source: str, destination: str, as_json: Json = False) -> None:
    """The links that packets from one GPU to another take now, by the switches' flow tables."""
    found = _get("/v1/paths", source=source, destination=destination)
    if as_json:
        show_json(found)
        return
    rows = [[hop["from"], hop["to"], _rate(hop["rate_bps"]), hop["choices"]] for hop in found["hops"]]
    table(["from", "to", "real rate", "of so many equal links"], rows, numeric=3)


def switches(as_json: Json = False) -> None:
    """Packet switches and whether they are connected."""
    found = _get("/v1/packet-switches")
    if as_json:
        show_json(found)
    else:
        table(["switch", "dpid", "connected"], _rows(found, ["name", "dpid", "connected"]))


def flows(switch: Switch, as_json: Json = False) -> None:
    """The flow table of a packet switch."""
    found = _get(f"/v1/packet-switches/{switch}/flows")
    if as_json:
        show_json(found)
        return
    rows = [
        [
            flow["priority"],
            " ".join(f"{key}={value}" for key, value in flow["match"].items()) or "any",
            " ".join(map(str, flow["out_ports"])) or "drop",
            flow["packets"],
            flow["bytes"],
        ]
        for flow in found
    ]
    table(["priority", "match", "out", "packets", "bytes"], rows)


def ports(switch: Switch, as_json: Json = False) -> None:
    """Ports and counters of a packet switch."""
    found = _get(f"/v1/packet-switches/{switch}/ports")
    if as_json:
        show_json(found)
        return
    keys = [
        "port",
        "up",
        "peer",
        "rx_packets",
        "rx_bytes",
        "tx_packets",
        "tx_bytes",
        "rx_dropped",
        "tx_dropped",
    ]
    table(["port", "up", "lit to", *keys[3:]], _rows(found, keys))


# --- optical switches


@ocs.command("list")
def ocs_list(as_json: Json = False) -> None:
    """Optical switches and whether they answer."""
    found = _get("/v1/optical-switches")
    if as_json:
        show_json(found)
        return
    keys = ["name", "size", "driver", "reachable", "cross_connects", "alarms"]
    table(["switch", *keys[1:]], _rows(found, keys))


@ocs.command("show")
def ocs_show(switch: Switch, as_json: Json = False) -> None:
    """Cross-connects of an optical switch, read from it now."""
    if as_json:
        found = _get(f"/v1/optical-switches/{switch}")
        show_json({**found, "cross_connects": _get(f"/v1/optical-switches/{switch}/cross-connects")})
        return
    keys = ["ingress", "egress", "wavelength", "state", "name"]
    table(keys, _rows(_get(f"/v1/optical-switches/{switch}/cross-connects"), keys))


@ocs.command("ports")
def ocs_ports(switch: Switch, as_json: Json = False) -> None:
    """Ports of an optical switch: what is plugged, and their state."""
    found = _get(f"/v1/optical-switches/{switch}/ports")
    if as_json:
        show_json(found)
        return
    rows = [
        [
            port["port"],
            port["side"],
            port["faceplate"],
            _cell(port["plugged"]),
            port["state"],
            "" if port["enabled"] else "disabled",
            ", ".join(map(_arrow, port["cross_connects"])),
        ]
        for port in found
    ]
    table(["port", "side", "faceplate", "plugged", "state", "", "cross-connect"], rows)


@ocs.command("alarms")
def ocs_alarms(switch: Switch, as_json: Json = False) -> None:
    """Standing alarms of an optical switch."""
    found = _get(f"/v1/optical-switches/{switch}/alarms")
    if as_json:
        show_json(found)
    elif not found:
        typer.echo("no alarms")
    else:
        keys = list(found[0])
        table(keys, _rows(found, keys))


@ocs.command("connect")
def ocs_connect(
    switch: Switch,
    ingress: int,
    egress: int,
    wavelength: Annotated[int | None, typer.Option(min=0, help="Channel; only a WSS needs one.")] = None,
    mode: Mode = "update",
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Connect an ingress (1..N) to an egress (N+1..2N): one direction of light."""
    _change(
        "PUT",
        f"/v1/optical-switches/{switch}/cross-connects/{ingress}",
        as_json,
        {"egress": egress, "wavelength": wavelength, "mode": mode, "dry_run": dry_run},
    )


@ocs.command("disconnect")
def ocs_disconnect(switch: Switch, ingress: int, dry_run: DryRun = False, as_json: Json = False) -> None:
    """Remove what an ingress carries."""
    path = f"/v1/optical-switches/{switch}/cross-connects/{ingress}"
    _change("DELETE", path, as_json, None, {"dry_run": dry_run})


@ocs.command("replace")
def ocs_replace(
    switch: Switch,
    pairs: Annotated[list[str] | None, typer.Argument(metavar="INGRESS-EGRESS…")] = None,
    mode: Mode = "replace",
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Make these cross-connects (such as 1-21 7-15) the ones that stand; none at all clears the switch."""
    wanted = []
    for text in pairs or []:
        ingress, _, egress = text.partition("-")
        if not (ingress.isdigit() and egress.isdigit()):
            fail(f"{text!r} is not INGRESS-EGRESS, such as 1-21", 2)
        wanted.append({"ingress": int(ingress), "egress": int(egress)})
    path = f"/v1/optical-switches/{switch}/cross-connects"
    _change("PUT", path, as_json, {"mode": mode, "cross_connects": wanted, "dry_run": dry_run})


def _change(method: str, path: str, as_json: bool, body: Any, query: dict[str, Any] | None = None) -> None:
    with _api() as api:
        found = api.call(method, path, body, query)
    if as_json:
        show_json(found)
        return
    _show_plan(found["plan"], found["applied"])
    for result in found["results"]:
        if result.get("reason"):
            typer.echo(f"{_arrow(result)}: {result['state']} ({result['reason']})")


def _show_plan(plan: Mapping[str, Any], applied: bool) -> None:
    rows = [[what, _arrow(xc)] for what in ("remove", "add", "keep") for xc in plan[what]]
    table(["", "cross-connect"], rows)
    typer.echo("done" if applied else "nothing was changed (dry run)")


def _arrow(xc: Mapping[str, Any] | None) -> str:
    if xc is None:
        return ""
    colour = "" if xc.get("wavelength") is None else f" λ{xc['wavelength']}"
    return f"{xc['ingress']} → {xc['egress']}{colour}"


# --- circuits


@circuits.command("show")
def circuits_show(as_json: Json = False) -> None:
    """Circuits lit now."""
    found = _get("/v1/circuits")
    if as_json:
        show_json(found)
        return
    rows = [
        [*circuit["ends"], " ".join(circuit["path"]), "both ways" if circuit["duplex"] else "one way"]
        for circuit in found["circuits"]
    ]
    table(["from", "to", "path of the light", ""], rows)


@circuits.command("set")
def circuits_set(
    pairs: Annotated[list[str], typer.Argument(metavar="A=B…", help="Such as g0=tor0:1 g1=tor0:2.")],
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Make exactly these circuits stand, the forwarding rules changed with them."""
    wanted = []
    for text in pairs:
        a, equals, b = text.partition("=")
        if not (a and equals and b):
            fail(f"{text!r} is not A=B, such as g0=tor0:1", 2)
        wanted.append([a, b])
    with _api() as api:
        found = api.put("/v1/circuits", {"circuits": wanted, "dry_run": dry_run})
    if as_json:
        show_json(found)
        return
    for name, change in found["optical_switches"].items():
        typer.echo(name)
        _show_plan(change["plan"], change["applied"])


# --- grids


def grids(
    name: Annotated[str, typer.Argument(metavar="[GRID]", help="One grid with its nodes and light.")] = "",
    as_json: Json = False,
) -> None:
    """Grids of O-NICs and wavelength-selective switches."""
    found = _get(f"/v1/grids/{name}" if name else "/v1/grids")
    if as_json:
        show_json(found)
        return
    if not name:
        rows = [
            [g["name"], f"{g['rows']} × {g['columns']}", g["wavelengths"], g["free"], " ".join(g["jobs"])]
            for g in found
        ]
        table(["grid", "nodes", "wavelengths", "free", "jobs"], rows)
        return
    nodes = [
        [n["gpu"], n["row"], n["column"], _cell(n["job"]), " ".join(n["ports"]), n["ip"]]
        for n in found["nodes"]
    ]
    table(["GPU", "row", "column", "job", "ports", "address"], nodes)
    typer.echo()
    lit = [
        [s["name"], _cell(xc["from"]), _cell(xc["to"]), f"λ{xc['wavelength']}"]
        for s in found["switches"]
        for xc in s["lit"]
    ]
    table(["switch", "from", "to", "on"], lit)
    for switch in found["switches"]:
        if not switch["reachable"]:
            say(f"{switch['name']} cannot be reached; its light is as last read")


def onics(
    gpu: Annotated[str, typer.Argument(metavar="[GPU]", help="One O-NIC: all that its agent says.")] = "",
    timeline: Annotated[bool, typer.Option("--flows", help="The timeline of its flows.")] = False,
    as_json: Json = False,
) -> None:
    """O-NICs and what their agents say."""
    if timeline and not gpu:
        fail("--flows needs a GPU", 2)
    if timeline:
        _show_flows(_get(f"/v1/onics/{gpu}/flows"), as_json)
        return
    found = _get(f"/v1/onics/{gpu}" if gpu else "/v1/onics")
    if as_json or gpu:
        show_json(found)
        return
    rows = []
    for onic in found:
        status = onic["status"] or {}
        done = status.get("counters", {}).get("flows_done")
        row = [onic["gpu"], onic["grid"], onic.get("row"), onic.get("column"), onic["reachable"]]
        rows.append([*map(_cell, row), _cell(status.get("job")), _cell(done), _cell(onic["error"])])
    table(["GPU", "grid", "row", "column", "answers", "job", "flows done", "error"], rows)


def _show_flows(found: Mapping[str, Any], as_json: bool) -> None:
    if as_json:
        show_json(found)
        return
    keys = list(found["flows"][0]) if found["flows"] else []
    rows = [
        [f"{v:.6f}" if isinstance(v, float) else _cell(v) for v in map(flow.get, keys)]
        for flow in found["flows"]
    ]
    if keys:
        table(keys, rows)
    else:
        typer.echo("no flows")


# --- jobs


@job.command("submit")
def job_submit(
    name: str,
    ranks: Annotated[str, typer.Option(help="GPUs in rank order: g0,g1,g2.")] = "",
    gpus: Annotated[int, typer.Option(help="Or how many; the controller chooses them.")] = 0,
    gradient: Annotated[str, typer.Option(help="Bytes all-reduced per iteration: 1.4 MB.")] = "1 MB",
    compute: Annotated[str, typer.Option(help="GPU time per iteration, such as 337 ms.")] = "100 ms",
    iterations: Annotated[int, typer.Option(min=1)] = 20,
    batch: Annotated[int, typer.Option(min=1)] = 28,
    seed: int = 7,
    collective: str = "ring",
    grid: Annotated[str, typer.Option(help="With --gpus: of this grid.")] = "",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="On a grid: show nodes and light; change nothing.")
    ] = False,
    beacon: Annotated[str, typer.Option(help="Pace of UDP beacons between ranks; 0 s: none.")] = "0 s",
    hold: Annotated[bool, typer.Option("--hold", help="Wait for `job release` once connected.")] = False,
    on_loss: Annotated[str, typer.Option(help="When a GPU is lost: fail, swap or shrink.")] = "fail",
    spares: Annotated[str, typer.Option(help="GPUs kept for a swap: g4,g5.")] = "",
    as_json: Json = False,
) -> None:
    """Submit a training job (sizes and times as emulated)."""
    from fabric.units import parse_size, parse_time

    try:
        # The buffer holds FP32 numbers: whole ones.
        gradient_bytes = -(-parse_size(gradient) // 4) * 4
        seconds, beacon_s = parse_time(compute), parse_time(beacon)
    except ValueError as error:
        fail(str(error), 2)
    if bool(ranks) == bool(gpus):
        fail("give either --ranks or --gpus", 2)
    request: dict[str, Any] = {
        "name": name,
        "hold": hold,
        "on_loss": on_loss,
        "spares": [gpu.strip() for gpu in spares.split(",")] if spares else [],
        "workload": "train",
        "collective": collective,
        "gradient_bytes": gradient_bytes,
        "compute_s": seconds,
        "iterations": iterations,
        "batch": batch,
        "seed": seed,
        "beacon_interval_s": beacon_s,
    }
    places: dict[str, Any] = {"ranks": [r.strip() for r in ranks.split(",")]} if ranks else {"gpus": gpus}
    if grid:
        places["grid"] = grid
    if dry_run:
        with _api() as api:
            _show_light(api.post("/v1/arbiter/plan", {"collective": collective, **places}), as_json)
        return
    request |= places
    with _api() as api:
        _show_job(api.post("/v1/jobs", request), as_json)


def _show_light(found: Mapping[str, Any], as_json: bool) -> None:
    if as_json:
        show_json(found)
        return
    rows = [
        [rank, gpu, ", ".join(f"{p} (port {w['port']}, λ{w['wavelength']})" for p, w in ways.items())]
        for rank, gpu in enumerate(found["ranks"])
        for ways in [found["maps"][gpu]]
    ]
    table(["rank", "GPU", "reaches"], rows)
    count = sum(len(group) for group in found["switches"].values())
    switches_ = len(found["switches"])
    typer.echo(f"grid {found['grid']}: {count} cross-connects on {switches_} switches; nothing was changed")


@job.command("list")
def job_list(as_json: Json = False) -> None:
    """All jobs that the controller knows."""
    found = _get("/v1/jobs")
    if as_json:
        show_json(found)
        return
    rows = [
        [entry["id"], entry["state"], " ".join(r["gpu"] for r in entry["ranks"]), _cell(entry["error"])]
        for entry in found
    ]
    table(["job", "state", "GPUs", "error"], rows)


@job.command("show")
def job_show(job_id: JobId, as_json: Json = False) -> None:
    """One job and its ranks."""
    _show_job(_get(f"/v1/jobs/{job_id}"), as_json)


@job.command("cancel")
def job_cancel(job_id: JobId, as_json: Json = False) -> None:
    """Stop a job and free its GPUs."""
    with _api() as api:
        _show_job(api.delete(f"/v1/jobs/{job_id}"), as_json)


@job.command("release")
def job_release(
    job_ids: Annotated[list[str], typer.Argument(metavar="JOB…")],
    delay: Annotated[str, typer.Option(help="Time until the common start.")] = "300 ms",
    as_json: Json = False,
) -> None:
    """Start held jobs together."""
    from fabric.units import parse_time

    try:
        delay_s = parse_time(delay)
    except ValueError as error:
        fail(f"--delay: {error}", 2)
    with _api() as api:
        found = api.post("/v1/jobs/release", {"jobs": job_ids, "delay_s": delay_s})
    if as_json:
        show_json(found)
    else:
        typer.echo(f"released: {', '.join(job_ids)}")


@job.command("watch")
def job_watch(job_id: JobId, as_json: Json = False) -> None:
    """Follow a job to its end. Exit code 1 when it does not succeed."""
    cursor = 0
    with _api() as api:
        shown = None
        while True:
            found = api.get(f"/v1/jobs/{job_id}")
            answer = api.get(f"/v1/jobs/{job_id}/events", cursor=cursor)
            cursor = answer["cursor"]
            for event in answer["events"]:
                # Rank 0 speaks for all: the ranks go in step.
                if not as_json and event["event"] == "iteration" and str(event["worker"]).endswith("-0"):
                    seconds = event["allreduce_end"] - event["compute_start"]
                    say(f"iteration {event['i'] + 1}: {seconds:.3f} s, loss {event['loss']:.3f}")
            if found["state"] != shown:
                shown = found["state"]
                say(f"{job_id}: {shown}")
            if shown in ("SUCCEEDED", "FAILED", "CANCELLED"):
                break
            time.sleep(0.2)
    _show_job(found, as_json)
    if shown != "SUCCEEDED":
        raise typer.Exit(1)


def _show_job(found: Mapping[str, Any], as_json: bool) -> None:
    if as_json:
        show_json(found)
        return
    typer.echo(f"{found['id']}: {found['state']}" + (f", {found['error']}" if found["error"] else ""))
    keys = ["rank", "gpu", "state", "exit_code", "error"]
    table(["rank", "GPU", "state", "exit code", "error"], _rows(found["ranks"], keys))


# --- regrouping


def regroup(
    jobs: Annotated[list[str] | None, typer.Argument(metavar="JOB…", help="Without any: all jobs.")] = None,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Move GPUs so that the least traffic crosses between packet switches; jobs may be running."""
    with _api() as api:
        found = api.post("/v1/regroup", {"jobs": jobs or None, "dry_run": dry_run})
        deadline = time.monotonic() + 120.0
        while found["state"] == "APPLYING":
            if time.monotonic() > deadline:
                fail(f"{found['id']} was not done after 120 s")
            time.sleep(0.05)
            found = api.get(f"/v1/regroup/{found['id']}")
    if as_json:
        show_json(found)
    else:
        _show_regroup(found)
    if found["state"] == "FAILED":
        fail(f"{found['id']}: {found['error']}")


def _show_regroup(found: Mapping[str, Any]) -> None:
    from fabric.units import format_size, format_time

    plan = found["plan"]
    moves = [["move", f"{m['gpu']}: {m['from'] or 'dark'} → {m['to']}"] for m in plan["moves"]]
    kept = [["stays lit", " - ".join(pair)] for pair in plan["stay_lit"]]
    table(["", "fibre"], [*moves, *kept])
    typer.echo()

    def seconds(value: float | None) -> str:
        return "" if value is None else format_time(value)

    rows = [[p["job"], seconds(p["before_s"]), seconds(p["after_s"])] for p in plan["predicted"]]
    table(["job", "iteration before", "after, predicted"], rows, numeric=1)
    before, after = plan["crossing_bytes_before"], plan["crossing_bytes_after"]
    typer.echo(
        f"\nbetween packet switches per iteration: {format_size(before)} before, {format_size(after)} after; "
        f"{plan['fibres_moved']} fibres moved; {'optimal' if plan['optimal'] else 'heuristic'}"
    )
    typer.echo({"PLANNED": "nothing was changed (dry run)"}.get(found["state"], found["state"].lower()))


# --- observation


def events(
    after: Annotated[int | None, typer.Option(help="Start with kept events of a higher id.")] = None,
    as_json: Json = False,
) -> None:
    """Follow the controller's events until interrupted."""
    import json

    with _api() as api:
        for event in api.stream("/v1/events" + ("" if after is None else f"?after={after}")):
            if as_json:
                typer.echo(json.dumps(event))
            else:
                rest = " ".join(
                    f"{key}={value}"
                    for key, value in event.items()
                    if key not in ("id", "t", "event", "timeline") and value not in (None, [], {})
                )
                typer.echo(f"{event['t']:.3f}  {event['event']:<10} {rest}")


def series(
    last: Annotated[float, typer.Option(help="Seconds to look back.")] = 1.0,
    csv_file: Annotated[Path | None, typer.Option("--csv", help="Write the samples there.")] = None,
    as_json: Json = False,
) -> None:
    """Throughput of the packet switches' ports; the table shows the mean of the last seconds."""
    # The controller's clock is that of its own machine; its health answer carries it.
    with _api() as api:
        since = api.get("/v1/health").get("t", time.monotonic()) - last
        found = api.get("/v1/series", since=since)
    if csv_file is not None:
        _write_csv(csv_file, found)
    if as_json:
        show_json(found)
        return
    grouped: dict[tuple[str, int], list[Mapping[str, Any]]] = {}
    for sample in found:
        grouped.setdefault((sample["switch"], sample["port"]), []).append(sample)
    rows = [
        [
            f"{switch}:{port}",
            _cell(samples[-1]["peer"]),
            _rate(sum(s["rx_bps"] for s in samples) / len(samples)),
            _rate(sum(s["tx_bps"] for s in samples) / len(samples)),
            len(samples),
        ]
        for (switch, port), samples in sorted(grouped.items())
    ]
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
