"""What a report shows first, what it folds, and how it looks on wide and on narrow screens."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import matplotlib
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text

from ringlight.experiments.language.expand import parse
from ringlight.experiments.language.plan import Scale
from ringlight.experiments.report.charts import (
    chart,
    key,
    legend,
    named_rows,
    pictures,
    sheet,
)
from ringlight.experiments.report.drawing import (
    NARROW,
    STYLE,
    WIDE,
    drawn,
    job_colours,
    page_svg,
)
from ringlight.experiments.report.page import folded_if_long, picture, table_of, text
from ringlight.experiments.report.report import render
from ringlight.experiments.report.sections import header, sections
from ringlight.experiments.report.sections.events import controllers
from ringlight.experiments.report.sections.header import _cards
from ringlight.experiments.report.sections.jobs import _iterations, jobs
from ringlight.experiments.report.view import View
from ringlight.experiments.report.words import seconds
from ringlight.fabric.units import format_rate
from tests.unit.page import Page, check_alone, text_of
from tests.unit.test_experiment_report import (
    DATA,
    FABRIC,
    FAULTS,
    ONE_JOB,
    SWEEP,
    TWO_ARMS,
    simulated,
    view_of_file,
)

TEXTS = {
    "faults": FABRIC + FAULTS,
    "arms": FABRIC + TWO_ARMS,
    "sweep": FABRIC + SWEEP,
    "mini": (DATA / "mini.yaml").read_text(),
}
SCALED = (FABRIC + TWO_ARMS).replace(
    "{time: 1, payload: 400}", "{time: 4, payload: 400}"
)


def pictures_of(view: View) -> dict[str, tuple[str, Callable[[], Figure]]]:
    """Caption of each picture of a page, and what draws it."""
    found: dict[str, tuple[str, Callable[[], Figure]]] = {}

    def draw(
        name: str,
        caption: str,
        figure: Callable[..., Figure],
        *args: Any,
        **kwargs: Any,
    ) -> str:
        found[name] = caption, lambda: figure(*args, **kwargs)
        return ""

    for section in sections():
        section.body(view, draw)
    return found


@pytest.fixture(scope="module", params=TEXTS)
def view(request: pytest.FixtureRequest) -> View:
    return view_of_file(TEXTS[request.param], f"{request.param}.yaml")


@pytest.fixture(scope="module")
def page(view: View, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The view's page, drawn once for all tests that only read it."""
    return render(view, tmp_path_factory.mktemp("plots"))


def test_pictures_come_before_tables(page: str) -> None:
    assert page.index('class="kicker"') < page.index("<figure>")
    assert page.index("<figure>") < page.index("<table")


def test_cards_then_the_fabric_then_the_papers_figure_then_the_rest(
    tmp_path: Path,
) -> None:
    page = render(view_of_file(TEXTS["mini"], "mini.yaml"), tmp_path)
    heads = re.findall(r"<h2 [^>]*>(.*?)</h2>", page)
    assert heads[:2] == ["Light", "Throughput and utilisation over time"]
    assert (
        heads.index("Iterations")
        < heads.index("Comparison")
        < heads.index("What cannot be claimed")
    )
    assert page.index('class="hero"') < page.index(">Light</h2>")


def test_where_figures_come_from_is_folded(page: str) -> None:
    for title in (
        "Parameters and where they come from",
        "What the simulation rests on",
    ):
        assert re.search(
            rf'<details class="part"><summary><h2 id="\w+">{title}</h2></summary>', page
        )
    assert "<summary>All 3 rows</summary>" in folded_if_long(
        "All 3 rows", 25, "<table></table>"
    )
    assert folded_if_long("All 3 rows", 24, "<table></table>") == "<table></table>"


