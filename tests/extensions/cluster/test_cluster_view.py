"""The page that shows runs has what the jobs of a trace hold."""

from __future__ import annotations

from pathlib import Path

from ringlight.experiments.backends.simulation.backend import SimulationBackend
from ringlight.experiments.runner.command import carry_out_experiment, load_checked
from ringlight.extensions.page.recorded import Recorded
from tests.browser import Browser
from tests.extensions.cluster.test_cluster_scenario import SMALL
from tests.extensions.page.test_view_page import chromium, seek, serving, shown, tab

__all__ = ["tab"]


@chromium
def test_a_replayed_trace_shows_what_its_jobs_hold(
    tab: Browser, tmp_path: Path
) -> None:
    scenario = tmp_path / "trace.yaml"
    scenario.write_text(SMALL)
    runs, arms = tmp_path / "runs", ("packed",)
    done, _ = carry_out_experiment(
        load_checked(scenario), SimulationBackend(), runs, arms=arms
    )
    folds = (
        "[...ringlight.drawings][0].picture.cy.nodes('.fold').map(n => n.data('label'))"
    )
    with serving(done.path) as url:
        shown(tab, url)
        (held, *_) = [
            one for one in Recorded(done.path).take("packed")["held"] if one["held"]
        ]
        seek(tab, held["t"])
        name, (gpus, jobs) = next(iter(held["held"].items()))
        assert f"\n{gpus} busy, {jobs} jobs" in next(
            one for one in tab.run(folds) if name in one
        )
        assert tab.run("document.querySelector('.curves').innerText").startswith(
            "GPUs held"
        )
        # A run of days is over in a minute.
        assert (
            tab.run(
                "(ringlight.clock.to - ringlight.clock.from) / ringlight.clock.speed"
            )
            < 1000
        )
