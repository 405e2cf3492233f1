"""Mistakes in scenario files: each is one line that names file and key, and never a traceback.

They are made from the bundled files, beside which are the files of workloads that they name: every kind of
mistake wherever the file has a place for it.
"""

from __future__ import annotations

import copy
import random
import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from ringlight.experiments.language.expand import parse
from ringlight.experiments.language.job_sources import source_of
from ringlight.experiments.language.text import ScenarioError
from tests.examples import LARGE
from tests.matrix import on_reference
from tests.scenario_notes import notes_of

ROOT = Path(__file__).parents[2]
FILES = sorted(
    path
    for path in [*ROOT.glob("scenarios/**/*.yaml"), *ROOT.glob("tests/data/*.yaml")]
    # Large studies; tests/data has them in small, and sixty_four is the last one with fewer GPUs.
    if path.stem not in LARGE
    and not (notes_of(path.stem).study or notes_of(path.stem).untried)
)
NAMES = [str(path.relative_to(ROOT)) for path in FILES]
#: Files that take long to read. Without --long they get mistakes of the kinds that look at each of the keys;
#: other kinds, which are about what jobs, arms and events name, have some sixty files that are read soon.
LONG = ("scenarios/examples/sixty_four.yaml",)
#: Most mistakes of each kind in each file, always the same ones, without --long and with it.
SAMPLE, LONG_SAMPLE = 1, 2

#: libyaml's is ten times as quick, where yaml has it.
DUMPER = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
QUANTITY = re.compile(r"[0-9.]+ ([mµn]?s|[kMGT]?(bit/s|B))")

#: A key of the file, in which only titles of limits have spaces, or a line, and a sentence.
SAID = re.compile(r"a\.yaml: (line [0-9]+|([^\s:]|paper\.limits\.[^:]*)+): .+")

Path_ = tuple[str | int, ...]
Mistake = tuple[dict[str, Any], str]


