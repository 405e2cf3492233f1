"""Makes the tables and pictures of README.md and docs/ anew from run folders, with their machine and commit.

    python -m docs.figures RUN [RUN ...]      blocks whose runs are given are written, others stay
    python -m docs.figures --check [RUN ...]  nothing is written; names the blocks that these runs do not make

A block is what stands between ``<!-- figures: NAME -->`` and ``<!-- end -->``. What is in it is said here, as
data: of which scenario, arms and metrics each cell is. A run counts only where its scenario file is today's.
"""

from __future__ import annotations

import argparse
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from experiments.analysis.base import AtBase
from experiments.analysis.result import label_of
from experiments.analysis.statistics import is_number
from experiments.language.expand import Experiment
from experiments.language.text import ScenarioError, read_text
from experiments.papers import paper
from experiments.record.folder import read_json
from experiments.record.version import ROOT
from experiments.record.writing import WriteError, write_whole
from experiments.report.report import render
from experiments.runner.command import experiment_of, joined, view_of_folder

Kind = Literal["measured", "simulated"]
COMMAND = {"measured": "run", "simulated": "simulate"}
BLOCK = re.compile(r"<!-- figures: (\S+) -->\n(.*?)<!-- end -->", re.DOTALL)


# --- what a block is ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Figure:
    """A row's value.

    ``at``: dotted paths that have other values than in the file. ``published``: the paper's in place of ours.
    ``real``: seconds as emulated become real ones. ``every``: the values of all points, as a list.
    """

    run: Kind
    arm: str
    metric: str
    subject: str
    at: Mapping[str, Any] = field(default_factory=dict)
    published: bool = False
    real: bool = False
    every: bool = False


@dataclass(frozen=True)
class Of:
    """A cell that ``show`` makes from figures."""

    show: Callable[..., str]
    figures: tuple[Figure, ...]


Cell = str | Of


@dataclass(frozen=True)
class Table:
    """``header``: a line of the table in Markdown's own form."""

    scenario: str
    header: str
    lines: Sequence[Sequence[Cell]]

    @property
    def figures(self) -> Iterator[Figure]:
        return (
            figure for line in self.lines for cell in line if isinstance(cell, Of) for figure in cell.figures
        )

    @property
    def kinds(self) -> tuple[Kind, ...]:
        return tuple(dict.fromkeys(figure.run for figure in self.figures))


@dataclass(frozen=True)
class Picture:
    """``plot``: which of the report's pictures ``docs/images/FILE`` is."""

    scenario: str
    kind: Kind
    plot: str
    file: str
    caption: str

    @property
    def kinds(self) -> tuple[Kind, ...]:
        return (self.kind,)


@dataclass(frozen=True)
class Verdict:
    """What the scenario's paper module says of the figures, as a list."""

    scenario: str
    kind: Kind

    @property
    def kinds(self) -> tuple[Kind, ...]:
        return (self.kind,)


Block = Table | Picture | Verdict


# --- how figures are written ----------------------------------------------------------------------


def seconds(value: float) -> str:
    """Three digits, in the unit that fits."""
    for unit, factor in (("s", 1.0), ("ms", 1e3)):
        if abs(value) * factor >= 1:
            return f"{value * factor:#.3g} {unit}".replace(". ", " ")
    return f"{value * 1e6:#.3g} µs".replace(". ", " ")


def milliseconds(value: float) -> str:
    return f"{1000 * value:,.0f}" if value >= 0.1 else f"{1000 * value:.3g}"


def number(value: float) -> str:
    return f"{value:,.4g}"


def ratio(value: float) -> str:
    return f"{value:.3f}"


def percent(value: float) -> str:
    return f"{value:.1f} %"


def share(value: float) -> str:
    return f"{100 * value:.0f} %"


def apart(ours: float, measured: float) -> str:
    """By how much a simulated figure is off the measured one."""
    return f"{100 * (ours / measured - 1):+.1f} %".replace("-", "−")


def truth(value: bool) -> str:
    return "yes" if value else "no"


def limit(value: float | str) -> str:
    """Up to which size one is faster than the other."""
    return {"always": "every size"}.get(value, value) if isinstance(value, str) else f"{value / 1e6:.4g} MB"


