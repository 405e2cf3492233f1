"""``ringlight simulate``: a scenario in virtual time instead of on a testbed.

The run folder is the same as an emulated run's, so the same code makes its result and its report; what
nothing but a testbed could tell is left out, and every number is labelled simulated. Each kind of scenario
has its own module; what they share is here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from experiments.language.text import ScenarioError
from experiments.record.environment import describe_environment
from experiments.runner.progress import Reporter
from fabric.topology import Fabric
from scenarios.comparison import Comparison
from scenarios.records import SIMULATED
from scenarios.runfolder import RunFolder, finish
from scenarios.schema import Document, Scenario, Setting
from scenarios.study import Study

#: Of these, IPv4's header (20) and TCP's with its time stamps (32).
_IN_PACKET_BYTES = 52
#: On top of these, Ethernet's header, which a link's shaper counts too.
_AROUND_PACKET_BYTES = 14


@dataclass(frozen=True)
class SimulationOptions:
    """``folder``: for run folders. ``mtu_bytes``: of packets, None for what the emulation would choose, the
    smallest where fabrics differ. ``latency_s``: emulated seconds that pass
    before the first byte of a transfer counts."""

    folder: Path = Path("runs")
    mtu_bytes: int | None = None
    latency_s: float = 0.0

    @property
    def payload_share(self) -> float:
        """Share of a link's rate that is left for payload when all its packets are full ones."""
        if self.mtu_bytes is None:
            raise ValueError("the frame size is not chosen yet")
        return payload_share(self.mtu_bytes)


def payload_share(mtu_bytes: int) -> float:
    """Payload over all bytes of a full packet, as the emulated links count: (MTU - 52) / (MTU + 14)."""
    return (mtu_bytes - _IN_PACKET_BYTES) / (mtu_bytes + _AROUND_PACKET_BYTES)


def simulate(
    checked: Scenario | Comparison | Study, options: SimulationOptions, reporter: Reporter
) -> tuple[Path, dict[str, Any]]:
    """Simulate a scenario of any kind; the run folder and the object of result.json.

    Of the options a study uses only the folder. Raises ScenarioError, one line, for what cannot be simulated.
    """
    try:
        options = with_frames(checked, options)
        if isinstance(checked, Scenario):
            from scenarios.simulated_regrouping import simulate_regrouping

            return simulate_regrouping(checked, options, reporter)
        if isinstance(checked, Comparison):
            from scenarios.simulated_comparison import simulate_comparison

            return simulate_comparison(checked, options, reporter)
        from scenarios.study_runner import simulate_study

        return simulate_study(checked, options.folder, reporter)
    except ScenarioError:
        raise
    except ValueError as error:
        raise ScenarioError(f"{checked.path}: {error}") from None


def with_frames(checked: Scenario | Comparison | Study, options: SimulationOptions) -> SimulationOptions:
    """With the frame size that the emulation would choose, where none is given."""
    if options.mtu_bytes is not None or isinstance(checked, Study):
        return options
    settings: Iterable[Setting] = [checked] if isinstance(checked, Scenario) else checked.settings.values()
    return replace(options, mtu_bytes=min(setting.frames.mtu_bytes for setting in settings))


@contextmanager
def simulated_folder(
    document: Document,
    fabrics: Iterable[Fabric],
    options: SimulationOptions,
    reporter: Reporter,
    *,
    optical_profiles: Mapping[str, Any] | None = None,
    assumptions: Sequence[Mapping[str, Any]] = (),
    left_out: Sequence[str] = (),
    facts: Mapping[str, Any] | None = None,
) -> Iterator[RunFolder]:
    """A run folder of a simulation, with its environment.json written.

    ``assumptions``: further ones, each ``{"what", "value", "why"}`` as text. ``left_out``: sentences about
    what of the scenario, or of a testbed, the simulation leaves out. ``facts``: more of the environment,
    read again at the end, so that what was counted meanwhile may be put into it.
    """
    with RunFolder(options.folder, document, "-simulated") as folder:
        folder.describe(
            **describe_environment(document, fabrics, SIMULATED),
            optical_profiles=dict(optical_profiles or {}),
            simulation={
                "mtu_bytes": options.mtu_bytes,
                "payload_share": options.payload_share,
                "latency_s": options.latency_s,
                "assumptions": [*_assumptions(options), *assumptions],
                "left_out": list(left_out),
            },
        )
        reporter.say(f"{document.spec.name}, simulated: run folder {folder.path}")
        try:
            yield folder
        finally:
            reporter.end_run()
            folder.environment |= facts or {}


def _assumptions(options: SimulationOptions) -> list[dict[str, str]]:
    share = options.payload_share
    return [
        {
            "what": "payload's share of a link's rate",
            "value": f"{100 * share:.2f} %",
            "why": f"packets of {options.mtu_bytes} bytes, of which TCP and IP take {_IN_PACKET_BYTES}, and "
            f"{_AROUND_PACKET_BYTES} of Ethernet around them: what the emulated links' shapers count",
        },
        {
            "what": "latency of a transfer",
            "value": f"{1e6 * options.latency_s:g} µs",
            "why": "before its first byte counts; emulated time",
        },
        {
            "what": "sharing of a link",
            "value": "max-min fair, at once",
            "why": "what TCP comes near to over some round trips; nothing is lost and nothing sent twice",
        },
    ]


def finished(folder: RunFolder, reporter: Reporter) -> tuple[Path, dict[str, Any]]:
    """Result and report of a folder whose simulation has ended."""
    reporter.say("drawing the report")
    return folder.path, finish(folder.path)
