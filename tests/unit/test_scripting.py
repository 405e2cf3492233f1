"""``import ringlight as rl``: a study is the file that says the same, and errors name the argument."""

from __future__ import annotations

import doctest
import importlib
import inspect
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import ringlight as rl
from ringlight.experiments.language.expand import load
from ringlight.experiments.runner.machine import real_scale
from tests.door import door

ROOT = Path(__file__).resolve().parents[2]
MINI = ROOT / "tests/data/mini.yaml"
#: A notebook's sweep.
SWEEP = """\
import ringlight as rl
fabric = rl.leaf_spine(2, 3, "40 Gbit/s", oversubscription=3, ocs=True)
study = rl.Study(fabric, {
    "red": rl.training("vgg16", ranks="g0 g3 g1 g4", iterations=10),
    "blue": rl.training("vgg16", ranks="g2 g5", iterations=10),
})
study.arm("fragmented").arm("regrouped", events=[rl.regroup(at="start")])
runs = study.simulate(sweep={
    "fabric.leaf_spine.oversubscription": [1, 1.5, 2, 3, 4],
    "jobs.red.training.batch": [14, 28, 56, 112],
})
figure = runs.plot("iteration", along="fabric.leaf_spine.oversubscription", job="red")
"""
MODULES = ("parts", "study", "runs", "scripted_lab", "added", "pictures")


def regroup_study(iterations: int = 3) -> rl.Study:
    """Return two jobs that are scattered over two leaves, and regrouped in another arm."""
    fabric = rl.leaf_spine(2, 3, "40 Gbit/s", oversubscription=3, ocs=True)
    red, blue = (
        rl.training(ranks=ranks, iterations=iterations)
        for ranks in ("g0 g3 g1 g4", "g2 g5")
    )
    study = rl.Study(fabric, {"red": red, "blue": blue}, name="regroup")
    return study.arm("fragmented").arm("regrouped", events=[rl.regroup()])


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings_hold(name: str) -> None:
    module = importlib.import_module(f"ringlight.experiments.scripting.{name}")
    assert doctest.testmod(module).failed == 0


def test_there_are_examples() -> None:
    module = importlib.import_module("ringlight.experiments.scripting.parts")
    assert doctest.testmod(module).attempted >= 6


def test_every_public_name_is_there_and_says_what_it_is() -> None:
    undocumented = []
    for name in set(rl.__all__) - {"__version__"}:
        thing = getattr(rl, name)
        assert name in dir(rl)
        members = [thing]
        if inspect.isclass(thing):
            members += [
                m
                for key, m in inspect.getmembers(thing, callable)
                if not key.startswith("_")
            ]
        undocumented += [
            f"{name}: {member}" for member in members if not inspect.getdoc(member)
        ]
    assert undocumented == []
    with pytest.raises(AttributeError, match="module ringlight has no leaf_spin"):
        _ = rl.leaf_spin


def test_the_package_loads_nothing_before_it_is_used() -> None:
    code = "import sys, ringlight; print(sum(name.startswith('ringlight.') for name in sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "0"


class Cluster:
    """A client of a cluster: its executor is this process's threads."""

    def __init__(self, executor: ThreadPoolExecutor) -> None:
        self.get_executor = lambda: executor


def test_the_client_of_a_cluster_computes_runs(tmp_path: Path) -> None:
    with ThreadPoolExecutor(1) as executor:
        runs = regroup_study(1).simulate(
            executor=Cluster(executor), runs=tmp_path, quiet=True
        )
    assert runs.rows == regroup_study(1).simulate(runs=tmp_path, quiet=True).rows


def test_drawing_leaves_the_backend_of_a_notebook_alone() -> None:
    code = "import matplotlib, ringlight.experiments.report.charts; print(matplotlib.get_backend())"
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "MPLBACKEND": "svg"}, cwd=ROOT,
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.strip() == "svg"


def test_a_sweep_of_twenty_points_is_fifteen_lines_from_import_to_figure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = SWEEP.splitlines()
    assert len(lines) <= 15
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(SWEEP, names)
    assert len({str(row.point) for row in names["runs"].rows if row.point}) == 20
    (axis,) = names["figure"].axes
    assert [len(line.get_xdata()) for line in axis.lines] == [5] * 8


