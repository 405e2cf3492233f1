"""The experiment language: what a file becomes."""

from __future__ import annotations

import time
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from ringlight.experiments.backends.emulation.backend import EmulationBackend
from ringlight.experiments.backends.simulation.backend import SimulationBackend
from ringlight.experiments.cli.show import show_check
from ringlight.experiments.language.expand import Experiment, load, parse
from ringlight.experiments.language.plan import RunPlan
from ringlight.experiments.language.text import ScenarioError, parse_yaml
from ringlight.experiments.runner.check_document import check_document
from ringlight.experiments.runner.command import load_checked
from ringlight.experiments.runner.experiment import choose
from tests.scenario_notes import notes_of

ROOT = Path(__file__).parents[2]
FILES = sorted([*ROOT.glob("scenarios/**/*.yaml"), *ROOT.glob("tests/data/*.yaml")])


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_bundled_file_is_read(path: Path, long: bool) -> None:
    experiment = load_checked(path, sets=() if long else notes_of(path.stem).fewer)
    assert experiment.plans
    assert len({plan.name for plan in experiment.plans}) == len(experiment.plans)


def test_the_demo_as_run_plans() -> None:
    experiment = load(ROOT / "scenarios/disaggregation.yaml")
    plans = {plan.name: plan for plan in experiment.plans}
    assert list(plans) == [
        "a-fragmented",
        "a-regrouped",
        "b-fragmented",
        "b-regrouped",
        "contiguous",
        "live",
    ]
    assert len({id(plan.setting) for plan in experiment.plans}) == 1
    red, blue = plans["a-fragmented"].jobs
    assert (red.ranks, red.iterations, red.loop.gradient_bytes) == (
        ("g0", "g3", "g1", "g4"),
        18,
        1_383_576,
    )
    assert (blue.iterations, blue.loop.compute_s) == (
        36,
        pytest.approx(0.19278 * 28 / 16),
    )
    assert plans["b-regrouped"].job("red").ranks == ("g0", "g3", "g1")
    assert [event.do for event in plans["b-regrouped"].events] == ["regroup"]
    assert plans["b-regrouped"].events[0].when.start
    live = plans["live"].events[0].when
    assert (live.job, live.iteration) == ("red", 6)
    assert plans["live"].job("blue").beacon_s == pytest.approx(0.005)


SMALL = """
name: small
description: Two switches.
parameters:
  nic: {value: 10 Gbit/s, source: assumed, why: usual}
fabric:
  servers:
    s0: {gpus: {g0: x, g1: x}}
    s1: {gpus: {g2: x, g3: x}}
  packet_switches: {tor0: {ports: 4}, tor1: {ports: 4}}
  links:
    - {ends: [g0, "tor0:1"], rate: $nic}
    - {ends: [g1, "tor0:2"], rate: $nic}
    - {ends: [g2, "tor1:1"], rate: $nic}
    - {ends: [g3, "tor1:2"], rate: $nic}
    - {ends: ["tor0:3", "tor1:3"], rate: $nic}
training: {model: resnet50, gpu: pascal-titan-x, batch: 16, samples: 320, seed: 100}
jobs:
  red: {ranks: [g0, g2]}
  blue: {ranks: [g1, g3]}
"""


def plans(more: str = "", text: str = SMALL, **options: Any) -> dict[str, RunPlan]:
    return {
        plan.name: plan for plan in parse(text + more, "small.yaml", **options).plans
    }


def refused(more: str, text: str = SMALL) -> str:
    with pytest.raises(ScenarioError) as caught:
        parse(text + more, "small.yaml")
    return str(caught.value).removeprefix("small.yaml: ")


