"""The gallery: a page for each bundled scenario file, with a picture of its fabric and the file's text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from matplotlib import rc_context

from docs.site.pages import listing, toctree, write
from docs.site.topology import topology
from ringlight.experiments.language.bundled import SCENARIOS, listed
from ringlight.experiments.language.expand import parse
from ringlight.experiments.language.plan import RunPlan
from ringlight.experiments.language.model_keys import keys_of
from ringlight.experiments.language.spec import RunSpec
from ringlight.experiments.language.text import parse_yaml, plain_yaml
from ringlight.experiments.report.drawing import STYLE
from ringlight.experiments.runner.machine import real_scale

INDEX = Path("examples.md")
_WORDS = (
    "GPUs have the colours of their jobs; a coloured line is light at the start, a grey one a cable or dark "
    "fibre. Optical switches have a yellow edge."
)


def write_gallery(out: Path) -> None:
    """Write the gallery's pages and pictures into the site's source."""
    examples = listed()
    for name, question in examples.items():
        picture = out / _picture(name)
        picture.parent.mkdir(parents=True, exist_ok=True)
        with rc_context(STYLE):
            topology(first_run(SCENARIOS / name)).savefig(picture)
        write(out / _page(name), _example(name, question))
    write(out / INDEX, _index(examples))


def first_run(path: Path) -> RunPlan:
    """Return the plan of the first run of a scenario file.

    The others are not expanded: thousands of runs take a minute.
    """
    raw: dict[str, Any] = dict(parse_yaml(path.read_text(encoding="utf-8"), str(path)))
    kept = {key: raw[key] for key in ("name", "arms", *keys_of(RunSpec)) if key in raw}
    # It may name a published figure of an arm that is left out.
    for parameter in kept.get("parameters", {}).values():
        parameter.pop("fitted_to", None)
    if arms := kept.get("arms"):
        first = next(iter(arms))
        kept["arms"] = {first: {k: v for k, v in (arms[first] or {}).items() if k != "sweep"}}
    return parse(plain_yaml(kept), str(path), scale_for=real_scale).plans[0]


def _page(name: str) -> Path:
    return Path("examples", f"{name.removesuffix('.yaml')}.md")


def _picture(name: str) -> Path:
    return Path("examples", f"{name.removesuffix('.yaml')}.svg")


def _title(name: str) -> str:
    return name.removesuffix(".yaml").rpartition("/")[2]


def _index(examples: Mapping[str, str]) -> Iterator[str]:
    yield from ["# Examples", ""]
    yield "Each is one scenario file. `ringlight examples` lists them, `ringlight examples copy NAME` copies one."
    parts = {
        "One thing each": [name for name in examples if name.startswith("examples/")],
        "Your own containers": [name for name in examples if name.startswith("containers/")],
        "Studies": [name for name in examples if "/" not in name],
    }
    for title, names in parts.items():
        if names:
            yield from ["", f"## {title}", "", "::::{grid} 1 1 2 3", ":gutter: 3", ""]
            for name in names:
                yield from _card(name, examples[name])
            yield "::::"
    ordered = (name for names in parts.values() for name in names)
    yield from ["", *toctree({_title(name): _page(name) for name in ordered})]


def _card(name: str, question: str) -> Iterator[str]:
    yield f":::{{grid-item-card}} {_title(name)}"
    yield f":img-top: {_picture(name)}"
    yield f":img-alt: Fabric of {_title(name)}"
    yield ":class-img-top: example"
    yield f":link: /{_page(name).with_suffix('')}"
    yield from [":link-type: doc", "", question, ":::", ""]


def _example(name: str, question: str) -> Iterator[str]:
    title = _title(name)
    yield from [f"# {title}", "", question, ""]
    yield from [f"![Fabric of {title}]({_picture(name).name})", "", _WORDS, ""]
    yield from [f"    ringlight examples copy {name.removesuffix('.yaml')}"]
    yield from [f"    ringlight check {_title(name)}.yaml", ""]
    yield from ["## File", "", *listing(SCENARIOS / name), ""]
