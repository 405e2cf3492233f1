"""The page in Chromium: how soon it shows, how smoothly it scrubs, what it costs the controller.

``replay``: a run of ten minutes on 64 GPUs, simulated: seconds to the first picture, frames per second while
it is scrubbed, memory of the page. ``live``: a lab of 64 GPUs without containers: seconds to the first
picture; from the call that lights or removes a circuit until the page shows it, and until the call is
answered; the processor share of the controller before there ever was a page, with one, with one and nine that
follow its stream, and when all are closed. ``demo``: the bundled demo without a page and with one open, three
times in turn: verdicts, the difference of the medians of GPU utilisation, and how far runs without a page are
apart. ``hour``: memory of its tab before and after an hour of samples and events, given
at once.
"""

from __future__ import annotations

import json
import statistics
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx
import yaml

from benchmarks.harness import (
    lab_up,
    need_root,
    of_jobs,
    processor_share,
    ringlight,
    spread,
    start,
    tell,
)
from ringlight.experiments.client import Api
from tests.browser import Browser, browser
from tests.extensions.page.watched import HOUR, SCRUB, scenario

#: Bars: seconds, frames per second, shares of a processor, MiB, points of GPU utilisation; and how far two
#: shares of a processor may be apart that count as the same.
SEEN_S, FIRST_S, REPLAY_S, SCRUB_HZ, ONE_SHARE, TEN_SHARE = (
    0.25,
    1.0,
    2.0,
    30.0,
    0.05,
    0.15,
)
MEMORY_MIB, POINTS, SAME_SHARE = 200.0, 1.0, 0.01
_SHOWN = "window.ringlight && ringlight.drawings.size > 0"


def _opened(tab: Browser, url: str) -> float:
    """Seconds until the first picture."""
    tab.screen(1280)
    tab.open("about:blank")
    began = time.monotonic()
    tab.open(url)
    tab.wait(_SHOWN)
    return time.monotonic() - began


def _memory_mib(tab: Browser) -> float:
    tab.call("HeapProfiler.collectGarbage")
    return float(tab.run("performance.memory.usedJSHeapSize")) / 2**20


def replay(iterations: int = 580, rounds: int = 5) -> dict[str, Any]:
    from ringlight.controller.web.listening import listen
    from ringlight.controller.web.serving import HttpServer
    from ringlight.extensions.page.recorded import Recorded
    from ringlight.extensions.page.serving import address, application

    with TemporaryDirectory() as place, ExitStack() as stack:
        file = Path(place, "view.yaml")
        file.write_text(yaml.safe_dump(scenario(iterations)))
        tell("simulating")
        ringlight("simulate", str(file), "--runs", place, "--json")
        (folder,) = (path for path in Path(place).iterdir() if path.is_dir())
        first, tab = [], stack.enter_context(browser())
        for _ in range(rounds):
            # Read anew each time, as `ringlight view` does.
            listener = stack.enter_context(closing(listen("127.0.0.1", 0)))
            began = time.monotonic()
            server = HttpServer(application([Recorded(folder)]), listener, end_s=0)
            server.start()
            read_s = time.monotonic() - began
            first.append(read_s + _opened(tab, address(listener)))
            scrub_hz = float(tab.run(SCRUB.replace("SECONDS", "4")))
            span_s, memory = tab.run("ringlight.clock.to"), _memory_mib(tab)
            server.stop(at_once=True)
    missed = (
        [f"{max(first):.2f} s to the first picture"]
        if statistics.median(first) > REPLAY_S
        else []
    )
    missed += [f"{scrub_hz:.0f} frames a second"] if scrub_hz < SCRUB_HZ else []
    return {
        "run_s": span_s,
        "first_s": spread(first),
        "scrub_hz": scrub_hz,
        "memory_mib": memory,
        "missed": missed,
    }