def test_without_arms_there_is_one_and_without_jobs_one_on_all_gpus() -> None:
    text = SMALL[: SMALL.index("jobs:")]
    (plan,) = plans(text=text).values()
    assert (plan.name, plan.arm, plan.repeat, dict(plan.point)) == (
        "base",
        "base",
        1,
        {},
    )
    assert plan.job("train").ranks == ("g0", "g1", "g2", "g3")
    assert plan.setting.name == "fabric"
    assert list(
        plans("arms: {a: {jobs.train.ranks: [g0, g1]}}", text)["a"].job("train").ranks
    ) == [
        "g0",
        "g1",
    ]


ONLY_FABRIC = """
fabric:
  servers: {s0: {gpus: {g0: gpu, g1: gpu}}}
  packet_switches: {tor0: {ports: 4}}
  links:
    - {ends: [g0, "tor0:1"], rate: 1 Gbit/s}
    - {ends: [g1, "tor0:2"], rate: 1 Gbit/s}
"""


@pytest.mark.parametrize(
    ("path", "name"), [("a/My lab.yaml", "my-lab"), ("7.yaml", "fabric-7")]
)
def test_a_file_with_only_a_fabric_is_one(path: str, name: str) -> None:
    found = parse(ONLY_FABRIC, path)
    (plan,) = found.plans
    assert (found.spec.name, found.spec.description, plan.jobs) == (name, "", ())
    assert list(found.one_setting().fabric.gpus) == ["g0", "g1"]
    for backend in (SimulationBackend(), EmulationBackend("namespace")):
        assert backend.refuses(plan) is None
        with pytest.raises(
            ScenarioError,
            match=rf"{path}: jobs: missing, so nothing runs; .*ringlight up",
        ):
            choose(found, backend)
    assert "no jobs, so nothing to run; 1 fabric" in shown(found)
    trained = parse(
        ONLY_FABRIC,
        path,
        sets=["training={model: vgg16, compute: 1 s, batch: 1, iterations: 1}"],
    )
    assert [job.ranks for job in trained.plans[0].jobs] == [("g0", "g1")]
    with pytest.raises(ScenarioError, match="events: they happen while jobs train"):
        parse(
            f"{ONLY_FABRIC}\nevents: [{{when: {{at: 1 s}}, do: kill, target: controller}}]",
            path,
        )
    with pytest.raises(ScenarioError, match="jobs: there is none"):
        parse(f"name: a\n{ONLY_FABRIC}\njobs: {{}}", path)


def shown(found: Experiment) -> str:
    """What ``check`` prints."""
    with redirect_stdout(StringIO()) as printed:
        show_check(check_document(found))
    return printed.getvalue()


def test_a_part_of_a_scale_that_the_machine_would_choose_is_set() -> None:
    text = f"name: auto\nscale: auto\n{ONLY_FABRIC}"
    assert parse(text, "a.yaml", sets=["scale.time=8"]).plans[0].setting.scale.time == 8
    with pytest.raises(
        ScenarioError,
        match=r"a\.yaml: --set scale\.tim: unknown key; the nearest is scale\.time",
    ):
        parse(text, "a.yaml", sets=["scale.tim=8"])


def test_mappings_are_merged_and_a_key_of_ones_own_holds() -> None:
    text = """
a: &a {x: 1, y: 2}
b: &b {<<: *a, y: 3}
c: {z: 0, <<: [{x: 9}, *b], y: 4}
d: {<<: *b}
"""
    assert parse_yaml(text, "a.yaml") == {
        "a": {"x": 1, "y": 2},
        "b": {"x": 1, "y": 3},
        "c": {"x": 9, "y": 4, "z": 0},
        "d": {"x": 1, "y": 3},
    }
    switches = ONLY_FABRIC.replace(
        "{tor0: {ports: 4}}", "{tor0: &p {ports: 4}, tor1: {<<: *p, ports: 2}}"
    )
    fabric = parse(switches, "a.yaml").plans[0].setting.fabric
    assert [switch.ports for switch in fabric.packet_switches.values()] == [4, 2]