def test_every_picture_is_there_for_narrow_screens(page: str) -> None:
    check_alone(page)
    figures = re.findall(r"<figure>.*?</figure>", page, re.DOTALL)
    assert figures
    for figure in figures:
        narrow = figure.split('<div class="narrow">')[1]
        boxes = [
            [float(n) for n in box.split()]
            for box in re.findall(r'viewBox="([^"]*)"', narrow)
        ]
        assert boxes
        assert all(0 < width <= 72 * 4.9 for _, _, width, _ in boxes)
        assert all(height > 0 for *_, height in boxes)


def outside(figure: Figure) -> list[str]:
    """Words that are drawn, all or in part, outside of a figure."""
    seen = list[tuple[str, Any]]()
    draw: Any = Text.draw

    def recorded(self: Text, renderer: Any) -> None:
        if self.get_visible() and self.get_text().strip():
            seen.append((self.get_text(), self.get_window_extent(renderer)))
        draw(self, renderer)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Text, "draw", recorded)
        FigureCanvasAgg(figure).draw()
    assert seen
    whole, slack = figure.bbox, 2.0
    return [
        words
        for words, box in seen
        if box.x0 < -slack
        or box.y0 < -slack
        or box.x1 > whole.x1 + slack
        or box.y1 > whole.y1 + slack
    ]


@pytest.mark.parametrize("width", [WIDE, NARROW], ids=["wide", "narrow"])
def test_no_words_are_cut_off_and_legends_have_titles(view: View, width: float) -> None:
    with matplotlib.rc_context({**STYLE, "figure.figsize": (width, 3.0)}):
        for name, (_, draw) in pictures_of(view).items():
            figure = draw()
            if width == WIDE or not getattr(figure, "cuts", ()):
                assert list(outside(figure)) == [], name
            for found in figure.legends:
                assert found.get_title().get_text(), name


def test_captions_name_what_is_drawn(view: View) -> None:
    """An arm or a job where a picture is of one; the fault where it is of faults."""
    for name, (caption, _) in pictures_of(view).items():
        if name.startswith(("topology", "throughput", "fault", "regroup")):
            assert any(run.plan.title in caption for run in view.runs), name
        if name.startswith("fault"):
            assert "lose gpu g4, then" in caption


def test_panels_of_one_picture_are_cut_for_a_narrow_screen(tmp_path: Path) -> None:
    """Each piece once, row by row, and none in which nothing is drawn."""

    def panels() -> Figure:
        def draw(axis: Any, number: int) -> str:
            axis.plot([0, 1], [0, number])
            return f"step {number}"

        figure = pictures(5, 4, 2.0, draw)
        legend(figure, "wavelength", [key("red", "λ0")])
        return figure

    with matplotlib.rc_context(STYLE):
        plot = drawn(tmp_path, "steps", "Steps.", False, panels)
    boxes = [
        [float(n) for n in box.split()]
        for box in re.findall(r'viewBox="([^"]*)"', plot.narrow)
    ]
    assert plot.cut
    assert plot.narrow.count('<use href="#steps-figure_1"/>') == len(boxes) == 4
    head, first, second, third = boxes
    assert head[1] == 0
    assert head[0] + head[2] == pytest.approx(72 * WIDE, abs=0.2)
    assert first[0] == 0 < second[0]
    assert first[1] == second[1] < third[1]
    assert 'id="steps-figure_1"' in plot.svg
    assert 'class="broad cut"' in picture(plot)


def test_a_picture_of_one_chart_is_drawn_again_for_a_narrow_screen(
    tmp_path: Path,
) -> None:
    widths = []

    def one() -> Figure:
        figure, axis = chart(2.0)
        axis.plot([0, 1.23456789, 2], [0, 1, 2])
        axis.set_xlabel(
            "a name that is far too long for the screen of a telephone, however it is held"
        )
        widths.append(figure.get_figwidth())
        return figure

    with matplotlib.rc_context(STYLE):
        plot = drawn(tmp_path, "one", "One.", False, one)
    assert widths == [WIDE, NARROW]
    assert not plot.cut
    assert "far too long for the screen of a telephone, however" in plot.svg
    assert "far too long for the screen of a telephone, however" not in plot.narrow
    assert "telephone" in plot.narrow
    ids = re.findall(r'id="([^"]*)"', plot.svg + plot.narrow)
    assert len(ids) == len(set(ids))
    assert {path.name for path in tmp_path.iterdir()} == {"one.svg"}


