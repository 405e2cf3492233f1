"""What a page says about a paper comes from the scenario file; a scenario without one says nothing of any."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from ringlight.experiments.backends.simulation.backend import SimulationBackend
from ringlight.experiments.language.expand import parse
from ringlight.experiments.language.job_sources import source_of
from ringlight.experiments.language.text import ScenarioError
from ringlight.experiments.runner.command import carry_out_experiment, load_checked
from tests.unit.page import Page, text_of

ROOT = Path(__file__).parents[2]
#: Authors, venues and systems of the papers, and how one speaks of a paper.
OF_PAPERS = re.compile(
    r"\b(Yan|Li|Dai|Bergman|Columbia|OFC|JOCN|PPoPP|ICPP|SIGCOMM|arXiv|ODDL|SiP-?ML|OptINC|VGG16|ImageNet)\b"
    r"|\bet al\b|\b[Tt]he paper|paper's|first author|\babstracts?\b|10\.5 ns|80\.2"
)


def strings(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """String constants of a module with their lines, without docstrings."""
    prose = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and id(node) not in prose
        ):
            yield node.lineno, node.value


def test_no_program_says_a_word_about_a_paper() -> None:
    experiments = ROOT / "experiments"
    # extensions/optinc/onn trains one paper's network, and says so; it makes no page of an experiment.
    found = [
        f"{path.relative_to(ROOT)}:{line}: {said}"
        for path in sorted(experiments.rglob("*.py"))
        if not path.is_relative_to(experiments / "onn")
        for line, said in strings(ast.parse(path.read_text(encoding="utf-8")))
        if OF_PAPERS.search(said)
    ]
    assert found == []


def said_on(folder: Path) -> str:
    return text_of(Page((folder / "report.html").read_text(encoding="utf-8")))


def check_neutral(folder: Path, *others: str) -> None:
    words = said_on(folder)
    assert not OF_PAPERS.search(words), OF_PAPERS.search(words)
    for other in others:
        assert other not in words
    assert "After " not in words.rpartition("Environment")[2]


def raw_of(name: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((ROOT / name).read_text(encoding="utf-8"))
    return found


def simulated(raw: dict[str, Any], parent: Path) -> Path:
    experiment = parse(yaml.safe_dump(raw, allow_unicode=True), "c.yaml")
    return carry_out_experiment(experiment, SimulationBackend(), parent)[0].path


def two_packet_switches() -> dict[str, Any]:
    gpus = [f"g{i}" for i in range(4)]
    links = [
        {"ends": [gpu, f"eps:{i + 1}"], "rate": "100 Gbit/s"}
        for i, gpu in enumerate(gpus)
    ]
    ideal = {
        "servers": {"s": {"gpus": dict.fromkeys(gpus, "gpu")}},
        "packet_switches": {"eps": {"ports": 4}},
    }
    return {
        "name": "two-switches",
        "description": "One job on two packet switches.",
        "scale": {"time": 1, "payload": 1600},
        "fabrics": {
            "one": {**ideal, "links": links},
            "two": {**ideal, "links": links, "title": "Another"},
        },
        "training": {
            "model": "resnet50",
            "compute": "80 ms",
            "batch": 32,
            "iterations": 8,
            "collective": "halving-doubling",
        },
        "arms": {"one": {"fabric": "one"}, "two": {"fabric": "two"}},
        "compare": {"baseline": "one", "metrics": ["jct"]},
    }


@pytest.mark.parametrize("name", ["mini"])
def test_an_experiment_without_a_paper(name: str, tmp_path: Path) -> None:
    check_without_paper(f"tests/data/{name}.yaml", tmp_path)


def check_without_paper(path: str, tmp_path: Path) -> None:
    """Check that the page of a file without its paper is of no paper."""
    raw = raw_of(path)
    for key in ("paper", "published"):
        raw.pop(key, None)
    raw["name"], raw["description"] = "plain", "Some jobs."
    for title in (*raw.get("fabrics", {}).values(), *raw["arms"].values()):
        title.pop("title", None)
    check_neutral(simulated(raw, tmp_path))


def test_two_packet_switches_are_not_told_what_light_cannot_do(tmp_path: Path) -> None:
    about = (
        "by light",
        "the light",
        "tuning ",
        "handshake",
        "on the grid",
        "Acknowledgements",
        "WRHT",
    )
    check_neutral(simulated(two_packet_switches(), tmp_path), *about)


def test_what_the_file_says_stands_on_its_page(tmp_path: Path) -> None:
    raw = two_packet_switches()
    raw["paper"] = {
        "citation": "Doe, On <Switches>, 1999",
        "says": {"comparison": "It took Doe a year."},
        "limits": {"Doe's patience": "Nobody waited for a year."},
    }
    words = said_on(simulated(raw, tmp_path))
    assert "After Doe, On <Switches>, 1999." in words
    assert "It took Doe a year." in words
    limits = words.split("What cannot be claimed", 1)[1]
    assert "Doe's patience . Nobody waited for a year." in limits.replace(
        "patience.", "patience ."
    )


@pytest.mark.parametrize("name", ["disaggregation"])
def test_published_figures_need_a_paper(name: str) -> None:
    raw = raw_of(f"scenarios/{name}.yaml")
    del raw["paper"]
    with pytest.raises(ScenarioError, match=r"^s\.yaml: published: of which paper\?"):
        parse(yaml.safe_dump(raw, allow_unicode=True), "s.yaml")


def test_a_part_that_the_page_does_not_have_is_named(tmp_path: Path) -> None:
    raw = raw_of("scenarios/disaggregation.yaml")
    raw["paper"]["says"]["memory"] = "nothing"
    path = tmp_path / "s.yaml"
    path.write_text(yaml.safe_dump(raw, allow_unicode=True))
    with pytest.raises(
        ScenarioError, match=r"s\.yaml: paper\.says\.memory: the page has no such part"
    ):
        load_checked(path)


def test_the_bundled_scenarios_name_their_papers() -> None:
    for path in sorted((ROOT / "scenarios").glob("*.yaml")):
        raw = raw_of(f"scenarios/{path.name}")
        assert source_of(raw.get("jobs")) is not None or raw["paper"]["citation"], path
