"""What all benchmarks share: commands from functions, figures of repeated runs, processes and labs.

A benchmark is a module with ``PARTS``: functions whose parameters are its options and that return a
document. Where there are several, each is a command of its own, and without one all run. A document's
``missed`` is what was not as it should be, and makes the exit code 1. Documents go to standard output, as
one of JSON with the machine and the commit; tables and progress to standard error.
"""

from __future__ import annotations

import functools
import gc
import importlib
import inspect
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeVar

import typer

from ringlight.testbed.process_start import end_process

ROOT = Path(__file__).resolve().parents[1]
RINGLIGHT = [sys.executable, "-m", "ringlight.experiments.cli.app"]
#: Longest wait for a program to answer or to end, seconds.
PATIENCE_S = 60.0
T = TypeVar("T")


def start(name: str, arguments: Sequence[str]) -> None:
    """Run a benchmark with the arguments of a command line. ``name``: of a module here, or whole."""
    module = importlib.import_module(name if "." in name else f"benchmarks.{name}")
    parts: Sequence[Callable[..., Any]] = module.PARTS
    began = datetime.now(UTC).isoformat(timespec="seconds")

    def report(found: tuple[str, Any] | None) -> None:
        every = ((part.__name__, part()) for part in parts if _needs_nothing(part))
        documents = dict([found] if found else every)
        whole = documents if len(parts) > 1 else documents[parts[0].__name__]
        print(
            json.dumps(
                {
                    "benchmark": name,
                    "machine": {**machine(), "started": began},
                    **whole,
                },
                indent=1,
            )
        )
        missed = [one for document in documents.values() for one in _missed(document)]
        for one in missed:
            tell(f"MISSED: {one}")
        sys.exit(bool(missed))

    app = typer.Typer(
        add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False,
        help=module.__doc__, invoke_without_command=True, result_callback=report, no_args_is_help=False,
    )  # fmt: skip
    # Else an app with one command has no result.
    app.callback()(lambda: None)
    for part in parts:
        about = (
            f"{module.__doc__}\n\n{part.__doc__ or ''}"
            if len(parts) == 1
            else part.__doc__
        )
        app.command(part.__name__.replace("_", "-"), help=about)(_named(part))
    first = parts[0].__name__.replace("_", "-")
    named = len(parts) > 1 or list(arguments[:1]) == [first]
    app(
        args=[*arguments] if named else [first, *arguments],
        prog_name=f"python -m {name if '.' in name else f'benchmarks {name}'}",
    )


def _needs_nothing(part: Callable[..., Any]) -> bool:
    options = inspect.signature(part).parameters.values()
    return all(option.default is not option.empty for option in options)


def _named(part: Callable[..., Any]) -> Callable[..., tuple[str, Any]]:
    @functools.wraps(part)
    def called(**options: Any) -> tuple[str, Any]:
        return part.__name__, part(**options)

    return called


def _missed(document: Any) -> Sequence[Any]:
    return document.get("missed", ()) if isinstance(document, Mapping) else ()


def machine() -> dict[str, Any]:
    """Machine, versions, commit and the load of the last minute."""
    # Here, as parts that measure a cold start import this module.
    from ringlight.experiments.record.environment import describe_machine

    return {**describe_machine(simulated=False), "load": os.getloadavg()[0]}


def check_known(option: str, given: Iterable[object], known: Iterable[object]) -> None:
    """End the benchmark for an option's value that is not one of the ``known``."""
    if unknown := [value for value in given if value not in set(known)]:
        raise SystemExit(
            f"{option} {unknown[0]}: there are {', '.join(map(str, known))}"
        )


def tell(line: str) -> None:
    """Print a line of progress."""
    print(line, file=sys.stderr, flush=True)