def test_lines_have_no_more_digits_than_an_eye_can_tell_and_words_keep_theirs() -> None:
    svg = '<svg width="9" height="9"><path d="M 1.23456 2.000001"/>\n  <text x="1.23456">1.23456</text></svg>'
    assert page_svg(svg, "x") == (
        '<svg><path d="M 1.23 2.00"/><text x="1.23456">1.23456</text></svg>'.replace(
            "<svg", "<svg"
        )
    )


def test_names_of_rows_stand_in_two_lines_where_there_is_no_room_for_one() -> None:
    name = "A fabric with a name that goes on"
    for width, lines in ((WIDE, 1), (NARROW, 2)):
        with matplotlib.rc_context({**STYLE, "figure.figsize": (width, 3.0)}):
            _, axis = chart(2.0, left=2.6)
            named_rows(axis, [name])
            (label,) = axis.get_yticklabels()
            assert len(label.get_text().split("\n")) == lines


def test_a_legend_makes_its_own_room() -> None:
    with matplotlib.rc_context(STYLE):
        figure, ((axis,),) = sheet(2.0)
        low = axis.get_position().y0 * figure.get_figheight()
        legend(
            figure,
            "arm",
            [key("red", f"an arm with a long name, number {n}") for n in range(9)],
        )
        assert figure.get_figheight() > 2.0
        assert axis.get_position().y0 * figure.get_figheight() == pytest.approx(low)


@pytest.mark.parametrize("width", [WIDE, NARROW])
def test_a_long_name_in_a_legend_is_broken_and_not_cut(width: float) -> None:
    with matplotlib.rc_context({**STYLE, "figure.figsize": (width, 3.0)}):
        figure, _ = sheet(2.0)
        legend(figure, "arm", [key("red", "an arm whose name goes on and on " * 6)])
        assert list(outside(figure)) == []


def test_arms_are_drawn_on_one_scale_of_time(tmp_path: Path) -> None:
    view = simulated(FAULTS.replace("then: swap", "then: shrink"))
    found = pictures_of(view)
    with matplotlib.rc_context(STYLE):
        ends = {
            axis.get_xlim()
            for name, (_, draw) in found.items()
            if name.startswith("fault")
            for axis in draw().axes
        }
        axes = found["timeline"][1]().axes
    panels, faulty = (
        {axis.get_xlim() for axis in axes},
        [run for run in view.first.values() if run.later],
    )
    assert (
        len(axes)
        > 1
        < len([name for name in found if name.startswith("fault")])
        == len(faulty)
    )
    assert len(ends) == len(panels) == 1
    # All of them are on it.
    last = max(
        job.end - run.released
        for run in view.runs
        for job in run.jobs.values()
        if job.end is not None
    )
    assert min(end for _, end in panels) >= last
    spans = [
        end - run.released
        for run in faulty
        for job in run.jobs.values()
        for _, end in job.spans
    ]
    assert min(end for _, end in ends) == pytest.approx(1.03 * max(spans))


def test_a_card_of_a_fault_names_it(tmp_path: Path) -> None:
    remarks = [remark for *_, remark in _cards(simulated(FAULTS))]
    assert "from “lose gpu g4” to the end of the next iteration" in remarks


def test_real_time_stands_beside_the_emulated(tmp_path: Path) -> None:
    view = view_of_file(SCALED, "scaled.yaml")
    assert view.scale.time == 4
    jct = next(view.each("job")).number("jct")
    assert jct is not None
    html = render(view, tmp_path)
    page = text_of(Page(html))
    assert page.count(" ".join(f"{seconds(jct)} real {seconds(jct / 4)}".split())) >= 2
    assert "a 4th of the emulated" in page
    assert 'class="real"' not in jobs(simulated(ONE_JOB), lambda *_: "")
    # Rates stand for those that are D S times as large.
    at = next(view.each("job"))
    (busbw,) = at.numbers("busbw")
    assert busbw is not None
    assert f"real {format_rate(float(f'{busbw * view.scale.rate:.4g}'))}" in at.figure(
        "busbw"
    )