LINKED = """
name: linked
scale: {time: 2}
fabric:
  servers: {s0: {gpus: {g0: rtx4090, g1: p100}}}
  packet_switches: {tor0: {ports: 4}, tor1: {ports: 4}}
  links:
    - {ends: [g0, "tor0:1"], rate: 1 Gbit/s}
    - {ends: [g1, "tor1:1"], rate: 1 Gbit/s}
    - {ends: ["tor1:2", "tor0:2"], rate: 1 Gbit/s}
training: {model: resnet50, compute: 50 ms, batch: 8, iterations: 6, collective: ring}
events: [{when: {at: 1 s}, do: cut, target: link tor0 tor1}]
"""


def test_a_link_may_be_named_by_the_two_nodes_that_only_it_joins() -> None:
    (event,) = parse(LINKED, "a.yaml").plans[0].events
    assert str(event.target) == "link tor1:2 tor0:2"
    assert str(
        parse(LINKED.replace("tor0 tor1", "g0 tor0:1"), "a.yaml")
        .plans[0]
        .events[0]
        .target
    ) == ("link g0 tor0:1")
    twice = LINKED.replace(
        "training", '    - {ends: ["tor0:3", "tor1:3"], rate: 1 Gbit/s}\ntraining'
    )
    for text, said in (
        (
            twice,
            "there are 2 links between tor0 and tor1: tor1:2 tor0:2, tor0:3 tor1:3; name one by its ports",
        ),
        (
            LINKED.replace("tor0 tor1", "g0 tor1"),
            "there is no link between g0 and tor1",
        ),
        (LINKED.replace("tor0 tor1", "tor0:4 tor1:4"), "there is no link at tor0:4"),
        (
            LINKED.replace("tor0 tor1", "tor0:2 tor1:4"),
            "the link at tor0:2 leads to tor1:2, not to tor1:4",
        ),
    ):
        with pytest.raises(ScenarioError) as caught:
            parse(text, "a.yaml")
        assert str(caught.value) == f"a.yaml: events.1.target: {said}"


def test_a_gpu_that_no_table_knows_is_reported() -> None:
    assert (
        "fabric: no table has the times of p100, rtx4090; a job there takes"
        in shown(
            parse(
                LINKED.replace("cut", "kill").replace("link tor0 tor1", "controller"),
                "a.yaml",
            )
        )
    )
    known = parse(ONLY_FABRIC.replace("g1: gpu", "g1: a100"), "a.yaml")
    assert "no table" not in shown(known)


