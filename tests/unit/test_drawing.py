"""How figures are saved."""

from __future__ import annotations

from pathlib import Path

import pytest
from matplotlib.figure import Figure

from ringlight.experiments.report.charts import along, chart
from ringlight.experiments.report.drawing import save
from ringlight.experiments.report.sections.maps import _amount


def test_a_figure_is_drawn_once_for_each_of_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = []
    draw = Figure.draw

    def counted(self: Figure, renderer: object) -> None:
        drawn.append(self)
        draw(self, renderer)

    monkeypatch.setattr(Figure, "draw", counted)
    figure = Figure(layout="constrained")
    axis = figure.add_subplot(title="a title", xlabel="an axis")
    save(figure, tmp_path, "one", "A figure.")
    assert len(drawn) == 2
    assert axis.get_position().x0 < 0.12, "it is laid out"
    assert {path.name for path in tmp_path.iterdir()} == {"one.png", "one.svg"}


def test_a_few_swept_values_all_have_a_tick_and_sizes_are_written_alike() -> None:
    _, axis = chart(2.0)
    rates = ["0.5 Tbit/s", "1 Tbit/s", "2 Tbit/s", "4 Tbit/s", "8 Tbit/s"]
    along(axis, rates, rates, "bandwidth", most=4)
    assert [tick.get_text() for tick in axis.get_xticklabels()] == [
        "500",
        "1000",
        "2000",
        "4000",
        "8000",
    ]
    assert axis.get_xlabel() == "bandwidth, Gbit/s"
    assert [_amount(size) for size in ("10 kB", "0.1 MB", "1 MB", "some")] == [
        "10 kB",
        "100 kB",
        "1 MB",
        "some",
    ]