def show(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table in Markdown to standard error."""
    for cells in (heads, ["---"] * len(heads), *rows):
        tell(f"| {' | '.join(map(str, cells))} |")
    tell("")


# Figures


def spread(
    values: Iterable[float], unit: str = "", scale: float = 1.0
) -> dict[str, float]:
    """Count, minimum, median, 99th percentile and maximum of values times ``scale``; keys end in ``unit``."""
    from ringlight.experiments.analysis.statistics import percentile

    found = sorted(value * scale for value in values)
    figures = {
        "min": found[0], "median": statistics.median(found), "p99": percentile(found, 0.99), "max": found[-1]
    }  # fmt: skip
    return {
        "count": len(found),
        **{f"{name}{unit}": float(f"{f:.5g}") for name, f in figures.items()},
    }


def milliseconds(seconds: Iterable[float]) -> dict[str, float]:
    """:func:`spread` of times, in milliseconds."""
    return spread(seconds, "_ms", 1e3)


def timed(
    call: Callable[[], object],
    times: int,
    *,
    warm: int = 0,
    clock: Callable[[], float] = time.perf_counter,
) -> list[float]:
    """Seconds of each call; the first ``warm`` calls do not count."""
    for _ in range(warm):
        call()
    spent = []
    for _ in range(times):
        began = clock()
        call()
        spent.append(clock() - began)
    return spent


def in_turns(calls: Mapping[str, Callable[[], T]], rounds: int) -> dict[str, list[T]]:
    """What each call returned in every round. Every other round is in opposite order: only figures of calls
    side by side can be compared on a machine that does other work."""
    found: dict[str, list[T]] = {name: [] for name in calls}
    for number in range(rounds):
        for name in list(calls)[:: 1 if number % 2 else -1]:
            found[name].append(calls[name]())
    return found


def beside(
    ours: Sequence[float], peer: Sequence[float], limit_ms: Sequence[float]
) -> dict[str, Any]:
    """Times in milliseconds, their limit (median, 99th percentile) and the ratio of medians to a peer's."""
    ratio = statistics.median(ours) / statistics.median(peer)
    return {**milliseconds(ours), "limit_ms": list(limit_ms), "ratio": round(ratio, 3)}


def of_jobs(result: Mapping[str, Any], metric: str) -> dict[str, float]:
    """The run's own values of a metric in an object of result.json, by arm and subject."""
    rows = (
        row
        for row in result["rows"]
        if row["metric"] == metric and row["label"] != "published"
    )
    return {f"{row['arm']}, {row['subject']}": row["value"] for row in rows}


# Processes


def apart(function: Callable[..., dict[str, Any]], *arguments: Any) -> dict[str, Any]:
    """The document of a function in a process of its own, which starts cold, and what that process used."""
    began = time.perf_counter()
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        found = pool.submit(_with_usage, function, arguments).result()
    return found | {"whole_process_s": time.perf_counter() - began}


def _with_usage(
    function: Callable[..., dict[str, Any]], arguments: Sequence[Any]
) -> dict[str, Any]:
    gc.set_threshold(50_000, 20, 100)  # as the command has it (experiments/cli/app.py)
    found = function(*arguments)
    used = resource.getrusage(resource.RUSAGE_SELF)
    return found | {
        "processor_s": used.ru_utime + used.ru_stime,
        "memory_mib": used.ru_maxrss / 1024,
    }


def most_memory_mib() -> float:
    """The most resident memory that this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def processor_s(pid: int) -> float:
    """Processor time of a process so far. Raises OSError for none."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def processor_share(pid: int, seconds: float) -> float:
    """Share of one processor that a process takes in the next ``seconds``."""
    before, began = processor_s(pid), time.monotonic()
    time.sleep(seconds)
    return (processor_s(pid) - before) / (time.monotonic() - began)


@contextmanager
def running(
    command: Sequence[str],
    log: Path | None = None,
    env: Mapping[str, str] | None = None,
) -> Iterator[subprocess.Popen[bytes]]:
    """A program from the top of the tree, ended with the context. ``log``: file for what it says."""
    with (log or Path(os.devnull)).open("ab") as output:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=env,
        )
    try:
        yield process
    finally:
        end_process(process, 20.0)


def until(
    true: Callable[[], object],
    what: str,
    timeout_s: float = PATIENCE_S,
    pace_s: float = 0.01,
) -> None:
    """Wait until it is true. Raises TimeoutError with what was awaited."""
    deadline = time.monotonic() + timeout_s
    while not true():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not within {timeout_s:g} s")
        time.sleep(pace_s)


def need_root() -> None:
    """End the benchmark where this is not root."""
    if os.geteuid():
        raise SystemExit("needs root")


# Labs


def ringlight(*words: str) -> str:
    """Standard output of a command of ours. Raises CalledProcessError for a failure."""
    done = subprocess.run(
        [*RINGLIGHT, *words], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True
    )
    return done.stdout


@contextmanager
def empty_lab() -> Iterator[Any]:
    """A lab's name, whose namespaces, bridges and processes are removed with the context."""
    from ringlight.testbed.emulation.clean import clean
    from ringlight.testbed.lab import new_lab

    need_root()
    lab = new_lab()
    with lab.hold():
        try:
            yield lab
        finally:
            clean(lab.id)


@contextmanager
def lab_up(
    scenario: Path, runtime: str, took_s: dict[str, float] | None = None, *more: str
) -> Iterator[dict[str, Any]]:
    """A lab as ``up --json`` tells it, with the ``url`` of its controller; taken down with the context.

    ``took_s`` is given the seconds of each phase, by the files that it leaves. ``more``: options of ``up``.
    """
    # Here, as parts that measure a cold start import this module.
    from ringlight.testbed.lab import STATE_ROOT
    from tests.integration.controller_rig import free_port

    need_root()
    took_s = {} if took_s is None else took_s
    rest, openflow, began = (
        f"127.0.0.1:{free_port()}",
        f"127.0.0.1:{free_port()}",
        time.time(),
    )
    words = ("--json", "--runtime", runtime, "--rest", rest, "--openflow", openflow)
    lab = json.loads(ringlight("up", str(scenario), *words, *more))
    files = ("fabric.json", "inventory.json", "standing.json")
    moments = [
        began,
        *((STATE_ROOT / lab["lab"] / name).stat().st_mtime for name in files),
        time.time(),
    ]
    names = ("command and checks", "testbed", "controller healthy", "command's end")
    took_s |= {
        name: round(b - a, 3)
        for name, a, b in zip(names, moments, moments[1:], strict=False)
    }
    took_s["all"] = round(moments[-1] - began, 3)
    try:
        yield {
            **lab,
            "rest": rest,
            "openflow": openflow,
            "url": f"http://{rest}",
            "state": str(STATE_ROOT / lab["lab"]),
        }
    finally:
        began = time.monotonic()
        ringlight("down", lab["lab"])
        took_s["down"] = round(time.monotonic() - began, 3)