def live(changes: int = 40, seconds: float = 6.0) -> dict[str, Any]:
    with _page_of_lab() as (lab, tab, first, none), Api(lab["url"]) as api:
        pid = lab["pids"]["controller"]
        one = processor_share(pid, seconds)
        seen, answered = _changes(tab, api, changes)
        with _followers(lab["url"], 9):
            ten = processor_share(pid, seconds)
        tab.open("about:blank")
        time.sleep(2.0)
        closed = processor_share(pid, 2 * seconds)
    seen_p95 = sorted(seen)[int(0.95 * len(seen))]
    checks = (
        (seen_p95, SEEN_S, "s from call to screen, p95"),
        (statistics.median(first), FIRST_S, "s to the first picture"),
        (one, ONE_SHARE, "of a processor with one page"),
        (ten, TEN_SHARE, "of a processor with ten"),
        (
            closed - none,
            SAME_SHARE,
            "of a processor more than before, with all pages closed",
        ),
    )
    return {
        "first_s": spread(first),
        "seen_s": {**spread(seen), "p95": seen_p95},
        "answered_s": spread(answered),
        "share": {"no page": none, "one page": one, "ten pages": ten, "closed": closed},
        "missed": [
            f"{found:.3g} {what}, not {bar:g}"
            for found, bar, what in checks
            if found > bar
        ],
    }


def demo(
    file: str = "scenarios/disaggregation.yaml",
    arm: str = "",
    runtime: str = "docker",
    rounds: int = 3,
) -> dict[str, Any]:
    """Run so many times without a page and with one, in turn. ``arm``: only this one of the file."""
    from tests.integration.controller_rig import free_port

    need_root()
    without, watched, shown = list[Any](), list[Any](), list[float]()
    with TemporaryDirectory() as place:
        rest = f"127.0.0.1:{free_port()}"
        words = (
            "--runtime",
            runtime,
            "--rest",
            rest,
            "--openflow",
            f"127.0.0.1:{free_port()}",
            "--json",
        )
        words += ("--runs", place, *(("--arm", arm) if arm else ()))
        for number in range(rounds):
            tell(f"without a page, {number + 1} of {rounds}")
            without.append(json.loads(ringlight("run", file, *words)))
            tell(f"with a page, {number + 1} of {rounds}")
            with browser() as tab, _kept_open(tab, f"http://{rest}") as when:
                watched.append(json.loads(ringlight("run", file, *words)))
            shown += when
    verdicts = [
        [run["fidelity"]["verdict"] for run in runs] for runs in (without, watched)
    ]
    before, after = (
        [of_jobs(run, "gpu_utilisation") for run in runs] for runs in (without, watched)
    )
    points = {
        subject: 100
        * (
            statistics.median(run[subject] for run in after)
            - statistics.median(run[subject] for run in before)
        )
        for subject in before[0]
    }
    apart = {
        subject: _apart([100 * run[subject] for run in before]) for subject in before[0]
    }
    missed = [
        f"{subject}: {found:+.2f} points"
        for subject, found in points.items()
        if abs(found) > POINTS
    ]
    missed += (
        [f"verdicts {verdicts}"] if sorted(verdicts[0]) != sorted(verdicts[1]) else []
    )
    missed += [] if len(shown) == rounds else ["the page was not always shown"]
    return {
        "verdicts": verdicts,
        "points": points,
        "points_apart_without": apart,
        "page_shown": len(shown),
        "missed": missed,
    }


def _apart(values: list[float]) -> float:
    return max(values) - min(values)


@contextmanager
def _kept_open(tab: Browser, url: str) -> Iterator[list[float]]:
    """The page of a lab that comes and goes, opened as soon as it answers; when it was shown."""
    ended, shown = threading.Event(), list[float]()

    def open_it() -> None:
        while not ended.wait(0.2):
            with suppress(httpx.HTTPError, TimeoutError, RuntimeError):
                httpx.get(f"{url}/v1/health", timeout=1.0, trust_env=False)
                tab.open(f"{url}/view/")
                tab.wait(_SHOWN)
                shown.append(time.monotonic())
                return

    thread = threading.Thread(target=open_it, daemon=True)
    thread.start()
    try:
        yield shown
    finally:
        ended.set()
        thread.join(40.0)