LEVELS = ["a0: &a0 {" + ", ".join(f"k{i}: 0" for i in range(50)) + "}"]
LEVELS += [
    f"a{n}: &a{n} {{k{n}x: 0, <<: [{', '.join([f'*a{n - 1}'] * 50_000)}]}}"
    for n in range(1, 3)
]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: {<<: 7}", "line 1: << should merge a mapping, or a list of mappings"),
        (
            "a: {<<: [{}, 7]}",
            "line 1: << should merge a mapping, or a list of mappings",
        ),
        ("a: &a {<<: *a}", "nested too deep"),
        (
            "a: &a {x: 1}\nb: {<<: *a, x: 2, x: 3}",
            "line 2: the key 'x' is also on line 2",
        ),
        ("\n".join(LEVELS), "line 2: << merges more than 1000000 keys"),
        (f"parameters: $x\n{ONLY_FABRIC}", "parameters: should be a mapping, not '$x'"),
        (
            "name: a\nfabrics: {7: }",
            "fabrics.7: a name should be a text; write it in quotes",
        ),
        (
            f"name: Case_1\n{ONLY_FABRIC}",
            "name: should be lower-case letters, digits and hyphens, beginning with a letter, of at most 40 "
            "characters, not 'Case_1'",
        ),
        (
            f"parameters: {{Nic: {{value: 1, source: assumed, why: x}}}}\n{ONLY_FABRIC}",
            "parameters.Nic: should be lower-case letters, digits and underscores, beginning with a letter",
        ),
    ],
)
def test_what_is_no_scenario_is_one_line(text: str, said: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        parse(text, "a.yaml")
    assert str(caught.value).startswith("a.yaml: ")
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_names_of_plans_by_arm_point_and_repeat() -> None:
    more = "arms: {a: {}, b: {}}\nsweep: [{arms: b, over: {training.batch: [8, 16], scale.time: [1, 2]}}]\n"
    assert list(plans(more)) == ["a", "b-1", "b-2", "b-3", "b-4"]
    assert dict(plans(more)["b-2"].point) == {"training.batch": 8, "scale.time": 2}
    again = plans(more + "repeat: 2\n")
    assert list(again) == [
        "a",
        "b-1",
        "b-2",
        "b-3",
        "b-4",
        "a-r2",
        "b-1-r2",
        "b-2-r2",
        "b-3-r2",
        "b-4-r2",
    ]
    assert (again["b-3-r2"].repeat, again["b-3-r2"].setting) == (
        2,
        again["b-3"].setting,
    )
    assert list(plans("repeat: 5\n", repeat=2)) == ["base", "base-r2"]
    assert "a point of arm b has that name" in refused(more.replace("{a:", "{b-1:"))


def test_an_arm_begins_from_what_it_is_like_and_puts_its_own_over_it() -> None:
    found = plans("""
arms:
  a: {title: First, training.batch: 8, jobs.red.ranks: [g2, g0]}
  b: {like: a, training.batch: 32}
  c: {like: b, jobs.red.training.seed: 1}
""")
    assert [plan.title for plan in found.values()] == ["First", "b", "c"]
    assert [plan.job("red").loop.batch for plan in found.values()] == [8, 32, 32]
    assert found["c"].job("red").ranks == ("g2", "g0")
    assert found["c"].job("red").loop.seed == 1


def test_each_job_has_a_seed_of_its_own_unless_it_names_one() -> None:
    assert [job.loop.seed for job in plans()["base"].jobs] == [100, 101]
    assert (
        plans("arms: {a: {jobs.blue.training.seed: 5}}")["a"].job("blue").loop.seed == 5
    )


def test_who_says_a_thing_the_other_way_means_it_instead() -> None:
    found = plans("""
arms:
  base: {}
  iterations: {training.iterations: 7}
  time: {jobs.red.training: {compute: 3 ms}}
  placed: {jobs.red.gpus: 3}
""")
    assert [found[name].job("red").iterations for name in ("base", "iterations")] == [
        10,
        7,
    ]
    assert found["time"].job("red").loop.compute_s == pytest.approx(0.003)
    assert found["time"].job("blue").loop.compute_s == pytest.approx(0.10358)
    assert (found["placed"].job("red").ranks, found["placed"].job("red").gpus) == (
        (),
        3,
    )


def test_a_gradient_in_place_of_the_models() -> None:
    assert (
        plans("scale: {payload: 3}")["base"].job("red").loop.gradient_bytes
        == 34_076_044
    )
    found = plans("scale: {payload: 3}\narms: {a: {jobs.red.training.gradient: 1 MB}}")
    assert found["a"].job("red").loop.gradient_bytes == 333_332
    assert "the model that is trained needs 9640" in refused(
        "arms: {a: {training.gradient: 9 kB}}"
    )


def test_paths_lead_into_lists_by_position_and_to_events_by_name_or_number() -> None:
    events = """
events:
  - {when: {at: 1 s}, do: cut, target: link tor0:3 tor1:3}
  - {name: back, when: {at: 2 s}, do: restore, target: link tor0:3 tor1:3}
"""
    arm = "{'fabric.links[4].rate': 1 Gbit/s, events.1.when.at: 4 s, events.back.when.at: 5 s}"
    found = plans(f"{events}\nscale: {{time: 3}}\narms: {{a: {arm}}}")["a"]
    assert [event.when.at_s for event in found.events] == [12.0, 15.0]
    assert [event.name for event in found.events] == ["1", "back"]
    assert found.setting.fabric.links[4].rate_bps == 1e9
    assert "the nearest is fabric.links[4].rate" in refused(
        "arms: {a: {'fabric.links[5].rate': 1 Gbit/s}}"
    )
    assert "the nearest is events.back.when" in refused(
        events + "arms: {a: {events.bakc.when: start}}"
    )


def test_a_section_that_may_be_left_out_is_made_and_no_other() -> None:
    assert plans("arms: {a: {tcp.rto_min: 5 ms}}")["a"].setting.tcp.rto_min == 0.005
    assert plans("arms: {a: {jobs.blue.start.after: red}}")["a"].job(
        "blue"
    ).start.after == ("red",)
    said = refused("arms: {a: {jobs.green.start.after: red}}")
    assert said.startswith(
        "arms.a.jobs.green.start.after: there is no jobs.green; the nearest is jobs."
    )
    assert refused("arms: {a: {fabric.lniks: []}}").endswith(
        "unknown key; the nearest is fabric.links"
    )


def test_a_parameter_is_swept_through_everything_that_refers_to_it() -> None:
    found = plans("sweep: {parameters.nic.value: [10 Gbit/s, 25 Gbit/s]}")
    assert [plan.setting.fabric.links[0].rate_bps for plan in found.values()] == [
        10e9,
        25e9,
    ]
    said = refused("sweep: {parameters.nic.value: [10 Gbit/s, 25 s]}")
    assert said.startswith("fabric.links[0].rate: '25 s' is not a rate")
    assert said.endswith(
        "(from parameters.nic) (in a run where sweep has parameters.nic.value = 25 s)"
    )
    assert refused("arms: {a: {'fabric.links[0].rate.x': 1}}").startswith(
        "arms.a.fabric.links[0].rate.x: "
    )


def test_a_list_of_values_may_be_a_parameter() -> None:
    text = SMALL.replace(
        "parameters:",
        "parameters:\n  sizes: {value: [4, 8], source: assumed, why: both}",
    )
    assert [
        dict(p.point) for p in plans("sweep: {training.batch: $sizes}", text).values()
    ] == [
        {"training.batch": 4},
        {"training.batch": 8},
    ]


def test_jobs_that_arrive() -> None:
    text = SMALL[: SMALL.index("jobs:")]
    jobs = plans(
        """
scale: {time: 10}
jobs:
  red: {ranks: all}
  blue: {gpus: 2, start: {at: 2 s}}
  green: {gpus: 2, start: {at: 1 s, after: [red, blue]}}
  late: {gpus: 2, start: event, beacon: 5 ms, slower: {1: 1.5}, may_fail: true}
events: [{when: {ended: green}, do: start, target: job late}]
""",
        text,
    )["base"].jobs
    red, blue, green, late = jobs
    assert red.start.at_once
    assert (blue.start.at_s, blue.start.at_once, blue.gpus) == (20.0, False, 2)
    assert (green.start.at_s, green.start.after) == (10.0, ("red", "blue"))
    assert (late.start.by_event, late.beacon_s, late.stragglers, late.may_fail) == (
        True,
        0.05,
        {1: 1.5},
        True,
    )


def test_what_becomes_of_a_job_follows_from_the_events_that_lose_its_gpus() -> None:
    def rules(*events: str, jobs: str = "") -> dict[str, str]:
        listed = "".join(
            f"\n  - {{when: {{at: 1 s}}, do: lose, {event}}}" for event in events
        )
        found = plans(f"events:{listed}\n", SMALL + jobs)["base"].jobs
        return {job.name: job.on_loss for job in found}

    assert rules("target: gpu g0") == {"red": "fail", "blue": "fail"}
    assert rules("target: gpu g0, then: shrink") == {"red": "shrink", "blue": "fail"}
    assert rules("target: gpu g0, then: swap", "target: gpu g1, then: fail") == {
        "red": "swap",
        "blue": "fail",
    }
    assert rules("target: gpu g0", "target: gpu g1") == {"red": "fail", "blue": "fail"}
    assert rules(
        "target: gpu g0, then: swap", jobs="  green: {gpus: 2, start: {after: red}}\n"
    ) == {
        "red": "swap",
        "blue": "fail",
        "green": "swap",
    }
    with pytest.raises(
        ScenarioError, match=r"events\.2\.then: fail, but event 1 says swap of job red"
    ):
        rules("target: gpu g0, then: swap", "target: gpu g2, then: fail")


def test_a_problem_is_told_where_the_user_wrote_it() -> None:
    assert refused("arms: {a: {jobs.red.rank: [g0]}}") == (
        "arms.a.jobs.red.rank: unknown key; the nearest is jobs.red.ranks"
    )
    assert refused("sweep: {training.batch: [4, 0]}") == (
        "sweep.training.batch[1]: should be greater than or equal to 1, not 0"
    )
    assert refused("sweep: [{arms: base, over: {training.batch: [0]}}]") == (
        "sweep[0].over.training.batch[0]: should be greater than or equal to 1, not 0"
    )
    assert refused("arms: {a: {jobs.red.ranks: [g0, g1]}}") == (
        "jobs.blue.ranks: GPU g1 is used by job red too (in arm a)"
    )
    assert refused("tcp: {rto: 1 s}\narms: {a: {training.batch: 3}}") == (
        "tcp.rto: unknown key; the nearest is rto_min"
    )
    assert refused("arms: {a: {like: b}, b: {like: a}}").startswith(
        "arms.a.like: circular: a is like b"
    )


def test_thousands_of_points_share_what_does_not_change() -> None:
    sizes = ", ".join(f"{size} MB" for size in range(100, 150))
    seeds = ", ".join(map(str, range(40)))
    began = time.process_time()
    found = plans(f"sweep: {{training.gradient: [{sizes}], training.seed: [{seeds}]}}")
    assert len(found) == 2000
    assert len({id(plan.setting) for plan in found.values()}) == 1
    assert time.process_time() - began < 5


def test_names_of_metrics_are_checked_where_they_are_known() -> None:
    compare = "arms: {a: {}, b: {}}\ncompare: {baseline: a, metrics: [jtc]}\n"
    assert plans(compare)
    with pytest.raises(
        ScenarioError,
        match=r"compare\.metrics: there is no metric jtc; the nearest is jct",
    ):
        plans(compare, metrics={"jct": "s", "iteration": "s"})


def test_a_published_figure_is_in_the_unit_of_its_metric() -> None:
    units = {"jct": "s", "accuracy": "1"}

    def published(figure: str) -> str | None:
        try:
            plans(
                f"paper: {{citation: X}}\npublished: [{{arm: base, {figure}}}]\n",
                metrics=units,
            )
        except ScenarioError as error:
            return str(error).removeprefix("small.yaml: ")
        return None

    assert published("metric: jct, value: 407 s") is None
    assert (
        published("metric: jct, value: 407")
        == "published[0].value: jct is in s, this in 1"
    )
    assert (
        published("metric: jct, range: [1 s, 5 GB]")
        == "published[0].range: jct is in s, this in bytes"
    )
    assert published("metric: accuracy, value: 80 %") is None
    assert published("metric: jct, over: base, value: 3.5") is None
    assert (
        published("metric: jct, over: base, value: 3 s")
        == "published[0].value: jct is in 1, this in s"
    )


def test_what_a_paper_says() -> None:
    paper = "paper: {citation: X, says: {sense: none}}\n"
    assert plans(paper)
    with pytest.raises(
        ScenarioError, match=r"paper\.says\.sense: the page has no such part"
    ):
        plans(paper, parts=lambda: ["completion"])
    experiment = parse(
        SMALL
        + paper
        + "published:\n  - {arm: base, metric: jct, value: 120 s}\n"
        + "  - {arm: base, metric: accuracy, value: 80.2 %}\n"
        + "  - {arm: base, over: base, metric: jct, range: [0.5, 2], words: about the same}\n",
        "small.yaml",
    )
    first, second, third = experiment.spec.published
    assert (first.value.value, first.value.unit) == (120.0, "s")  # type: ignore[union-attr]
    assert (second.value.value, second.value.unit) == (80.2, "%")  # type: ignore[union-attr]
    assert third.range is not None
    assert [figure.value for figure in third.range] == [0.5, 2.0]


def light(
    fabric: str, jobs: str = "red: {ranks: all}", collective: str = "ring"
) -> str:
    return f"""
name: light
description: x
fabric: {{{fabric}}}
training: {{model: resnet50, compute: 1 ms, batch: 1, iterations: 2, collective: {collective}}}
jobs: {{{jobs}}}
"""


BESIDE = """servers: {s0: {gpus: {g0: x, g1: x}}}, packet_switches: {tor0: {ports: 3}, tor1: {ports: 3}},
  links: [{ends: [g0, "tor0:1"], rate: 1 Gbit/s}, {ends: [g1, "tor0:2"], rate: 1 Gbit/s}]"""
#: g1 on the other switch, which nothing joins to the first; its link left out; its link dark.
APART = BESIDE.replace("tor0:2", "tor1:2")
UNPLUGGED = BESIDE.replace(', {ends: [g1, "tor0:2"], rate: 1 Gbit/s}', "")
DARK = BESIDE.replace("tor0:2", "ocs0:1") + ", optical_switches: {ocs0: {size: 4}}"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (light(UNPLUGGED), "fabric.links: GPU g1 is not plugged in"),
        (light(APART), "fabric.links: "),
        (light(DARK), "jobs.red.ranks: GPU g1 has no circuit in fabric.circuits, so it is dark"),
    ],
)  # fmt: skip
def test_a_job_that_does_not_fit_its_fabric(text: str, said: str) -> None:
    assert refused("", text).startswith(said)


