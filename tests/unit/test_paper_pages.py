"""What a page says about a paper comes from the scenario file; a scenario without one says nothing of any."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from experiments.language.text import ScenarioError
from experiments.runner.progress import Reporter
from scenarios.comparison import Comparison, parse
from scenarios.runfolder import RunFolder, finish
from scenarios.schema import Scenario, parse_scenario
from scenarios.simulated import SimulationOptions, simulate
from scenarios.study_runner import simulate_study
from tests.synthetic_comparison import ENVIRONMENT, synthesize
from tests.unit.page import Page, text_of
from tests.unit.test_study import small, study_of

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
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in prose:
            yield node.lineno, node.value


def test_no_program_of_scenarios_says_a_word_about_a_paper() -> None:
    found = [
        f"{path.name}:{line}: {said}"
        for path in sorted((ROOT / "scenarios").glob("*.py"))
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


def comparison_of(raw: dict[str, Any]) -> Comparison:
    found = parse(yaml.safe_dump(raw, allow_unicode=True), "c.yaml")
    assert isinstance(found, Comparison)
    return found


def two_packet_switches() -> dict[str, Any]:
    raw = raw_of("tests/data/mini_oddl.yaml")
    del raw["trouble"]
    raw["name"] = "two-switches"
    raw["description"] = "One job on two packet switches."
    raw["fabrics"] = {"one": raw["fabrics"]["ideal"], "two": {**raw["fabrics"]["ideal"], "title": "Another"}}
    raw["baseline"] = "one"
    return raw


def test_a_regrouping_without_a_paper(tmp_path: Path) -> None:
    scenario = parse(
        (ROOT / "tests" / "data" / "mini.yaml").read_text(encoding="utf-8"), "tests/data/mini.yaml"
    )
    check_neutral(simulate(scenario, SimulationOptions(tmp_path), Reporter())[0])


def test_a_regrouping_names_the_paper_of_its_file(tmp_path: Path) -> None:
    raw = yaml.safe_load((ROOT / "tests" / "data" / "mini.yaml").read_text(encoding="utf-8"))
    raw["paper"] = {"citation": "Doe, 1999"}
    del raw["live"]
    scenario = parse(yaml.safe_dump(raw), "doe.yaml")
    folder = simulate(scenario, SimulationOptions(tmp_path), Reporter())[0]
    assert "After Doe, 1999." in said_on(folder)


def test_two_packet_switches_are_not_told_what_light_cannot_do(tmp_path: Path) -> None:
    comparison = comparison_of(two_packet_switches())
    with RunFolder(tmp_path, comparison) as folder:
        folder.describe(**{**ENVIRONMENT, "onic_timings": {}})
        for event in synthesize(comparison).events:
            folder.copy(event)
    finish(folder.path)
    about = ("by light", "the light", "tuning", "handshake", "on the grid", "Acknowledgements", "WRHT")
    check_neutral(folder.path, *about)
    simulated = simulate(comparison, SimulationOptions(tmp_path), Reporter())[0]
    check_neutral(simulated, *about)


def test_a_ring_of_wavelengths_without_the_tree_does_not_speak_of_it(tmp_path: Path) -> None:
    raw = raw_of("tests/data/mini_wrht.yaml")
    raw["fabrics"]["light"] = raw["fabrics"].pop("wrht") | {"collective": "ring", "title": "Ring of light"}
    raw["name"] = "light"
    check_neutral(simulate(comparison_of(raw), SimulationOptions(tmp_path), Reporter())[0], "WRHT")


def test_a_study_without_a_paper(tmp_path: Path) -> None:
    raw = small(systems=["wrht", "wrht-striped", "ring"], nodes=[64], wavelengths=[8], reach=[4])
    raw["study"]["base"]["nodes"] = 64
    raw["description"] = "Two all-reduces on a ring."
    raw["parameters"] = {
        name: entry | {"source": "assumed", "why": "as in the other"}
        for name, entry in raw["parameters"].items()
    }
    # The system names itself.
    raw["study"]["gradients"] = {"m": "$resnet50"}
    raw["study"]["base"]["gradient"] = "m"
    del raw["paper"], raw["study"]["published"]
    folder, _ = simulate_study(study_of(raw), tmp_path, Reporter(), processes=1)
    check_neutral(folder)


def test_what_the_file_says_stands_on_its_page(tmp_path: Path) -> None:
    raw = two_packet_switches()
    raw["paper"] = {
        "citation": "Doe, On <Switches>, 1999",
        "says": {"training_time": "It took Doe a year."},
        "limits": {"Doe's patience": "Nobody waited for a year."},
    }
    words = said_on(simulate(comparison_of(raw), SimulationOptions(tmp_path), Reporter())[0])
    assert "After Doe, On <Switches>, 1999." in words
    assert "It took Doe a year." in words.split("Training time", 1)[1]
    limits = words.split("What cannot be claimed", 1)[1]
    assert "Doe's patience . Nobody waited for a year." in limits.replace("patience.", "patience .")


@pytest.mark.parametrize("name", ["disaggregation", "oddl_4"])
def test_published_figures_need_a_paper(name: str) -> None:
    raw = raw_of(f"scenarios/{name}.yaml")
    del raw["paper"]
    key = r"published: of which paper\?"
    with pytest.raises(ScenarioError, match=key):
        parse(yaml.safe_dump(raw, allow_unicode=True), "s.yaml")


def test_a_part_that_the_page_does_not_have_is_named() -> None:
    raw = raw_of("scenarios/disaggregation.yaml")
    raw["paper"]["says"]["memory"] = "nothing"
    with pytest.raises(ScenarioError, match=r"s\.yaml: paper\.says\.memory: the page has no such part"):
        parse_scenario(yaml.safe_dump(raw, allow_unicode=True), "s.yaml")


def test_the_bundled_scenarios_name_their_papers() -> None:
    for path in sorted((ROOT / "scenarios").glob("*.yaml")):
        assert raw_of(f"scenarios/{path.name}")["paper"]["citation"], path
    found = parse((ROOT / "scenarios" / "disaggregation.yaml").read_text(encoding="utf-8"), "d.yaml")
    assert isinstance(found, Scenario)
    assert found.spec.paper is not None
