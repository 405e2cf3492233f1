"""The scenario file: the bundled one is sound, and every mistake is one line naming file and key."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from experiments.language.text import ScenarioError
from fabric.topology import Port
from scenarios.schema import Scenario, load_scenario, parse_scenario

BUNDLED = Path(__file__).parents[2] / "scenarios" / "disaggregation.yaml"
MINI = Path(__file__).parents[1] / "data" / "mini.yaml"


@pytest.fixture(scope="module")
def bundled() -> Scenario:
    return load_scenario(BUNDLED)


def test_bundled_scenario_is_the_papers_testbed(bundled: Scenario) -> None:
    fabric = bundled.fabric
    assert len(bundled.spec.fabric.servers) == 4
    assert list(fabric.gpus) == ["g0", "g1", "g2", "g3", "g4", "g5"]
    assert sorted(fabric.packet_switches) == ["tor0", "tor1"]
    assert fabric.optical_switches["ocs0"].size == 14
    assert fabric.link_at[Port("tor0", 5)].other(Port("tor0", 5)) == Port("tor1", 5)
    assert [bundled.iterations(n) for n in (4, 3, 2)] == [18, 24, 36]
    assert bundled.gradient_bytes % 4 == 0


def test_derived_parameters_agree_with_what_they_are_derived_from(bundled: Scenario) -> None:
    nic = bundled.fabric.link_at[Port("g0", 0)].rate_bps
    uplink = bundled.fabric.link_at[Port("tor0", 5)].rate_bps
    assert nic / uplink == pytest.approx(3.1, rel=1e-3)
    exchange = 553_430_176 * 8 / nic
    assert bundled.compute_s / exchange == pytest.approx(292 / 96, rel=0.01)
    assert bundled.gradient_bytes * 8 / (nic / bundled.rate_scale) == pytest.approx(exchange, rel=1e-3)


def test_every_parameter_is_used_and_explained(bundled: Scenario) -> None:
    body = bundled.text.split("fabric:", 1)[1]
    for name, parameter in bundled.spec.parameters.items():
        assert f"${name}" in body
        assert len(parameter.why) > 20


def test_mini_scenario_is_sound() -> None:
    assert load_scenario(MINI).spec.live is not None


Edit = Callable[[dict[str, Any]], object]


def set_at(*path: str | int, value: object) -> Edit:
    def edit(raw: dict[str, Any]) -> None:
        at: Any = raw
        for part in path[:-1]:
            at = at[part]
        at[path[-1]] = value

    return edit


BAD: dict[str, tuple[Edit, list[str]]] = {
    "unknown key": (set_at("fabrik", value={}), ["fabrik", "unknown key"]),
    "unknown nested key": (set_at("fabric", "links", 3, "colour", value=1), ["fabric.links[3].colour"]),
    "port used twice": (
        set_at("fabric", "links", 1, "ends", value=["g1", "ocs0:1"]),
        ["fabric.links[1]", "ocs0:1", "links[0]"],
    ),
    "port that does not exist": (
        set_at("fabric", "links", 0, "ends", value=["g0", "ocs0:15"]),
        ["fabric.links[0].ends", "ocs0", "15"],
    ),
    "circuit port used twice": (
        set_at("parameters", "placement", "value", 1, value=["g1", "tor0:1"]),
        ["fabric.", "tor0:1"],
    ),
    "job larger than the fabric": (
        set_at("cases", "a", "jobs", "red", value=[f"g{i}" for i in range(7)]),
        ["cases.a.jobs.red", "7 ranks", "6 GPUs"],
    ),
    "GPU of two jobs": (
        set_at("cases", "a", "jobs", "blue", value=["g0", "g2"]),
        ["cases.a.jobs.blue", "g0", "red"],
    ),
    "GPU that does not exist": (
        set_at("cases", "b", "jobs", "red", value=["g0", "g9"]),
        ["cases.b.jobs.red", "g9"],
    ),
    "dark GPU": (
        lambda raw: raw["parameters"]["placement"]["value"].pop(),
        ["cases.a.jobs.blue", "g5", "circuit"],
    ),
    "rate of zero": (
        set_at("fabric", "links", 14, "rate", value="0 Gbit/s"),
        ["fabric.links[14].rate", "greater than 0", "0 Gbit/s"],
    ),
    "rate of zero behind a name": (
        set_at("parameters", "uplink_rate", "value", value="0 Gbit/s"),
        ["fabric.links[14].rate", "parameters.uplink_rate"],
    ),
    "rate without unit": (
        set_at("fabric", "links", 0, "rate", value=40e9),
        ["fabric.links[0].rate", "unit"],
    ),
    "unknown parameter": (set_at("training", "batch", value="$bach"), ["training.batch", "bach"]),
    "parameter without a reason": (
        set_at("parameters", "batch", value={"value": 28, "source": "assumed"}),
        ["parameters.batch.why", "missing"],
    ),
    "watched job missing": (set_at("cases", "a", "watched", value="green"), ["cases.a.watched", "green"]),
    "variant of no case": (
        set_at("variants", "contiguous", "case", value="c"),
        ["variants.contiguous.case", "case c"],
    ),
    "live too late": (set_at("live", "after_iterations", value=18), ["live.after_iterations", "18"]),
    "GPU without timing": (set_at("parameters", "gpu", "value", value="abacus"), ["training.gpu", "abacus"]),
    "payload scale too large": (set_at("scale", "payload", value=1e7), ["scale.payload"]),
    "missing section": (lambda raw: raw.pop("training"), ["training", "missing"]),
}


@pytest.mark.parametrize("name", BAD)
def test_a_mistake_is_one_line_naming_file_and_key(name: str) -> None:
    edit, expected = BAD[name]
    raw = yaml.safe_load(BUNDLED.read_text())
    edit(raw)
    with pytest.raises(ScenarioError) as caught:
        parse_scenario(yaml.safe_dump(raw, sort_keys=False), "bad.yaml")
    message = str(caught.value)
    assert message.startswith("bad.yaml: ")
    assert "\n" not in message
    for part in expected:
        assert part in message


def test_a_key_written_twice_is_refused() -> None:
    text = BUNDLED.read_text() + "\nname: again\n"
    with pytest.raises(ScenarioError, match=r"bad\.yaml: line \d+: the key 'name' is also on line \d+"):
        parse_scenario(text, "bad.yaml")


@pytest.mark.parametrize(("text", "part"), [("[1, 2", "line [12]"), ("just words", "mapping")])
def test_what_is_no_scenario_is_refused(text: str, part: str) -> None:
    with pytest.raises(ScenarioError, match=part):
        parse_scenario(text, "bad.yaml")


def test_a_missing_file_is_named() -> None:
    with pytest.raises(ScenarioError, match=r"nowhere\.yaml: cannot be read"):
        load_scenario("nowhere.yaml")