def test_a_papers_figure_is_not_the_value_of_a_run(tmp_path: Path) -> None:
    runs = rl.example("disaggregation").simulate(
        arms=["a-regrouped"], runs=tmp_path, quiet=True
    )
    ours = runs.value("jct", job="red")
    papers = runs.value("jct", job="red", arm="a-regrouped", label="published")
    assert (papers, ours) == (109.0, pytest.approx(9, abs=1))
    frame = runs.frame(metric="jct", job="red")
    assert list(frame["value"]) == [ours]
    assert frame["value"].dtype == float
    with pytest.raises(rl.ScenarioError, match="there is no example disagregation"):
        rl.example("disagregation")


def test_users_of_the_types_pass_mypy_strictly(tmp_path: Path) -> None:
    file = tmp_path / "script.py"
    file.write_text(
        "import ringlight as rl\n\n"
        'study: rl.Study = rl.Study(rl.fat_tree(4, "25 Gbit/s"), {"a": rl.training()}).arm("one")\n'
        "runs: rl.Runs = study.simulate(sweep={'scale.payload': [1, 2]})\n"
        'value = runs.value("jct", job="a")\n'
        'row: rl.Row = rl.open("runs/x").rows[0]\n'
        "with rl.lab(study) as lab:\n"
        "    document: dict[str, object] = lab.regroup(dry_run=True)\n"
    )
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--strict",
        "--config-file=",
        "--follow-imports=silent",
    ]
    done = subprocess.run(
        [*command, "--ignore-missing-imports", "--cache-dir", str(tmp_path / "cache"), str(file)],
        capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    file.write_text("import ringlight as rl\nrl.fat_tree('4', '25 Gbit/s')\n")
    done = subprocess.run(
        [*command, "--ignore-missing-imports", "--cache-dir", str(tmp_path / "cache"), str(file)],
        capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    assert 'Argument 1 to "fat_tree" has incompatible type "str"' in done.stdout


def test_a_study_is_the_file_that_says_the_same(tmp_path: Path) -> None:
    study = regroup_study().compare(
        "fragmented", "regrouped", metrics=["jct"], job="red"
    )
    file = study.save(tmp_path / "regroup.yaml")
    experiment = load(file)
    assert experiment.arms == ("fragmented", "regrouped")
    assert [event.do for event in experiment.plans[1].events] == ["regroup"]
    assert experiment.plans[0].setting.fabric.optical_switches["ocs0"].size == 14
    assert rl.load(file).to_yaml() == study.to_yaml()
    assert study.check()["name"] == "regroup"


@pytest.mark.parametrize(
    "path", sorted((ROOT / "scenarios/examples").glob("[dpq]*.yaml"))
)
def test_a_file_read_and_written_again_has_the_same_plans(
    path: Path, tmp_path: Path
) -> None:
    study = rl.load(path)
    file = study.save(tmp_path / path.name)
    names = [plan.name for plan in load(path, scale_for=real_scale).plans]
    assert [plan.name for plan in load(file, scale_for=real_scale).plans] == names


def test_a_fabric_is_taken_from_a_file_a_study_or_a_mapping() -> None:
    written = rl.load(MINI).content["fabric"]
    assert rl.Study(MINI).content["fabric"] == written
    assert rl.Study(rl.load(MINI)).content["fabric"] == written
    assert rl.Study(written).content["fabric"] == written
    # A study does not change what it was made from.
    content = rl.Study(written).content
    content["fabric"]["links"] = []
    assert written["links"]


def test_results_have_rows_values_a_frame_and_pictures(tmp_path: Path) -> None:
    runs = regroup_study().simulate(runs=tmp_path, quiet=True)
    fragmented, regrouped = (
        runs.value("jct", job="red", arm=arm) for arm in ("fragmented", "regrouped")
    )
    assert isinstance(fragmented, float)
    assert isinstance(regrouped, float)
    # The red ring of four crosses the uplinks, which are three times slower, twice.
    assert fragmented > 1.2 * regrouped
    assert runs.verdict == "simulated"
    assert runs.report.exists()
    assert "<td>regrouped</td>" in runs._repr_html_()
    # What IPython asks an object for.
    picture: Any = runs.plot("iteration", by="job")
    assert picture._repr_png_()[:4] == b"\x89PNG"
    again = rl.open(runs.path)
    assert again.rows == runs.rows
    with pytest.raises(rl.ScenarioError, match="metric: there is no speed; there are"):
        runs.plot("speed")
    with pytest.raises(
        rl.ScenarioError, match="job: jct has no green; there are blue, red"
    ):
        runs.plot("jct", job="green")
    with pytest.raises(
        rl.ScenarioError, match=r"along: scale\.time was not swept; swept were no paths"
    ):
        runs.plot("jct", along="scale.time")
    with pytest.raises(LookupError, match="4 rows of jct are as asked"):
        runs.value("jct")


def test_a_sweep_is_every_combination_and_has_a_line_for_each_arm(
    tmp_path: Path,
) -> None:
    path = "fabric.leaf_spine.oversubscription"
    with ThreadPoolExecutor(1) as executor:
        runs = regroup_study(2).simulate(
            sweep={path: [1, 2, 4]}, executor=executor, runs=tmp_path, quiet=True
        )
    values = [
        row.value
        for row in runs.rows
        if (row.metric, row.subject, row.arm, row.repeat)
        == ("iteration", "job red", "fragmented", None)
        and row.label == "simulated"
    ]
    assert len(values) == 3
    assert values == sorted(values)  # type: ignore[type-var]
    picture = runs.plot("iteration", job="red")
    (axis,) = picture.axes
    assert [line.get_label() for line in axis.lines] == ["fragmented", "regrouped"]
    assert axis.get_xlabel() == "oversubscription"
    assert list(axis.lines[0].get_xdata()) == [1.0, 2.0, 4.0]
    assert list(axis.lines[0].get_ydata()) == values
    # What alone was swept is what the axis shows, also if its values were to have colours.
    (same,) = runs.plot("iteration", path, job="red").axes
    assert list(same.lines[0].get_ydata()) == values


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: rl.leaf_spine(2, 3, "40"), "leaf_spine.rate: '40' is not a rate"),
        (lambda: rl.leaf_spine(2, 3, "1 Gbit/s", spine=3), "spine: unknown key; the nearest is spines"),
        (lambda: rl.fat_tree(1, "40 Gbit/s"), r"fat_tree\.k: "),
        (lambda: rl.training("vgg17"), "training.model: should be 'vgg16' or 'resnet50', not 'vgg17'"),
        (lambda: rl.training(ranks="g0", gpus=2), "gpus: there are ranks too"),
        (lambda: rl.event("regrop"), "event.do: 'regrop' is no do; there are regroup"),
        (lambda: rl.event("cut", target="wire x"), "event.target: 'wire x' is no target"),
        (
            lambda: rl.Study(rl.fat_tree(4, "25 Gbit/s"), {"a": rl.training(ranks="g0 g99")}).check(),
            r"study\.yaml: jobs\.a\.ranks.*g99",
        ),
        (lambda: regroup_study().simulate(arms=["live"], quiet=True), "there is no arm live"),
        (lambda: rl.Study({}, shape={}).check(), "shape: unknown key"),
        (lambda: rl.load("/nowhere.yaml"), "/nowhere.yaml"),
    ],
)  # fmt: skip
def test_errors_are_one_line_that_names_the_argument(make, message: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(rl.ScenarioError, match=message) as caught:
        make()
    assert "\n" not in str(caught.value)


def test_extensions_add_methods() -> None:
    from ringlight.experiments.scripting import added
    from ringlight.fabric.extension import Extension, InstalledExtension

    acme = Extension("acme", methods={"Study.shout": "scripting_method:shout"})
    with door(InstalledExtension(acme, "tests.data"), readers=(added._methods,)):
        assert regroup_study().shout("!") == "regroup!"
        assert "shout" in dir(regroup_study())
    with pytest.raises(AttributeError, match="Study has no shout"):
        regroup_study().shout("!")


def test_the_example_of_the_page_runs_as_it_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    example = re.findall(
        r"```python\n(.*?)```", (ROOT / "docs/scripting.md").read_text(), re.DOTALL
    )[0]
    assert len(example.splitlines()) <= 15
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(example, names)
    runs = names["runs"]
    assert runs.failures == ()
    path = "fabric.leaf_spine.oversubscription"
    gain = [
        runs.value("jct", job="red", arm="fragmented", point={path: over})
        / runs.value("jct", job="red", arm="regrouped", point={path: over})
        for over in (1, 2, 3, 4)
    ]
    # At no oversubscription there is nothing to win; each step more is worth more.
    assert gain[0] == pytest.approx(1, abs=0.02)
    assert gain == sorted(gain)