@pytest.mark.parametrize(
    ("event", "said"),
    [
        ("{when: start, do: regroup}", "do: fabric has no optical circuit switch"),
        ('{when: start, do: circuits, circuits: [[g0, "tor0:1"]]}', "circuits: no optical switch joins"),
        ('{when: start, do: circuits, circuits: [[g0, "tor0:4"]]}', "circuits: there is no port tor0:4"),
        ("{when: {at: 1 s}, do: cut, target: link tor0:3 tor1:1}", "target: the link at tor0:3 leads to"),
        ("{when: {at: 1 s}, do: cut, target: link tor0:4 tor1:4}", "target: there is no link at tor0:4"),
        ("{when: {at: 1 s}, do: lose, target: nic g0, then: swap}", "then: a job whose NIC is lost fails"),
        ("{when: {job: red, iteration: 10}, do: kill, target: controller}", "when.iteration: 10, but job"),
        ("{when: {at: 1 s}, do: kill, target: agent g0}", "target: there is no GPU g0 whose O-NIC has"),
        ("{when: {at: 1 s}, do: kill, target: worker red 2}", "target: job red has ranks 0 to 1, no 2"),
        ("{when: {at: 1 s}, do: start, target: job red}", "target: job red starts by itself"),
    ],
)  # fmt: skip
def test_an_event_that_cannot_be(event: str, said: str) -> None:
    assert refused(f"events: [{event}]").startswith(f"events.1.{said}")


def test_regrouping_is_for_rings() -> None:
    text = (ROOT / "tests/data/mini.yaml").read_text()
    said = refused(
        "", text.replace("samples: 128", "samples: 128, collective: halving-doubling")
    )
    assert said == (
        "arms.regrouped.events.1.do: regrouping is planned for rings, but job red is halving-doubling"
    )