def rise(before: float, after: float) -> str:
    return f"{100 * before:.0f} → {100 * after:.0f} %, {after / before:.2f} ×"


def _closest(theirs: float, ours: Sequence[float]) -> str:
    return _reduction(min(ours, key=lambda value: abs(value - theirs)))


def _reduction(ratio_of_both: float) -> str:
    return f"{100 * (1 - ratio_of_both):.2f} %".replace("-", "−")


# --- the blocks -----------------------------------------------------------------------------------


def _cell(show: Callable[..., str], *figures: Figure) -> Of:
    return Of(show, figures)


def _red(run: Kind, arm: str, metric: str, at: Mapping[str, Any] | None = None, **more: Any) -> Figure:
    return Figure(run, arm, metric, "job red", at or {}, **more)


def _train(run: Kind, arm: str, metric: str, at: Mapping[str, Any] | None = None, **more: Any) -> Figure:
    return Figure(run, arm, metric, "job train", at or {}, **more)


def _both(of: Callable[[Kind], Figure]) -> list[Cell]:
    """Emulated, simulated, how far apart."""
    emulated, simulated = of("measured"), of("simulated")
    return [_cell(seconds, emulated), _cell(seconds, simulated), _cell(apart, simulated, emulated)]


def _compared(title: str, arm: str, job: str) -> list[Cell]:
    return [
        title,
        *_both(lambda run: Figure(run, arm, "iteration", f"job {job}")),
        *_both(lambda run: Figure(run, arm, "exchange", f"job {job}")),
    ]


def _pair(case: str) -> tuple[str, str]:
    """The arms of a case before and after it is regrouped."""
    return (f"{case}-fragmented" if case in ("a", "b") else case), f"{case}-regrouped"


def _modelled(case: str, at: Mapping[str, Any] | None = None) -> Of:
    """The model's reduction of a case's completion time."""

    def show(before: float, after: float) -> str:
        return percent(100 * (1 - after / before))

    return _cell(show, *(_red("simulated", arm, "jct_predicted", at) for arm in _pair(case)))


def _simulated(case: str, at: Mapping[str, Any] | None = None) -> Of:
    return _cell(percent, _red("simulated", f"{case}-regrouped", "jct_reduction", at))


def _reductions(title: str, to: str, path: str, value: Any) -> list[Cell]:
    at = {f"parameters.{path}.value": value}
    return [title, to, *(cell for case in "ab" for cell in (_modelled(case, at), _simulated(case, at)))]


def _demo(case: str, title: str) -> list[Cell]:
    jct = [_red("measured", arm, "jct") for arm in _pair(case)]
    theirs = [_red("measured", arm, "jct", published=True) for arm in _pair(case)]
    return [
        title,
        *(_cell(lambda value: f"{value:.1f} s", figure) for figure in jct),
        _cell(lambda value: f"**{value:.1f} %**", _red("measured", f"{case}-regrouped", "jct_reduction")),
        _simulated(case),
        _modelled(case),
        _cell(
            lambda before, after: (
                f"{before:.0f} s → {after:.0f} s, {100 * (1 - after / before):.1f} %, **fitted**"
            ),
            *theirs,
        ),
    ]


def _utilised(run: Kind, case: str, metric: str = "gpu_utilisation") -> Of:
    return _cell(rise, *(_red(run, arm, metric) for arm in _pair(case)))


def _defined(definition: str, busy: str) -> list[Cell]:
    metric = f"gpu_utilisation.{definition}"
    cells: list[Cell] = [f"`{definition}`", busy]
    for case in "ab":
        arm = f"{case}-regrouped"
        agrees = _red("simulated", arm, f"{metric}_ratio_agrees")
        if definition == "window":
            baseline, gain = (_red("simulated", arm, f"{metric}_{end}") for end in ("baseline", "ratio"))
            cells.append(
                _cell(
                    lambda b, r, a: f"{rise(b, b * r)}, {'agrees' if a else 'does not'}",
                    baseline,
                    gain,
                    agrees,
                )
            )
        else:
            pair = (_red("simulated", arm, metric) for arm in _pair(case))
            cells.append(
                _cell(lambda b, r, a: f"{rise(b, r)}, {'agrees' if a else 'does not'}", *pair, agrees)
            )
    return cells