@cache
def read(name: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((ROOT / name).read_text())
    return {"arms": {"base": {}}, **found}


def slow(name: str) -> bool:
    """Whether a file takes long to read: so do studies of thousands of jobs that a source makes."""
    study = (ROOT / name).parent == ROOT / "scenarios"
    slow = name in LONG or notes_of(Path(name).stem).slow
    return slow or (study and source_of(read(name).get("jobs")) is not None)


def refusal(raw: Mapping[str, Any] | str) -> str | None:
    """What a file is refused with; None where it is read. Anything but a ScenarioError goes through."""
    text = (
        raw
        if isinstance(raw, str)
        else yaml.dump(raw, Dumper=DUMPER, allow_unicode=True, sort_keys=False)
    )
    try:
        parse(text, "a.yaml", scale_for=on_reference)
    except ScenarioError as error:
        return str(error)
    return None


def at(raw: Any, path: Path_) -> Any:
    for step in path:
        raw = raw[step]
    return raw


def places(value: Any, path: Path_ = ()) -> Iterator[tuple[Path_, Any]]:
    """Every value in a file with its place."""
    yield path, value
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from places(inner, (*path, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from places(inner, (*path, index))


def changed(raw: Any, path: Path_, value: Any) -> Any:
    """A file with another value in one place; it shares all other places with ``raw``."""
    if not path:
        return value
    found = copy.copy(raw)
    # A key that is not there yet is the path's last.
    found[path[0]] = changed(raw[path[0]], path[1:], value) if path[1:] else value
    return found


def without(raw: Any, path: Path_) -> Any:
    """A file without the key at a place."""
    found = copy.copy(raw)
    if path[1:]:
        found[path[0]] = without(raw[path[0]], path[1:])
    else:
        del found[path[0]]
    return found


def free(path: Path_) -> bool:
    """Whether any key or text may stand there."""
    return path[:2] in (("paper", "says"), ("paper", "limits")) or (
        len(path) > 2 and path[2] == "value"
    )


def unknown_keys(raw: dict[str, Any]) -> Iterator[Mistake]:
    for path, value in places(raw):
        if isinstance(value, dict) and not free(path):
            yield changed(raw, (*path, "quite_new"), 1), "quite_new"


def swept(raw: dict[str, Any]) -> set[str]:
    """Return the dotted paths whose values in the file no run has."""
    sweeps = raw.get("sweep") or []
    listed = sweeps if isinstance(sweeps, list) else [sweeps]
    return {path for sweep in listed for path in sweep.get("over", ())}


def wrong_types(raw: dict[str, Any]) -> Iterator[Mistake]:
    for path, value in places(raw):
        if ".".join(map(str, path)) in swept(raw):
            continue
        if path and not isinstance(value, dict) and path[-1] != "like":
            names = [str(step) for step in path if isinstance(step, str)]
            if not (path[0] == "parameters" and path[-1] == "value"):
                yield changed(raw, path, {"odd": {}}), names[0]


def no_units(raw: dict[str, Any]) -> Iterator[Mistake]:
    for path, value in places(raw):
        if (
            isinstance(value, str)
            and QUANTITY.fullmatch(value)
            and path[0] != "published"
        ):
            keys = [step for step in path if isinstance(step, str)]
            if path[0] == "parameters":
                # The mistake shows where the parameter is used.
                yield (
                    changed(raw, path, float(value.split()[0])),
                    f"parameters.{keys[1]}",
                )
            else:
                yield changed(raw, path, float(value.split()[0])), "no unit"


def wrong_units(raw: dict[str, Any]) -> Iterator[Mistake]:
    for mistake, key in no_units(raw):
        for path, value in places(mistake):
            if isinstance(value, float) and isinstance(at(raw, path), str):
                yield (
                    changed(raw, path, "3 apples"),
                    "3 apples" if key == "no unit" else key,
                )


def lacking(raw: dict[str, Any]) -> Iterator[Mistake]:
    yield {other: value for other, value in raw.items() if other != "name"}, "name"
    if "training" in raw:
        yield (
            {other: value for other, value in raw.items() if other != "training"},
            "training",
        )
        for key in ("model", "batch"):
            yield changed(raw, ("training", key), None), f"training.{key}"
    else:
        (job,) = raw["jobs"]
        does = "image" if "image" in raw["jobs"][job] else "workload"
        yield changed(raw, ("jobs", job, does), None), f"jobs.{job}"
    for key in ("fabric", "fabrics"):
        if key in raw:
            yield (
                {other: value for other, value in raw.items() if other != key},
                "fabric",
            )
    for path, value in places(raw):
        if path[-1:] == ("do",) or path[-1:] == ("when",):
            yield without(raw, path), f"{path[-1]}: missing"
        if path[:1] == ("parameters",) and len(path) == 2 and isinstance(value, dict):
            for key in ("source", "why", "value"):
                yield without(raw, (*path, key)), "parameter"


def wrong_references(raw: dict[str, Any]) -> Iterator[Mistake]:
    for path, value in places(raw):
        if isinstance(value, str) and value.startswith("$"):
            yield changed(raw, path, "$nowhere"), "there is no parameter nowhere"


def wrong_paths(raw: dict[str, Any]) -> Iterator[Mistake]:
    for arm in raw.get("arms", {}):
        for path in (
            "jobz.train.ranks",
            "jobs.nobody.ranks",
            "training.itrations",
            "fabrics.nowhere.paths",
            "fabric.links[99].rate",
            "parameters.nothing.value",
            "events.nothing.do",
            "repeat",
            "training..batch",
            "scale.tme",
        ):
            yield changed(raw, ("arms", arm, path), 1), f"arms.{arm}.{path}:"
    yield {**raw, "sweep": {"training.itrations": [1]}}, "sweep.training.itrations[0]:"
    if "training" in raw:
        yield {**raw, "sweep": {"training.batch": [4, 0]}}, "sweep.training.batch[1]:"


def trained(raw: dict[str, Any]) -> dict[str, Any]:
    """With a training for jobs that have no workload, where a file's own jobs need none."""
    training = {
        "model": "resnet50",
        "compute": "1 ms",
        "batch": 1,
        "iterations": 1,
        "gradient": "1 GB",
    }
    return {"training": training, **raw}


def wrong_names(raw: dict[str, Any]) -> Iterator[Mistake]:
    """Arms, jobs and figures that are not there."""
    raw = trained(raw)
    for arm in list(raw.get("arms", {}))[:2]:
        yield changed(raw, ("arms", arm, "like"), "nobody"), f"arms.{arm}.like"
        yield changed(raw, ("arms", arm, "like"), arm), f"arms.{arm}.like"
        if "fabrics" in raw:
            yield changed(raw, ("arms", arm, "fabric"), "nowhere"), f"arms.{arm}.fabric"
        unswept = {**raw, "sweep": []}
        yield (
            changed(unswept, ("arms", arm, "jobs"), {"red": {"ranks": ["zz0", "zz1"]}}),
            f"arms.{arm}.jobs",
        )
    yield (
        {**raw, "sweep": [{"arms": ["nobody"], "over": {"training.batch": [1]}}]},
        "sweep[0].arms",
    )
    for key in ("baseline", "arms", "job"):
        compare = {"baseline": next(iter(raw["arms"])), key: "nobody"}
        yield {**raw, "compare": compare}, f"compare.{key}"
    yield (
        {**raw, "break_even": {"arm": "nobody", "baseline": "nobody"}},
        "break_even.arm",
    )
    published = [{"arm": "nobody", "metric": "jct", "value": "1 s"}]
    yield (
        {**raw, "published": published, "paper": {"citation": "x"}},
        "published[0].arm",
    )
    if "paper" not in raw:
        yield {**raw, "published": published}, "published"
    parameter = {"value": 1, "source": "assumed", "why": "x", "fitted_to": ["a.b"]}
    yield (
        {**raw, "parameters": {**raw.get("parameters", {}), "p": parameter}},
        "parameters.p.fitted_to",
    )


def wrong_events(raw: dict[str, Any]) -> Iterator[Mistake]:
    job = next(iter(raw.get("jobs", {"train": 0})))
    kill = {"when": {"at": "1 s"}, "do": "kill", "target": "controller"}
    key = "events.1"
    if source_of(raw.get("jobs")) is not None:
        # Which jobs there are is the source's affair.
        return
    for event, where in (
        ({**kill, "when": {"job": "nobody", "iteration": 1}}, f"{key}.when.job"),
        ({**kill, "when": {"started": "nobody"}}, f"{key}.when.started"),
        ({**kill, "when": {"ended": "nobody"}}, f"{key}.when.ended"),
        ({**kill, "when": {"after": "nobody"}}, f"{key}.when.after"),
        ({**kill, "when": {"after": "1"}}, f"{key}.when"),
        ({**kill, "when": {"job": job, "iteration": 10**6}}, f"{key}.when.iteration"),
        ({**kill, "when": {"job": job}}, f"{key}.when"),
        ({**kill, "when": {}}, f"{key}.when"),
        ({**kill, "when": {"at": "1 s", "ended": job}}, f"{key}.when"),
        ({**kill, "when": {"at": 1}}, f"{key}.when.at"),
        ({**kill, "when": "never"}, f"{key}.when"),
        ({**kill, "do": "explode"}, f"{key}.do"),
        ({**kill, "target": None}, f"{key}.target"),
        ({**kill, "target": "moon"}, f"{key}.target"),
        ({**kill, "target": "switch nowhere"}, f"{key}.target"),
        ({**kill, "target": "switch"}, f"{key}.target"),
        ({**kill, "target": "agent nobody"}, f"{key}.target"),
        ({**kill, "target": f"worker {job} 9999"}, f"{key}.target"),
        ({**kill, "target": "worker nobody 0"}, f"{key}.target"),
        ({**kill, "target": "gpu g0"}, f"{key}.target"),
        ({**kill, "then": "swap"}, f"{key}.then"),
        ({**kill, "jobs": [job]}, f"{key}.jobs"),
        ({**kill, "do": "cut", "target": "link x:1 y:1"}, f"{key}.target"),
        ({**kill, "do": "cut", "target": "link x:: y"}, f"{key}.target"),
        ({**kill, "do": "lose", "target": "gpu nobody"}, f"{key}.target"),
        ({**kill, "do": "lose", "target": "nic nobody"}, f"{key}.target"),
        ({**kill, "do": "cancel", "target": "job nobody"}, f"{key}.target"),
        ({**kill, "do": "start", "target": f"job {job}"}, f"{key}.target"),
        ({"when": "start", "do": "disturb"}, f"{key}.control"),
        ({"when": "start", "do": "circuits"}, f"{key}.circuits"),
        (
            {"when": "start", "do": "circuits", "circuits": [["x:1", "y:1"]]},
            f"{key}.circuits",
        ),
        ({"when": "start", "do": "regroup", "jobs": ["nobody"]}, f"{key}.jobs"),
        ({"when": "start", "do": "regroup", "back_after": "1 s"}, f"{key}.back_after"),
    ):
        arms = {
            name: {
                path: value
                for path, value in arm.items()
                if not path.startswith("events")
            }
            for name, arm in raw["arms"].items()
        }
        yield {**raw, "arms": arms, "events": [event]}, where
    circle = [
        {**kill, "name": "a", "when": {"after": "b"}},
        {**kill, "name": "b", "when": {"after": "a"}},
    ]
    arm = {**next(iter(raw["arms"].values())), "events": circle}
    raw = {**raw, "sweep": []}
    yield {**raw, "arms": {"one": arm}}, "arms.one.events.a.when: circular"
    yield (
        {**raw, "arms": {"one": {**arm, "events": [{**kill, "name": "a"}] * 2}}},
        "arms.one.events.a",
    )


def wrong_jobs(raw: dict[str, Any]) -> Iterator[Mistake]:
    raw = {**trained(raw), "sweep": []}
    arm = next(iter(raw["arms"]))
    for job, where in (
        ({"ranks": "all", "start": {"after": "nobody"}}, "start.after"),
        ({"ranks": "all", "start": {"after": "odd"}}, "start"),
        ({"ranks": "all", "start": "event"}, "start"),
        ({"gpus": 2, "start": {"at": 3}}, "start.at"),
        ({"gpus": 1}, "gpus"),
        ({"gpus": 4097}, "gpus"),
        ({"gpus": 2, "ranks": ["g0", "g1"]}, ""),
        ({"ranks": ["g0"]}, "ranks"),
        ({"ranks": "some"}, "ranks"),
        ({"ranks": "all", "spares": ["nobody"]}, "spares"),
        ({"ranks": "all", "slower": {5000: 2}}, "slower"),
        ({"gpus": 2, "training": {"iterations": 0}}, "training.iterations"),
        ({"gpus": 2, "training": {"epochs": 2}}, "training.epochs"),
        ({"gpus": 2, "beacon": "soon"}, "beacon"),
        ({}, ""),
    ):
        jobs = {"odd": job}
        key = f"arms.{arm}.jobs.odd{f'.{where}' if where else ''}"
        yield changed(raw, ("arms", arm, "jobs"), jobs), key


KINDS: list[Callable[[dict[str, Any]], Iterator[Mistake]]] = [
    unknown_keys,
    wrong_types,
    no_units,
    wrong_units,
    lacking,
    wrong_references,
    wrong_paths,
    wrong_names,
    wrong_events,
    wrong_jobs,
]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_a_mistake_is_one_line_with_file_and_key(
    kind: Callable[[dict[str, Any]], Iterator[Mistake]],
    name: str,
    monkeypatch: pytest.MonkeyPatch,
    long: bool,
) -> None:
    if slow(name) and kind not in (unknown_keys, wrong_types) and not long:
        pytest.skip("takes long to read; --long does")
    monkeypatch.chdir((ROOT / name).parent)
    mistakes = list(kind(read(name)))
    most = min(LONG_SAMPLE if long else SAMPLE, len(mistakes))
    for raw, key in random.Random(f"{kind.__name__} {name}").sample(mistakes, most):
        said = refusal(raw)
        assert said is not None, f"accepted; it should name {key}: {raw}"
        assert SAID.fullmatch(said), said
        assert key in said


#: Four GPUs behind two packet switches and an optical one, and what is wrong with each, under its key.
FOUR = (ROOT / "tests/data/mini.yaml").read_text()


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("tor0: {", "g0: {", "fabric: the name g0 is used by two nodes"),
        (
            '[g0, "tor0:1"]',
            "[g0, g0]",
            "fabric: circuit g0:0-g0:0: both ends are one port",
        ),
        (
            '[g0, "tor0:1"]',
            '[g0, "tor0:99"]',
            "fabric.circuits[0]: tor0 has ports 1 to",
        ),
    ],
)
def test_no_path_is_glued_to_a_sentence(before: str, after: str, said: str) -> None:
    assert before in FOUR
    assert f"a.yaml: {said}" in str(refusal(FOUR.replace(before, after, 1)))


@pytest.mark.parametrize("do", ["loss", "lost", 3, None])
@pytest.mark.parametrize("more", [{}, {"gpu": "g0"}, {"jobs": "red"}])
def test_an_event_that_does_what_there_is_not_is_told_before_its_keys(
    do: Any, more: Any
) -> None:
    event = {"when": {"at": "1 s"}, "do": do, **more}
    said = refusal(
        {
            **read("tests/data/mini.yaml"),
            "arms": {"one": {"events": [event]}},
            "compare": [],
        }
    )
    assert said is not None
    assert said.startswith(
        f"a.yaml: arms.one.events.1.do: {do!r} is no do; there are regroup, circuits,"
    )


def test_two_arms_of_one_name() -> None:
    for name in NAMES:
        text = (ROOT / name).read_text()
        if "\narms:\n" not in text:
            continue
        arm = next(iter(read(name)["arms"]))
        said = refusal(text.replace("\narms:\n", f"\narms:\n  {arm}: {{}}\n"))
        assert said is not None
        assert f"the key '{arm}' is also on line" in said


@pytest.mark.parametrize("name", NAMES)
def test_whatever_a_file_says_it_is_read_or_refused_in_one_line(
    name: str, monkeypatch: pytest.MonkeyPatch, long: bool
) -> None:
    if slow(name) and not long:
        pytest.skip("takes long to read; --long does")
    monkeypatch.chdir((ROOT / name).parent)
    raw = read(name)
    chance = random.Random(name)
    anything = [
        None,
        True,
        -1,
        0,
        1e300,
        float("nan"),
        "",
        "x",
        "$x",
        "5 ms",
        [],
        [[]],
        {},
        {"a": 1},
        [None],
    ]
    everywhere = [path for path, _ in places(raw) if path]
    for _ in range(12):
        said = refusal(changed(raw, chance.choice(everywhere), chance.choice(anything)))
        assert said is None or SAID.fullmatch(said), said


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "- a",
        "? [a]\n: b",
        "? {a: 1}\n: b",
        "a: &a [*a]",
        "description: &a [*a]",
        "name: &x {y: *x}",
        "name: 2020-01-01",
        "\t",
        "a: b: c",
        "2020-01-01: 3",
        "a: !!python/object:os.system {}",
        "a: !!binary xx",
        "name: 2026-13-45",
        "a: 2026-01-01T25:00:00Z",
        "a: !!int b",
        "a: !!bool b",
        f"a: {'9' * 5000}",
        f"a: {'[' * 3000}{']' * 3000}",
    ],
)
def test_a_text_that_is_no_scenario(text: str) -> None:
    said = refusal(text)
    assert said is not None
    assert said.startswith("a.yaml: ")
    assert "\n" not in said
