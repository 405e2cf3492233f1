"""Commands about the jobs of a running controller."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from ringlight.experiments.cli.calls import Json, call, connection, get, list_of
from ringlight.experiments.cli.common import (
    Column,
    answer,
    echo,
    fail,
    listing,
    say,
    table,
)

JobId = Annotated[str, typer.Argument(metavar="JOB")]


Count = Annotated[int, typer.Option(min=1)]


job = typer.Typer(help="Training jobs.", no_args_is_help=True)


@job.command("submit")
def job_submit(
    name: str,
    ranks: Annotated[str, typer.Option(help="GPUs in rank order: g0,g1,g2.")] = "",
    gpus: Annotated[
        int, typer.Option(help="Or how many; the controller chooses them.")
    ] = 0,
    gradient: Annotated[
        str, typer.Option(help="Bytes all-reduced per iteration: 1.4 MB.")
    ] = "1 MB",
    compute: Annotated[
        str, typer.Option(help="GPU time per iteration, such as 337 ms.")
    ] = "100 ms",
    iterations: Count = 20,
    batch: Count = 28,
    seed: int = 7,
    collective: str = "ring",
    plane: Annotated[str, typer.Option(help="Run it on this optical plane.")] = "",
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="On an optical plane: show nodes and lightpaths; change nothing.",
        ),
    ] = False,
    beacon: Annotated[
        str, typer.Option(help="Interval of UDP beacons between ranks; 0 s: none.")
    ] = "0 s",
    hold: Annotated[
        bool, typer.Option("--hold", help="Wait for `job release` once connected.")
    ] = False,
    on_loss: Annotated[
        str, typer.Option(help="When a GPU is lost: fail, swap or shrink.")
    ] = "fail",
    spares: Annotated[str, typer.Option(help="GPUs kept for a swap: g4,g5.")] = "",
    as_json: Json = False,
) -> None:
    """Submit a training job (emulated sizes and times).

    Examples:
        ringlight job submit light --ranks g0,g3
        ringlight job submit heavy --gpus 4 --gradient '100 MB' --iterations 50
    """
    from ringlight.fabric.units import parse_size, parse_time

    try:
        # The buffer holds FP32 numbers: whole ones.
        gradient_bytes = -(-parse_size(gradient) // 4) * 4
        seconds, beacon_s = parse_time(compute), parse_time(beacon)
    except ValueError as error:
        fail(str(error), 2)
    if bool(ranks) == bool(gpus):
        fail("give either --ranks or --gpus", 2)
    places: dict[str, Any] = {"ranks": _names(ranks)} if ranks else {"gpus": gpus}
    if plane:
        places["plane"] = plane
    if dry_run:
        plan = call("POST", "/v1/planes/plan", {"collective": collective, **places})
        answer(plan, as_json, _write_light)
        return
    request = {
        "name": name,
        "hold": hold,
        "on_loss": on_loss,
        "spares": _names(spares),
        "workload": "train",
        "collective": collective,
        "gradient_bytes": gradient_bytes,
        "compute_s": seconds,
        "iterations": iterations,
        "batch": batch,
        "seed": seed,
        "beacon_interval_s": beacon_s,
        **places,
    }
    answer(call("POST", "/v1/jobs", request), as_json, _write_job)


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",")] if text else []


def _write_light(document: Mapping[str, Any]) -> None:
    ways = document.get("maps") or document.get("transmit")
    if ways is None:
        ways = {gpu: document["lightpaths"].get(gpu, {}) for gpu in document["ranks"]}

    def way(peer: str, how: Any) -> str:
        return f"{peer} ({how} lightpaths)" if isinstance(how, int) else _way(peer, how)

    rows = [
        [rank, gpu, ", ".join(way(peer, how) for peer, how in ways[gpu].items())]
        for rank, gpu in enumerate(document["ranks"])
    ]
    table(["rank", "GPU", "reaches"], rows)
    light = f"light on {len(document['switches'])} switches"
    if crossed := document.get("cross_connects"):
        light = f"{sum(map(len, crossed.values()))} cross-connects on {len(crossed)} switches"
    echo(f"{document['kind']} {document['plane']}: {light}; nothing was changed")


def _way(peer: str, how: Mapping[str, int]) -> str:
    return f"{peer} (port {how['port']}, λ{how['wavelength']})"


@job.command("list")
def job_list(as_json: Json = False) -> None:
    """List all jobs that the controller knows.

    Examples:
        ringlight job list
    """
    gpus: Column = (
        "GPUs",
        lambda document: " ".join(rank["gpu"] for rank in document["ranks"]),
    )
    list_of("/v1/jobs", as_json, ("job", "id"), "state", gpus, "error")


@job.command("show")
def job_show(job_id: JobId, as_json: Json = False) -> None:
    """Show one job and its ranks.

    Examples:
        ringlight job show light
    """
    answer(get(f"/v1/jobs/{job_id}"), as_json, _write_job)


@job.command("cancel")
def job_cancel(job_id: JobId, as_json: Json = False) -> None:
    """Stop a job and free its GPUs.

    Examples:
        ringlight job cancel light
    """
    answer(call("DELETE", f"/v1/jobs/{job_id}"), as_json, _write_job)


@job.command("release")
def job_release(
    job_ids: Annotated[list[str], typer.Argument(metavar="JOB…")],
    delay: Annotated[str, typer.Option(help="Time until the common start.")] = "300 ms",
    as_json: Json = False,
) -> None:
    """Start held jobs together.

    Examples:
        ringlight job submit light --ranks g0,g3 --hold
        ringlight job release light
    """
    from ringlight.fabric.units import parse_time

    try:
        delay_s = parse_time(delay)
    except ValueError as error:
        fail(f"--delay: {error}", 2)
    reply = call("POST", "/v1/jobs/release", {"jobs": job_ids, "delay_s": delay_s})
    answer(reply, as_json, lambda _: echo(f"released: {', '.join(job_ids)}"))


@job.command("watch")
def job_watch(job_id: JobId, as_json: Json = False) -> None:
    """Follow a job to its end. Exit code 1 when it does not succeed.

    Examples:
        ringlight job watch light
    """
    cursor, state = 0, ""
    with connection() as api:
        while state not in ("SUCCEEDED", "FAILED", "CANCELLED"):
            document = api.get(f"/v1/jobs/{job_id}")
            news = api.get(f"/v1/jobs/{job_id}/events", cursor=cursor)
            cursor = news["cursor"]
            for event in news["events"]:
                # Rank 0 speaks for all: the ranks go in step.
                if not as_json and event["event"] == "iteration" and event["rank"] == 0:
                    seconds = event["allreduce_end"] - event["compute_start"]
                    # A workload's iteration trains nothing.
                    loss = (
                        ""
                        if event.get("loss") is None
                        else f", loss {event['loss']:.3f}"
                    )
                    say(f"iteration {event['i'] + 1}: {seconds:.3f} s{loss}")
            if document["state"] == state:
                time.sleep(0.2)
            else:
                state = document["state"]
                say(f"{job_id}: {state}")
    answer(document, as_json, _write_job)
    if state != "SUCCEEDED":
        raise typer.Exit(1)


def _write_job(document: Mapping[str, Any]) -> None:
    echo(
        f"{document['id']}: {document['state']}"
        + (f", {document['error']}" if document["error"] else "")
    )
    listing(
        document["ranks"],
        "rank",
        ("GPU", "gpu"),
        "state",
        ("exit code", "exit_code"),
        "error",
    )