_DEFINITIONS = {
    "compute": "computing",
    "full_rate": "computing, and the collective's bytes at the port's full rate",
    "overlap": "computing, hidden behind the collective as far as it goes",
    "moving": "computing, and the collective while bytes move",
    "collective": "computing and the whole collective",
}


def _oddl(
    title: str, show: Callable[[Any], str], metric: str, subject: str = "job train", paper: Cell = ""
) -> list[Cell]:
    """``subject``: with {} for the fabric, which is called as the arm is."""
    arms = ("prototype", "oddl")
    shown = [_cell(show, Figure("measured", arm, metric, subject.format(arm))) for arm in arms]
    return [title, *shown, paper]


def _wrht_9(title: str, arm: str, steps: str, fabric: str | None) -> list[Cell]:
    light: Cell = ""
    if fabric is not None:
        subject = f"fabric {fabric}"
        light = _cell(
            lambda times, each: f"{times} times, {seconds(each)} each",
            Figure("measured", arm, "set_ups_per_allreduce", subject),
            Figure("measured", arm, "setup_p50", subject),
        )
    return [
        title,
        steps,
        light,
        *(_cell(seconds, _train(run, arm, "exchange")) for run in ("measured", "simulated")),
        _cell(apart, *(_train(run, arm, "iteration") for run in ("simulated", "measured"))),
        _cell(truth, _train("measured", arm, "parameters_identical")),
        _cell(number, Figure("measured", arm, "payload_lost", "run")),
    ]


_CHARGE = "fabrics.light.rings.n.reconfigure"
_MODELS = ("102.228128 MB", "553.430176 MB")
_WRHT = {
    "wrht": "WRHT",
    "wrht-exchange": "WRHT, exchange at the top",
    "wrht-striped": "WRHT, idle wavelengths striped",
    "bidirectional-ring": "Bidirectional ring",
    "bidirectional-ring-striped": "Bidirectional ring, striped",
    "bidirectional-hierarchical-ring": "Bidirectional hierarchical ring",
    "bidirectional-hierarchical-ring-striped": "Bidirectional hierarchical ring, striped",
    "ring": "Ring",
    "ring-striped": "Ring, striped",
    "hierarchical-ring": "Hierarchical ring",
    "hierarchical-ring-striped": "Hierarchical ring, striped",
    "binary-tree": "Binary tree",
    "binary-tree-striped": "Binary tree, striped",
}


def _all(arm: str, metric: str, at: Mapping[str, Any], **more: Any) -> Figure:
    return Figure("simulated", arm, metric, "job all", at, **more)


def _two(show: Callable[[Any], str], unit: str) -> Callable[..., str]:
    """Both ways to charge the set-up, once where they are the same."""

    def shown(each: Any, changed: Any) -> str:
        found = [show(each), show(changed)]
        return " / ".join(found if unit else dict.fromkeys(found)) + unit

    return shown


def _wrht(arm: str, title: str) -> list[Cell]:
    def charged(arm: str, metric: str, **at: Any) -> list[Figure]:
        return [_all(arm, metric, {**at, _CHARGE: charge}) for charge in ("each-step", "changed-only")]

    times = [
        _cell(_two(milliseconds, " ms"), *charged(arm, "allreduce", **{"training.gradient": size}))
        for size in _MODELS
    ]
    faster: Cell = ""
    if arm not in ("wrht", "wrht-exchange"):
        faster = _cell(_two(limit, ""), *charged("wrht", f"faster_up_to.{arm}"))
    return [title, _cell(number, _all(arm, "steps", {"training.gradient": _MODELS[0]})), *times, faster]


def _electrical(arm: str, title: str, metric: str, show: Callable[[Any], str]) -> list[Cell]:
    return [
        title,
        _cell(number, _all(arm, "steps", {"training.gradient": _MODELS[0]})),
        *(
            _cell(
                lambda value: f"{milliseconds(value)} ms", _all(arm, "allreduce", {"training.gradient": size})
            )
            for size in _MODELS
        ),
        _cell(show, _all("wrht", f"{metric}.{arm}", {})),
    ]