def hour() -> dict[str, Any]:
    with _page_of_lab() as (_, tab, _, _):
        before = _memory_mib(tab)
        tab.run(f"window.hour = 0, {HOUR}.then(kept => {{ window.hour = kept; }}), 0")
        kept, memory = tab.wait("window.hour", 120.0), _memory_mib(tab)
    missed = [f"{memory:.0f} MiB after an hour"] if memory > MEMORY_MIB else []
    return {
        "events_kept": kept,
        "before_mib": before,
        "after_mib": memory,
        "missed": missed,
    }


@contextmanager
def _page_of_lab() -> Iterator[tuple[dict[str, Any], Browser, list[float], float]]:
    """A lab, its page, the seconds to each first picture, and the controller's share before there was one."""
    with TemporaryDirectory() as place, ExitStack() as stack:
        file = Path(place, "view.yaml")
        file.write_text(yaml.safe_dump(scenario(20)))
        tell("bringing the lab up")
        lab = stack.enter_context(lab_up(file, "namespace"))
        none = _settled(lab["pids"]["controller"], 6.0)
        tab = stack.enter_context(browser())
        # A browser that has just started is busy with itself.
        _opened(tab, f"{lab['url']}/view/")
        first = [_opened(tab, f"{lab['url']}/view/") for _ in range(5)]
        tab.wait("ringlightLab.connected")
        yield lab, tab, first, none


def _changes(tab: Browser, api: Api, changes: int) -> tuple[list[float], list[float]]:
    """Seconds from a call until the page shows it, and until the call is answered."""
    standing = [one["ends"] for one in api.get("/v1/circuits")["circuits"]]
    seen, answered = [], []
    without = [pair for pair in standing if pair[0] != "g0"]
    api.put("/v1/circuits", {"circuits": without})
    tab.wait("![...ringlight.drawings][0].picture.lit.has('x ocs0:1 ocs0:65')")
    for number in range(changes):
        on = number % 2 == 0
        look = f"[...ringlight.drawings][0].picture.lit.has('x ocs0:1 ocs0:65') === {json.dumps(on)}"
        again = f"const look = () => ({look}) ? go(Date.now()) : requestAnimationFrame(look); look();"
        tab.run(f"window.seen = new Promise(go => {{ {again} }}), 0")
        began = time.time()
        api.put("/v1/circuits", {"circuits": standing if on else without})
        answered.append(time.time() - began)
        seen.append(tab.run("window.seen") / 1e3 - began)
        time.sleep(0.2)
    return seen, answered


def _settled(pid: int, seconds: float) -> float:
    """Share of one processor that a controller takes once what a lab's start left to be done is over."""
    before = processor_share(pid, seconds)
    for _ in range(10):
        share = processor_share(pid, seconds)
        if abs(share - before) < SAME_SHARE:
            return (share + before) / 2
        before = share
    return before


@contextmanager
def _followers(url: str, count: int) -> Iterator[None]:
    """So many more readers of the stream, as pages read it."""
    ended, clients = (
        threading.Event(),
        [httpx.Client(timeout=30.0, trust_env=False) for _ in range(count)],
    )

    def follow(client: httpx.Client) -> None:
        with client.stream("GET", f"{url}/v1/events?after=0&rates=true") as answer:
            for _ in answer.iter_bytes():
                if ended.is_set():
                    return

    threads = [
        threading.Thread(target=follow, args=(client,), daemon=True)
        for client in clients
    ]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        ended.set()
        for thread in threads:
            thread.join(5.0)
        for client in clients:
            client.close()


PARTS = (replay, live, demo, hour)

if __name__ == "__main__":
    start("tests.extensions.page.viewing", sys.argv[1:])
