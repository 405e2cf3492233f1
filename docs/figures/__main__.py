"""Writes blocks into the pages, and pictures beside them; see ``docs.figures``."""

from __future__ import annotations

import argparse
import importlib
import pkgutil
import re
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import docs.figures
from docs.figures.parts import Block, Picture, RunKind
from ringlight.experiments.language.text import ScenarioError, read_text
from ringlight.experiments.record.version import ROOT
from ringlight.experiments.record.writing import WriteError, write_whole
from ringlight.experiments.report.report import render
from ringlight.experiments.report.view import View
from ringlight.experiments.runner.command import view_of_folder


def _blocks() -> Iterator[tuple[str, Block]]:
    """Yield the blocks of every module beside this one that has ``BLOCKS``."""
    for found in pkgutil.iter_modules(docs.figures.__path__, "docs.figures."):
        if not found.name.endswith("__main__"):
            yield from getattr(importlib.import_module(found.name), "BLOCKS", {}).items()


BLOCKS: Mapping[str, Block] = dict(_blocks())
BLOCK = re.compile(r"<!-- figures: (\S+) -->\n(.*?)<!-- end -->", re.DOTALL)
#: Colours of a picture's palette: its lines', and those between them and the paper.
_COLOURS = 128
_COMMAND = {"measured": "run", "simulated": "simulate"}

#: Finished runs by the text of their scenario and how their figures are known.
Runs = Mapping[tuple[str, RunKind], View]


def runs_of(folders: Iterable[Path]) -> Runs:
    """Raises ScenarioError for a folder without a whole run, and for two of the same."""
    found: dict[tuple[str, RunKind], View] = {}
    for folder in folders:
        view, _ = view_of_folder(folder)
        kind: RunKind = "simulated" if view.simulated else "measured"
        if not view.complete:
            raise ScenarioError(f"{folder}: this run is not complete")
        other = found.setdefault((view.experiment.text, kind), view)
        if other is not view:
            raise ScenarioError(f"{folder} and {other.name}: two {kind} runs of one scenario; give one")
    return found


def attempt(runs: Runs) -> tuple[dict[str, str], dict[str, str]]:
    """The text of each block that can be made, and for the others why not."""
    done, left = {}, {}
    for name, block in BLOCKS.items():
        try:
            done[name] = made(block, runs)
        except ScenarioError as error:
            left[name] = str(error)
    return done, left


def made(block: Block, runs: Runs) -> str:
    """The text of a block. Raises ScenarioError where a run of today's scenario, or a figure, is missing."""
    text = read_text(ROOT / "scenarios" / f"{block.scenario}.yaml")
    if missing := [kind for kind in block.kinds if (text, kind) not in runs]:
        raise ScenarioError(f"no {' and '.join(missing)} run of scenarios/{block.scenario}.yaml")
    views = {kind: runs[text, kind] for kind in block.kinds}
    said = " ".join(_made_by(view, kind, block.scenario) for kind, view in views.items())
    return f"{block.body(views)}\n\n{said}\n"


def _made_by(view: View, kind: RunKind, scenario: str) -> str:
    """Machine, commit, day and command."""
    facts = view.environment
    code = (
        f"commit {facts['commit']}" if "commit" in facts else f"code version {facts.get('code', 'unknown')}"
    )
    return (
        f"{kind.capitalize()} on {facts['processor']}, {facts['processors']} processors, {code}, "
        f"{facts['started'][:10]}; `./ringlight {_COMMAND[kind]} scenarios/{scenario}.yaml`."
    )


def draw(runs: Runs) -> None:
    """The pictures of these runs. Raises OSError, and ScenarioError for a run whose report lacks one."""
    wanted: dict[tuple[str, RunKind], list[Picture]] = {}
    for block in BLOCKS.values():
        if isinstance(block, Picture):
            text = read_text(ROOT / "scenarios" / f"{block.scenario}.yaml")
            wanted.setdefault((text, block.kind), []).append(block)
    for key in wanted.keys() & runs.keys():
        with tempfile.TemporaryDirectory() as folder:
            render(runs[key], Path(folder), png=True)
            for picture in wanted[key]:
                drawn = Path(folder, f"{picture.plot}.png")
                if not drawn.exists():
                    raise ScenarioError(f"{runs[key].name}: its report has no picture {picture.plot}")
                _smaller(drawn, ROOT / "docs" / "images" / picture.file)


def _smaller(drawn: Path, file: Path) -> None:
    """Writes a picture with a palette: charts have few colours, and take a fifth of the bytes so."""
    from PIL import Image

    with Image.open(drawn) as image:
        image.convert("RGB").quantize(_COLOURS).save(file, optimize=True)


def pages() -> list[Path]:
    """The files that may have blocks."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def written(text: str, page: Path, done: Mapping[str, str]) -> str:
    """The page's text with the blocks anew that are made."""
    images = "docs/images" if page.parent == ROOT else "images"

    def anew(found: re.Match[str]) -> str:
        name = found[1]
        body = found[2] if name not in done else done[name].replace("{images}", images)
        return f"<!-- figures: {name} -->\n{body}<!-- end -->"

    return BLOCK.sub(anew, text)


def main(arguments: Sequence[str] | None = None) -> int:
    said = (docs.figures.__doc__ or "").splitlines()[0]
    parser = argparse.ArgumentParser(prog="python -m docs.figures", description=said)
    parser.add_argument("runs", nargs="*", type=Path, metavar="RUN", help="finished run folders")
    parser.add_argument(
        "--check", action="store_true", help="write nothing; name the blocks that are not made"
    )
    asked = parser.parse_args(arguments)
    try:
        runs = runs_of(asked.runs)
        done, left = attempt(runs)
        if not asked.check:
            draw(runs)
            for page in pages():
                text = read_text(page)
                if (new := written(text, page, done)) != text:
                    write_whole(page, new)
    except (ScenarioError, WriteError, OSError) as error:
        print(f"figures: {error}", file=sys.stderr)
        return 2
    for name, why in left.items():
        print(f"not made: {name} ({why})")
    return 1 if asked.check and left else 0


if __name__ == "__main__":
    sys.exit(main())