def _percentage(other: str, metric: str = "allreduce") -> list[Cell]:
    name = f"{metric}_ratio.{other}"
    theirs = _all("wrht", name, {}, published=True, every=True)
    ours = _all("wrht", name, {}, every=True)
    return [
        _cell(lambda found: _reduction(found[0]), theirs),
        f"{other.replace('-', ' ')}, {'time' if metric == 'allreduce' else 'number of steps'}",
        _cell(lambda found, all_ours: _closest(found[0], all_ours), theirs, ours),
    ]


def _broken_even(gradient: str) -> list[Cell]:
    at = {"training.gradient": gradient}
    names = ("break_even", "break_even_predicted", "break_even_predicted_with_compute")
    return [gradient, *(_cell(seconds, _train("simulated", "short", name, at, real=True)) for name in names)]


BLOCKS: Mapping[str, Block] = {
    "picture-disaggregation": Picture(
        "disaggregation",
        "measured",
        "throughput-a",
        "figure3.png",
        "Figure 3 of the disaggregation paper, rebuilt from a run",
    ),
    "picture-topology": Picture(
        "disaggregation",
        "measured",
        "topology-1",
        "topology.png",
        "Topology before and after, with the light paths",
    ),
    "picture-oddl": Picture(
        "oddl_16",
        "simulated",
        "grid-oddl",
        "oddl-grid.png",
        "Lit wavelengths of a 4 × 4 grid in each step of one all-reduce",
    ),
    "picture-wrht-9": Picture(
        "wrht_9",
        "simulated",
        "ring-wrht",
        "wrht-light.png",
        "Light of the four steps of WRHT among nine nodes",
    ),
    "picture-wrht": Picture(
        "wrht",
        "simulated",
        "fastest",
        "wrht-fastest.png",
        "The fastest all-reduce by gradient and set-up time",
    ),
    "disaggregation": Table(
        "disaggregation",
        "| case | fragmented | regrouped | reduction | simulated | all-send model | paper |",
        [_demo("a", "(a) jobs of 4 and 2 GPUs"), _demo("b", "(b) jobs of 3 and 3 GPUs")],
    ),
    "disaggregation-utilisation": Table(
        "disaggregation",
        "| GPU utilisation, computing over the time of the job | ours | paper |",
        [
            ["(a)", _utilised("measured", "a"), "three times"],
            ["(b)", _utilised("measured", "b"), "no significant improvement"],
        ],
    ),
    "disaggregation-live": Table(
        "disaggregation",
        "| regrouped while both jobs train | |",
        [
            [title, _cell(show, Figure("measured", "live", metric, subject))]
            for title, show, metric, subject in (
                ("light off, from the command to the new light", seconds, "light_off", "event 1"),
                ("longest time without a byte of an all-reduce", seconds, "tcp_stall", "event 1"),
                ("the same without moving light", seconds, "tcp_stall_usual", "event 1"),
                ("TCP connections kept", truth, "connections_unchanged", "job red"),
                ("parameters those of one process, bit by bit", truth, "parameters_identical", "job red"),
            )
        ],
    ),
    "agreement-disaggregation": Table(
        "disaggregation",
        "| | iteration, emulated | simulated | | all-reduce, emulated | simulated | |",
        [
            _compared(f"{case}, {how}, {job}", f"{case}-{how}", job)
            for case in "ab"
            for how in ("fragmented", "regrouped")
            for job in ("red", "blue")
        ],
    ),
    "oddl-4": Table(
        "oddl_4",
        "| | one WSS | grid of WSSs | paper |",
        [
            _oddl(
                "training time over that on one packet switch",
                ratio,
                "jct_ratio",
                paper=_cell(ratio, _train("measured", "prototype", "jct_ratio", published=True)),
            ),
            _oddl("training time over that of a perfect network", ratio, "jct_over_model"),
            _oddl(
                "final parameters those of the packet switch, bit by bit",
                truth,
                "parameters_equal",
                paper="accuracy equal",
            ),
            _oddl("flow set-up, request to light, median", seconds, "setup_p50", "fabric {}"),
            _oddl("flow set-up, 99 %", seconds, "setup_p99", "fabric {}"),
            _oddl("control messages per flow", number, "control_messages_per_flow", "fabric {}"),
            _oddl("collisions", number, "collisions", "fabric {}"),
            _oddl("payload lost, bytes", number, "payload_lost", "run"),
            [
                "median iteration of a run in which the controller is killed, over one without",
                _cell(
                    lambda killed, usual: ratio(killed / usual),
                    *(_train("measured", arm, "iteration") for arm in ("controller-killed", "prototype")),
                ),
                "",
                "",
            ],
            [
                "agent killed, 5 % of control messages lost, doubled, reordered: parameters identical",
                _cell(truth, _train("measured", "agent-killed", "parameters_identical")),
                "",
                "",
            ],
        ],
    ),
    "agreement-oddl-4": Table(
        "oddl_4",
        "| | iteration, emulated | simulated | | all-reduce, emulated | simulated | |",
        [
            _compared(title, arm, "train")
            for arm, title in {
                "ideal": "one packet switch",
                "prototype": "one WSS",
                "oddl": "2 × 2 grid of WSSs",
            }.items()
        ],
    ),
    "oddl-sweep": Table(
        "oddl_sweep",
        "| gradient | set-up of a flow, simulated | model | model, with the paper's compute |",
        [_broken_even(gradient) for gradient in ("25 MB", "102.228 MB", "553.43 MB")],
    ),
    "wrht-9": Table(
        "wrht_9",
        "| nine nodes | steps | light set in one | all-reduce, emulated | simulated | iteration, simulated "
        "| same parameters | bytes lost |",
        [
            _wrht_9("WRHT, one wavelength", "wrht", "4", "one"),
            _wrht_9("ring, one wavelength", "ring", "16", None),
            _wrht_9("binary tree, one wavelength", "tree", "8", "one"),
            _wrht_9("hierarchical ring, three wavelengths", "hring", "8", "three"),
            _wrht_9("ring on one packet switch", "eps", "16", None),
        ],
    ),
    "wrht-9-each-step": Table(
        "wrht_9_each_step",
        "| light made anew before each step | all-reduce |",
        [
            [title, _cell(seconds, _train("simulated", arm, "exchange"))]
            for arm, title in {
                "wrht": "WRHT",
                "bring": "bidirectional ring",
                "bhring": "bidirectional hierarchical ring",
                "kept": "bidirectional ring, its light kept",
            }.items()
        ],
    ),
    "sensitivity": Table(
        "disaggregation_sensitivity",
        "| changed | to | (a) all-send model | (a) simulated | (b) all-send model | (b) simulated |",
        [
            ["contiguous ring", "red g0 g1 g3 g4", _modelled("contiguous"), _simulated("contiguous"), "", ""],
            [
                "three GPUs of red on one switch",
                "red g0 g1 g2 g3; blue g4 g5",
                _modelled("three-one"),
                _simulated("three-one"),
                "",
                "",
            ],
            [
                "another placement of three and three",
                "red g0 g3 g4; blue g1 g5 g2",
                "",
                "",
                _modelled("other-three"),
                _simulated("other-three"),
            ],
            *(
                _reductions("oversubscription", f"{over} ({rate})", "uplink_rate", rate)
                for over, rate in {
                    "1": "40 Gbit/s",
                    "2": "20 Gbit/s",
                    "2.5": "16 Gbit/s",
                    "3": "13.3333 Gbit/s",
                    "3.1, as in the file": "12.903 Gbit/s",
                    "3.5": "11.4286 Gbit/s",
                    "4": "10 Gbit/s",
                    "5": "8 Gbit/s",
                }.items()
            ),
            *(
                _reductions(
                    "batch", f"{batch}, as in the file" if batch == 28 else str(batch), "batch", batch
                )
                for batch in (14, 21, 28, 35, 42, 56)
            ),
        ],
    ),
    "utilisation": Table(
        "disaggregation",
        "| definition | what counts as busy | (a) | (b) |",
        [
            ["", "published", "2.5 to 3.5 ×", "0.8 to 1.25 ×"],
            *(_defined(*found) for found in _DEFINITIONS.items()),
            _defined("window", "computing, over the time of the longer run"),
        ],
    ),
    "utilisation-unequal": Table(
        "disaggregation_sensitivity",
        "| definition, Titan V three times as fast | (a) |",
        [
            [
                f"`{name}`",
                _cell(rise, *(_red("simulated", arm, f"gpu_utilisation.{name}") for arm in _pair("unequal"))),
            ]
            for name in _DEFINITIONS
        ],
    ),
    "wrht": Table(
        "wrht",
        "| | steps | ResNet-50, 102 MB | VGG16, 553 MB | WRHT is faster up to |",
        [
            *(_wrht(arm, title) for arm, title in _WRHT.items()),
            _electrical("electrical-ring", "electrical ring, 2 µs per step", "faster_up_to", limit),
            _electrical(
                "electrical-recursive-doubling",
                "electrical recursive doubling, trunks 1:1",
                "faster_from",
                lambda value: f"from {limit(value)} on",
            ),
        ],
    ),
    "wrht-verdict": Verdict("wrht", "simulated"),
    "wrht-percentages": Table(
        "wrht",
        "| paper | taken to be against | closest of ours |",
        [
            _percentage("binary-tree", "steps"),
            *(
                _percentage(other)
                for other in ("ring", "hierarchical-ring", "electrical-ring", "electrical-recursive-doubling")
            ),
        ],
    ),
    "two-cables": Table(
        "examples/two_cables",
        "| ring among sixteen GPUs | all-reduce |",
        [
            [title, _cell(seconds, _train("simulated", arm, "exchange"))]
            for arm, title in {"one": "one cable", "two": "two cables"}.items()
        ],
    ),
    "fat-tree": Table(
        "examples/fat_tree_4",
        "| fat tree, k = 4, sixteen GPUs | all-reduce |",
        [
            [title, _cell(seconds, _train("simulated", arm, "exchange"))]
            for arm, title in {"ring": "ring", "doubling": "halving and doubling"}.items()
        ],
    ),
}


