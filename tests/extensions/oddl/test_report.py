"""Grids on the report."""

from __future__ import annotations

from pathlib import Path

import pytest

from ringlight.experiments.report.view import View
from tests.unit import test_experiment_report, test_paper_pages, test_report_screens
from tests.unit.test_experiment_report import _page, appearing, view_of_file

DATA = Path(__file__).parent / "data"
BREAK_EVEN = """
name: small-sweep
description: Up to which handshake.
scale: {time: 4, payload: 400}
fabrics:
  eps:
    servers: {s0: {gpus: {g0: t, g1: t, g2: t, g3: t}}}
    packet_switches: {tor: {ports: 4}}
    links:
      - {ends: [g0, "tor:1"], rate: 100 Gbit/s, queue: 20 ms}
      - {ends: [g1, "tor:2"], rate: 100 Gbit/s, queue: 20 ms}
      - {ends: [g2, "tor:3"], rate: 100 Gbit/s, queue: 20 ms}
      - {ends: [g3, "tor:4"], rate: 100 Gbit/s, queue: 20 ms}
  light:
    grids:
      n: {rows: 1, columns: 4, gpu: t, rate: 100 Gbit/s, queue: 20 ms, wavelengths: 2, tuning: 10.5 ns,
          wss: {driver: scpi, profile: lcos}}
training: {model: resnet50, compute: 5 ms, batch: 4, iterations: 3, collective: halving-doubling}
arms: {eps: {fabric: eps}, light: {fabric: light}}
sweep:
  - {arms: [eps], over: {training.gradient: [25 MB, 100 MB]}}
  - {arms: [light], over: {training.gradient: [25 MB, 100 MB], control.delay: [0 ms, 0.5 ms, 2 ms]}}
break_even: {arm: light, baseline: eps, tolerance: 1.05}
"""
TEXTS = {"break-even": BREAK_EVEN, "mini-oddl": (DATA / "mini_oddl.yaml").read_text()}


def test_a_break_even_stands_beside_the_models(tmp_path: Path) -> None:
    view = view_of_file(BREAK_EVEN, "break.yaml")
    assert "break_even" in appearing(view)
    shown = _page(view, tmp_path)
    assert "Where switching per flow stops paying" in shown
    assert "25 MB" in shown
    assert (tmp_path / "break-even.svg").exists()


def test_its_section_is_on_the_page(tmp_path: Path) -> None:
    test_experiment_report.check_sections(
        DATA / "mini_oddl.yaml", {"light"}, set(), tmp_path
    )


def test_an_experiment_without_a_paper(tmp_path: Path) -> None:
    test_paper_pages.check_without_paper(str(DATA / "mini_oddl.yaml"), tmp_path)


@pytest.fixture(scope="module", params=TEXTS)
def view(request: pytest.FixtureRequest) -> View:
    return view_of_file(TEXTS[request.param], f"{request.param}.yaml")


@pytest.mark.parametrize(
    "width", [test_report_screens.WIDE, test_report_screens.NARROW]
)
def test_no_words_are_cut_off_and_legends_have_titles(view: View, width: float) -> None:
    test_report_screens.test_no_words_are_cut_off_and_legends_have_titles(view, width)
