"""Pictures of the live view and the README's animation, from a run with an arm that is regrouped while it trains.

    .venv/bin/python -m tests.extensions.page.pictures         # makes the run first: needs root and Chromium
    .venv/bin/python -m tests.extensions.page.pictures RUN     # of a run folder

Writes ``light.gif``, ``view.png``, ``view-narrow.png`` and ``view-deuteranopia.png`` in docs/images, and the
line below the README's animation. Refuses a run of a changed tree, or with a bad rating.
"""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ringlight.experiments.language.text import ScenarioError
from ringlight.experiments.record.version import ROOT
from ringlight.extensions.page.recorded import Recorded
from ringlight.extensions.page.single_file import single_file
from tests.browser import CHROMIUM, Browser, browser

IMAGES = ROOT / "docs" / "images"
#: The run that is drawn, as words of the program, and the longest time that it may take, seconds.
RUN, LONGEST_S = ("run", "scenarios/disaggregation.yaml", "--arm", "live"), 900.0
README, CAPTION = ROOT / "README.md", re.compile(r"(?<=<!-- animation -->\n).*")
#: Bytes that the animation may have, colours of its palette, and seconds that a frame stays.
MOST_BYTES, COLOURS, FRAME_S = 1_500_000, 64, 0.1
#: What the animation leaves out, and how it says what happens.
_LOOKS = """
.curves > :nth-child(n + 3), .key li:has(select), .stage h2, .events, .note { display: none !important; }
.picture { height: 356px !important; }
.said { margin: 0 0 6px; min-height: 24px; font-size: 17px; font-weight: 600; }
"""
#: Before and after light moves: seconds of the run, and frames.
_AROUND, _DARK = ((1.2, 9), (3.0, 22)), 12


def moments(take: dict[str, Any]) -> list[tuple[float, str]]:
    """Moments of the frames and what is said of each: light that moves, slowly while it is dark.

    Raises ScenarioError without any.
    """
    change = next(
        (event for event in take["events"] if event["event"] == "circuits"), None
    )
    times = [
        (xc["t_dark"], xc["t_lit"])
        for one in (change or {"changes": {}})["changes"].values()
        for xc in one["add"]
        if xc["t_dark"] is not None and xc["t_lit"] is not None
    ]
    if not times:
        raise ScenarioError(f"run {take['name']}: no light was dark in it")
    dark, lit = min(t for t, _ in times), max(t for _, t in times)
    (before_s, before), (after_s, after) = _AROUND
    edge = 0.2 * (lit - dark)
    scattered = (
        f"Scattered: an iteration of job red takes {_iteration_s(take, dark):.1f} s"
    )
    fibres, longest_s = len(times) // 2, max(end - begin for begin, end in times)
    moving = (
        f"The optical switch moves {fibres} fibres: dark for {1000 * longest_s:.0f} ms"
    )
    regrouped = f"Regrouped while it trains: {_iteration_s(take, lit + after_s):.1f} s"
    return [
        *((t, scattered) for t in _even(dark - before_s, dark, before)),
        *((t, moving) for t in _even(dark, lit + edge, _DARK)),
        *((t, regrouped) for t in _even(lit + edge, lit + after_s, after)),
    ]


def _iteration_s(take: dict[str, Any], t: float, job: str = "red") -> float:
    """Seconds of the last iteration that had ended by ``t``."""
    laps = take["laps"][job]
    ended = [
        (begin, end)
        for begin, end in zip(laps["begin"], laps["end"], strict=True)
        if end <= t
    ]
    begin, end = ended[-1]
    return float(end - begin)


def _even(begin: float, end: float, count: int) -> Iterator[float]:
    return (begin + (end - begin) * step / count for step in range(count))


def animation(tab: Browser, at: Sequence[tuple[float, str]]) -> bytes:
    """GIF of the picture and the first curves at these moments."""
    from PIL import Image

    looks = f"Object.assign(document.createElement('style'), {{textContent: {json.dumps(_LOOKS)}}})"
    said = "Object.assign(document.createElement('p'), {className: 'said'})"
    tab.run(
        f"document.head.append({looks}), document.querySelector('.both').before({said}), 0"
    )
    _seek(tab, at[0][0])
    place = "document.querySelector('.stage').getBoundingClientRect()"
    box = tab.run(f"(({{x, y, width, height}}) => ({{x, y, width, height}}))({place})")
    frames = []
    for number, (t, words) in enumerate(at):
        tab.run(f"document.querySelector('.said').textContent = {json.dumps(words)}, 0")
        _seek(tab, t, number)
        shot = tab.picture(clip=box)
        with Image.open(io.BytesIO(shot)) as image:
            frames.append(
                image.convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE)
            )
    made = io.BytesIO()
    times = [round(1000 * FRAME_S)] * (len(frames) - 1) + [2500]
    frames[0].save(
        made,
        "GIF",
        save_all=True,
        append_images=frames[1:],
        duration=times,
        loop=0,
        optimize=True,
    )
    return made.getvalue()