# --- run folders ----------------------------------------------------------------------------------


class Given:
    """A finished run folder. Raises ScenarioError for one without a result, or that did not end."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.environment = read_json(path / "environment.json")
        self.kind: Kind = "simulated" if label_of(self.environment) == "simulated" else "measured"
        self.text = read_text(path / "scenario.yaml")
        if not read_json(path / "result.json")["complete"]:
            raise ScenarioError(f"{path}: this run is not complete")

    @cached_property
    def experiment(self) -> Experiment:
        return experiment_of(self.path)

    @cached_property
    def _bases(self) -> dict[tuple[str, bool], AtBase]:
        rows = joined([self.path])
        keys = {(row.subject, row.label == "published") for row in rows}
        return {
            key: AtBase(
                self.experiment, [row for row in rows if (row.subject, row.label == "published") == key]
            )
            for key in keys
        }

    def base(self) -> AtBase:
        """Of all rows."""
        return AtBase(self.experiment, joined([self.path]))

    def value(self, figure: Figure) -> Any:
        """Raises ScenarioError where the run has no such figure."""
        base = self._bases.get((figure.subject, figure.published)) or AtBase(self.experiment, [])
        if figure.every:
            of_arm = [row for row in base.all if (row.arm, row.metric) == (figure.arm, figure.metric)]
            found: list[Any] = [row.value for row in of_arm if is_number(row.value)]
        else:
            row = base.at(figure.arm, figure.metric, figure.at)
            found = [] if row is None else [row.value]
        if not found:
            where = f"{figure.subject}, {dict(figure.at)}" if figure.at else figure.subject
            raise ScenarioError(f"{self.path}: no {figure.metric} of arm {figure.arm} ({where})")
        if figure.every:
            return found
        return found[0] / self.experiment.plans[0].setting.scale.time if figure.real else found[0]

    @cached_property
    def plots(self) -> Path:
        """A folder with the report's pictures as PNG, drawn anew. The run folder stays as it is."""
        view, _ = view_of_folder(self.path)
        self._drawn = tempfile.TemporaryDirectory()
        render(view, Path(self._drawn.name), png=True)
        return Path(self._drawn.name)

    def said(self, scenario: str) -> str:
        """Machine, commit, day and command."""
        facts = self.environment
        code = (
            f"commit {facts['commit']}"
            if "commit" in facts
            else f"code version {facts.get('code', 'unknown')}"
        )
        return (
            f"{self.kind.capitalize()} on {facts['processor']}, {facts['processors']} processors, {code}, "
            f"{facts['started'][:10]}; `./ringlight {COMMAND[self.kind]} scenarios/{scenario}.yaml`."
        )