def test_cards_of_times_say_what_they_stand_for() -> None:
    cards = list(
        header._cards(view_of_file(SCALED[: SCALED.index("compare:")], "scaled.yaml"))
    )
    assert cards
    assert all("stands for" in remark for _, _, remark in cards)


def test_a_table_of_words_names_its_heads_for_narrow_screens() -> None:
    items = [
        "a long sentence that needs room to be read by people who hold a telephone"
    ]
    shown = table_of(items, [("what <b>it</b> is", str), ("why", text)], 9)
    assert "<table class=words>" in shown
    assert 'data-head="what it is"' in shown
    assert 'data-head="why"' in shown
    assert "data-head" not in table_of(items, [("what", str), ("n", lambda _: "1")], 1)


def test_packet_switches_that_are_alike_in_all_arms_are_listed_once() -> None:
    foreign = re.sub(r"(tor\d: \{)", r"\1controller: none, ", FABRIC)
    settings = {
        plan.arm: plan.setting for plan in parse(foreign + TWO_ARMS, "small.yaml").plans
    }
    view = simulated(TWO_ARMS)
    runs = [
        replace(run, plan=replace(run.plan, setting=settings[run.plan.arm]))
        for run in view.runs
    ]
    shown = controllers(replace(view, runs=runs), lambda *_: "")
    assert len(runs) == 2
    assert shown.count("nobody: it learns addresses and floods") == 2
    assert shown.count("tor0") == 1


def test_of_several_blackouts_of_one_kind_the_longest_has_a_card(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def figures(blackout_s: float | None, recovery_s: float | None) -> Any:
        numbers = lambda *_: (blackout_s, recovery_s)  # noqa: E731
        of_live = SimpleNamespace(
            plans={
                "live": SimpleNamespace(setting=SimpleNamespace(scale=Scale(time=2)))
            }
        )
        number = dict(
            zip(("blackout", "recovery"), (blackout_s, recovery_s), strict=True)
        ).get
        said = {"arm": "live", "title": "Live", "subject": "event e job red"}
        return SimpleNamespace(numbers=numbers, number=number, view=of_live, **said)

    events = [
        figures(0.02, None),
        figures(0.05, None),
        figures(None, 0.4),
        figures(0.03, None),
    ]
    view: Any = SimpleNamespace(
        each=lambda kind, *_: events if kind == "event" else [], arms=["live"], label="measured",
        fidelity={"verdict": "good"}, listed=lambda _: ["red"],
    )  # fmt: skip
    monkeypatch.setattr(header, "_event", lambda _: "regroup")
    (recovered, _, _), (name, figure, remark) = header._events(view)
    assert (recovered, name) == ("Live, red", "Regroup under running jobs")
    assert figure.startswith("50")
    assert remark == f"longest blackout of 3, measured, stands for {seconds(0.025)}"


def test_jobs_have_colours_by_their_names_and_places() -> None:
    # The second job takes the second free colour, whoever is named before it.
    found = job_colours(["red", "fast", "slow"])
    assert found == {"red": "#d55e00", "fast": "#009e73", "slow": "#cc79a7"}
    assert len(set(job_colours([f"j{n}" for n in range(8)]).values())) == 8


def test_iterations_of_jobs_are_drawn_in_their_colours() -> None:
    job: Any = SimpleNamespace(
        spans=[(0.0, 1.0), (1.0, 2.5)], plan=SimpleNamespace(training=None)
    )
    figure = _iterations([("red", job), ("slow", job)], "job")
    colours = {line.get_label(): line.get_color() for line in figure.axes[0].lines}
    assert colours == job_colours(["red", "slow"])
