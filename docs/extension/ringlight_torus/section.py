"""The torus in the report: how light joins its cubes, and what that gives."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from ringlight.experiments.report.charts import arrow, centred, pictures
from ringlight.experiments.report.columns import JOB, arm_title, figures
from ringlight.experiments.report.drawing import LIGHT, RULE
from ringlight.experiments.report.page import quiet, tag
from ringlight.experiments.report.sections import section
from ringlight.experiments.report.view import Draw, View


@section("jobs", "Cubes joined by light", needs=("torus_links",))
def torus(view: View, draw: Draw) -> str:
    """Return HTML with a picture of the tori of each arm, and a table of their all-reduces."""
    caption = "The cubes by their numbers, and the light from the last face of each to the first of another."
    shown = figures(
        [job for job in view.each_job() if job.value("torus_links") is not None],
        [
            JOB,
            ("links of a transfer", "torus_links"),
            ("transfers at the busiest", "torus_shared"),
            ("all-reduce", "allreduce"),
        ],
        group=arm_title,
    )
    known = quiet(f"Links as planned {tag('analytic')}, all-reduces {tag(view.label)}.")
    return f"{draw('torus', caption, _pictures, view)}{shown}{known}"


def _pictures(view: View) -> Figure:
    arms = [arm for arm in view.fixed if "torus" in view.plans[arm].setting.fabric.parts]

    def one(axis: Axes, number: int) -> str:
        for made in view.plans[arms[number]].setting.fabric.parts["torus"].values():
            _draw(axis, made.cubes, made.tori)
        return view.title(arms[number])

    return pictures(len(arms), 2, 1.6, one)


def _draw(axis: Axes, cubes: int, tori: tuple[tuple[int, ...], ...]) -> None:
    for cube in range(cubes):
        axis.add_patch(Rectangle((cube, 0), 0.5, 0.5, color=RULE))
        centred(axis, cube + 0.25, 0.25, str(cube))
    for order in tori:
        for cube, after in zip(order, (*order[1:], order[0]), strict=True):
            ends = 0.5 if after > cube else 0.0
            look = {"connectionstyle": "arc3,rad=-0.4", "mutation_scale": 9}
            arrow(axis, (cube + 0.4, ends), (after + 0.1, ends), LIGHT, **look)
    axis.set(xlim=(-0.3, cubes - 0.2), ylim=(-1.6, 1.8))