Runs = Mapping[tuple[str, Kind], Given]


def runs_of(paths: Iterable[Path]) -> Runs:
    """Runs by the text of their scenario and how they are known. Raises ScenarioError for two of the same."""
    found: dict[tuple[str, Kind], Given] = {}
    for path in paths:
        given = Given(path)
        other = found.setdefault((given.text, given.kind), given)
        if other is not given:
            raise ScenarioError(f"{path} and {other.path}: two {given.kind} runs of one scenario; give one")
    return found


def scenario_file(block: Block) -> Path:
    return ROOT / "scenarios" / f"{block.scenario}.yaml"


def missing(block: Block, runs: Runs) -> list[Kind]:
    """Of which kinds no run of the block's scenario, as it is today, is given."""
    text = read_text(scenario_file(block))
    return [kind for kind in block.kinds if (text, kind) not in runs]


def made(block: Block, runs: Runs) -> str:
    """The text of a block of which no run is missing. Raises ScenarioError where a figure is."""
    text = read_text(scenario_file(block))
    given = {kind: runs[text, kind] for kind in block.kinds}
    said = " ".join(run.said(block.scenario) for run in given.values())
    return f"{_body(block, given)}\n\n{said}\n"


def _body(block: Block, given: Mapping[Kind, Given]) -> str:
    if isinstance(block, Picture):
        return f"![{block.caption}]({{images}}/{block.file})"
    if isinstance(block, Verdict):
        run = given[block.kind]
        spec = run.experiment.spec.paper
        assert spec is not None
        findings = paper(spec.model or "").verdict(run.base())
        return "\n".join(f"- {finding.text}" for finding in findings)
    lines = [[_shown(cell, given) for cell in line] for line in block.lines]
    rule = "|" + "---|" * (block.header.count("|") - 1)
    rows = ["| " + " | ".join(line) + " |" for line in lines]
    return "\n".join(
        [block.header, rule, *(row.replace("|  |", "| |").replace("|  |", "| |") for row in rows)]
    )