def _seek(tab: Browser, t: float, frame: int = 0) -> None:
    tab.run(
        f"ringlight.clock.seek({t}), new Promise(go => requestAnimationFrame(() => setTimeout(() => {{"
        f" for (const one of ringlight.drawings) one.picture.animate({frame} * 150); go(); }}, 150)))"
    )


def _open(tab: Browser, url: str, width: int, height: int) -> None:
    tab.screen(width, height)
    tab.open("about:blank")
    tab.open(url)
    tab.wait(
        "window.ringlight && ringlight.drawings.size > 0 && ringlight.clock.to > 1"
    )


def draw(folder: Path) -> list[Path]:
    """The files that were written. Raises ScenarioError, OSError."""
    recorded = Recorded(folder)
    names = [one["name"] for one in recorded.index()["takes"] if one["eventful"]]
    if not names:
        raise ScenarioError(f"{folder}: no arm of it is regrouped while it trains")
    take = recorded.take(names[0])
    at = moments(take)
    with TemporaryDirectory() as place, browser() as tab:
        file = Path(place, "page.html")
        file.write_text(single_file([recorded]), encoding="utf-8")
        _open(tab, file.as_uri(), 1120, 700)
        gif = animation(tab, at)
        if len(gif) > MOST_BYTES:
            raise ScenarioError(
                f"the animation has {len(gif)} bytes, more than {MOST_BYTES}"
            )
        (IMAGES / "light.gif").write_bytes(gif)
        moved = at[-(_AROUND[1][1]) + 2][0]
        _open(tab, file.as_uri(), 1280, 900)
        _seek(tab, moved)
        tab.picture(IMAGES / "view.png")
        tab.call("Emulation.setEmulatedVisionDeficiency", type="deuteranopia")
        tab.picture(IMAGES / "view-deuteranopia.png")
        tab.call("Emulation.setEmulatedVisionDeficiency", type="none")
        _open(tab, file.as_uri(), 400, 900)
        _seek(tab, moved)
        tab.picture(IMAGES / "view-narrow.png")
    for name in ("view.png", "view-deuteranopia.png", "view-narrow.png"):
        _with_palette(IMAGES / name)
    return [
        IMAGES / name
        for name in (
            "light.gif",
            "view.png",
            "view-deuteranopia.png",
            "view-narrow.png",
        )
    ]


def caption(facts: Mapping[str, Any], rating: str) -> str:
    """Return the line about a run. Raises ScenarioError for one that the README must not show.

    ``facts``: the run's environment.json; ``rating``: good, doubtful or bad.
    """
    if rating == "bad":
        raise ScenarioError("the run is rated bad")
    if facts.get("commit", "-dirty").endswith("-dirty"):
        raise ScenarioError("the run is not of a commit")
    return (
        f"Measured on {facts['processor']}, {facts['processors']} processors, commit {facts['commit']}, "
        f"{facts['started'][:10]}, rated {rating}; `./ringlight {' '.join(RUN)}`, "
        "drawn by `python -m tests.extensions.page.pictures`."
    )


def rating_of(folder: Path) -> str:
    """Return the rating of a run folder. Raises OSError."""
    rating: str = json.loads((folder / "result.json").read_bytes())["fidelity"][
        "verdict"
    ]
    return rating


def made(runs: Path) -> Path:
    """Make the run in a folder of run folders and return its own. Raises ScenarioError if the command fails."""
    command = (sys.executable, "-m", "ringlight.experiments.cli.app", *RUN)
    ended = subprocess.run(
        [*command, "--runs", runs], cwd=ROOT, timeout=LONGEST_S, check=False
    )
    folders = sorted(runs.glob("*/"))
    if ended.returncode or not folders:
        raise ScenarioError(f"ringlight {' '.join(RUN)}: exit code {ended.returncode}")
    return folders[-1]


def _with_palette(file: Path) -> None:
    from PIL import Image

    with Image.open(file) as image:
        smaller = image.convert("RGB").quantize(128)
    smaller.save(file, optimize=True)


def main(arguments: Sequence[str]) -> int:
    if len(arguments) > 1 or CHROMIUM is None:
        print(
            "usage: python -m tests.extensions.page.pictures [RUN]; it needs Chromium",
            file=sys.stderr,
        )
        return 2
    try:
        with TemporaryDirectory() as place:
            folder = Path(arguments[0]) if arguments else made(Path(place))
            line = caption(Recorded(folder).environment, rating_of(folder))
            written = draw(folder)
        README.write_text(CAPTION.sub(lambda _: line, README.read_text(), count=1))
    except (ScenarioError, OSError, subprocess.TimeoutExpired) as error:
        print(f"pictures: {error}", file=sys.stderr)
        return 2
    for file in written:
        print(f"{file}: {file.stat().st_size} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
