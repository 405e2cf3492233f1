"""How figures are saved."""

from __future__ import annotations

from pathlib import Path

import pytest
from matplotlib.figure import Figure

from ringlight.experiments.report.drawing import save


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