def _shown(cell: Cell, given: Mapping[Kind, Given]) -> str:
    return cell if isinstance(cell, str) else cell.show(*(given[f.run].value(f) for f in cell.figures))


# --- Markdown files -------------------------------------------------------------------------------


def pages() -> list[Path]:
    """The files that may have blocks."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def attempt(runs: Runs) -> tuple[dict[str, str], dict[str, str]]:
    """The text of each block that can be made, and for the others why not."""
    done, left = {}, {}
    for name, block in BLOCKS.items():
        if kinds := missing(block, runs):
            left[name] = f"no {' and '.join(kinds)} run of scenarios/{block.scenario}.yaml"
            continue
        try:
            done[name] = made(block, runs)
        except ScenarioError as error:
            left[name] = str(error)
    return done, left


def written(text: str, page: Path, done: Mapping[str, str]) -> str:
    """The page's text with the blocks anew that are made."""
    images = "docs/images" if page.parent == ROOT else "images"

    def anew(found: re.Match[str]) -> str:
        name = found[1]
        body = found[2] if name not in done else done[name].replace("{images}", images)
        return f"<!-- figures: {name} -->\n{body}<!-- end -->"

    return BLOCK.sub(anew, text)


def draw(runs: Runs, done: Collection[str]) -> None:
    """The files of those pictures that are made. Raises OSError, and ScenarioError for one not drawn."""
    for name, block in BLOCKS.items():
        if isinstance(block, Picture) and name in done:
            given = runs[read_text(scenario_file(block)), block.kind]
            drawn = given.plots / f"{block.plot}.png"
            if not drawn.exists():
                raise ScenarioError(f"{given.path}: its report has no picture {block.plot}")
            shutil.copyfile(drawn, ROOT / "docs" / "images" / block.file)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m docs.figures", description=__doc__.splitlines()[0])
    parser.add_argument("runs", nargs="*", type=Path, metavar="RUN", help="finished run folders")
    parser.add_argument(
        "--check", action="store_true", help="write nothing; name the blocks that are not made"
    )
    asked = parser.parse_args(arguments)
    try:
        runs = runs_of(asked.runs)
        done, left = attempt(runs)
        if not asked.check:
            draw(runs, done)
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
