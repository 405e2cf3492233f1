"""The ``ringlight`` command.

Commands that build labs are here; those that talk to a running controller are in ``cli_rest``. Everything
heavy is imported by the command that needs it, so that ``ringlight --help`` answers at once. Errors are one
line on standard error. Exit codes: 0 done, 1 it did not work, 2 the input is wrong, 130 interrupted.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from experiments.cli import rest as cli_rest
from experiments.cli.common import Interrupted, fabric_document, fabric_lines, fail, say, show_json, table
from experiments.record.writing import DISK_FULL

if TYPE_CHECKING:
    from experiments.backends.emulation.processes import Addresses

ROOT = Path(__file__).resolve().parents[1]
BUNDLED = Path(__file__).resolve().parent / "disaggregation.yaml"

#: Errors that are a line for the user, not a fault of the program; by module, so that none is imported early.
_USER_ERRORS = {
    "experiments.backends.protocol": ("BackendError",),
    "experiments.language.text": ("ScenarioError",),
    "experiments.client": ("ApiError", "Unreachable"),
    "experiments.cli.common": ("UserError",),
    "experiments.record.writing": ("WriteError",),
    "testbed.services": ("ServiceError",),
    "testbed.lab": ("LabError",),
    "testbed.emulation.netlink": ("NetworkError",),
    "testbed.emulation.openvswitch": ("OpenVSwitchError",),
    "testbed.emulation.optical.build": ("BuildError",),
    "containers.image": ("ImageError",),
}

app = typer.Typer(
    name="ringlight",
    help="SDN control plane, emulator and testbed for optical interconnects in distributed training.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON, last, on standard output.")]
Runtime = Annotated[
    str, typer.Option("--runtime", help="docker: a container per GPU; namespace: processes in Mininet hosts.")
]
Repeat = Annotated[int, typer.Option("--repeat", min=1, max=100, help="Run every case so many times.")]
Rest = Annotated[str, typer.Option("--rest", help="HOST:PORT of the controller's REST API.")]
OpenFlow = Annotated[str, typer.Option("--openflow", help="HOST:PORT where switches find the controller.")]
RunsFolder = Annotated[Path, typer.Option("--runs", help="Folder for run folders.")]
Mtu = Annotated[
    int | None,
    typer.Option("--mtu", min=576, max=65535, help="Bytes of a simulated packet; else as emulated."),
]
Latency = Annotated[
    str, typer.Option("--latency", help="Before a simulated transfer's first byte counts, emulated time.")
]
ScenarioFile = Annotated[Path, typer.Argument(metavar="SCENARIO", help="Scenario file (YAML).")]

EXPERIMENTS, MACHINE = "Experiments", "Labs and this machine"
REST, OPENFLOW, RUNS = "127.0.0.1:8080", "127.0.0.1:6653", Path("runs")


def _addresses(rest: str, openflow: str) -> Addresses:
    from experiments.backends.emulation.processes import Addresses

    return Addresses(rest, openflow, os.environ.get("RINGLIGHT_TOKEN") or None)


def _check_runtime(runtime: str) -> str:
    if runtime not in ("docker", "namespace"):
        fail(f"--runtime: {runtime!r} is neither docker nor namespace", 2)
    return runtime


@app.command(rich_help_panel=EXPERIMENTS)
def demo(
    runtime: Runtime = "docker",
    repeat: Repeat = 1,
    rest: Rest = REST,
    openflow: OpenFlow = OPENFLOW,
    runs: RunsFolder = RUNS,
    as_json: Json = False,
) -> None:
    """Set up what is missing, then run the bundled GPU-disaggregation experiment."""
    from testbed.setup import ensure_ready

    ensure_ready(say, runtime=_check_runtime(runtime))
    run(BUNDLED, as_json=as_json, runtime=runtime, repeat=repeat, rest=rest, openflow=openflow, runs=runs)


@app.command(rich_help_panel=EXPERIMENTS)
def run(
    scenario: ScenarioFile,
    as_json: Json = False,
    runtime: Runtime = "docker",
    repeat: Repeat = 1,
    rest: Rest = REST,
    openflow: OpenFlow = OPENFLOW,
    runs: RunsFolder = RUNS,
) -> None:
    """Run a scenario; leaves a run folder with result.json and report.html."""
    from scenarios.comparison import Comparison, load

    checked = load(scenario)
    _check_runtime(runtime)
    from experiments.runner.progress import Reporter
    from scenarios.comparison_runner import run_comparison
    from scenarios.runner import Options, run_scenario

    options = Options(runtime, repeat, runs, _addresses(rest, openflow))
    if isinstance(checked, Comparison):
        folder, result = run_comparison(checked, options, Reporter())
    else:
        folder, result = run_scenario(checked, options, Reporter())
    _show_result(result, folder, as_json)


@app.command(rich_help_panel=EXPERIMENTS)
def simulate(
    context: typer.Context,
    scenario: ScenarioFile,
    as_json: Json = False,
    mtu: Mtu = None,
    latency: Latency = "0 s",
    runs: RunsFolder = RUNS,
) -> None:
    """Simulate a scenario in virtual time: the same run folder and report, in seconds, without root."""
    from experiments.runner.progress import Reporter
    from scenarios import simulated
    from scenarios.study import Study, load_any

    checked = load_any(scenario)
    if isinstance(checked, Study):
        _refuse(context, ("mtu", "latency"), "without effect on a study")
    options = simulated.SimulationOptions(runs, mtu, _latency_s(latency))
    folder, result = simulated.simulate(checked, options, Reporter())
    _show_result(result, folder, as_json)


@app.command(rich_help_panel=EXPERIMENTS)
def sensitivity(scenario: ScenarioFile, as_json: Json = False) -> None:
    """Vary what a regrouping scenario assumes and was fitted to; print the tables as Markdown."""
    from experiments.language.text import ScenarioError
    from scenarios import sensitivity as varied
    from scenarios.schema import Scenario
    from scenarios.study import load_any

    checked = load_any(scenario)
    if not isinstance(checked, Scenario):
        raise ScenarioError(f"{scenario}: only a scenario that regroups has sensitivities")
    found = varied.sensitivity(checked)
    if as_json:
        show_json(found)
    else:
        typer.echo(varied.markdown(checked, found))


@app.command(rich_help_panel=EXPERIMENTS)
def crosscheck(
    context: typer.Context,
    scenario: ScenarioFile,
    as_json: Json = False,
    fabric: Annotated[
        list[str] | None, typer.Option("--fabric", help="Only this one and the baseline; may be repeated.")
    ] = None,
    iterations: Annotated[
        int | None, typer.Option("--iterations", min=1, help="So many in place of the scenario's.")
    ] = None,
    emulated: Annotated[
        Path | None,
        typer.Option("--emulated", metavar="RUN", help="A run made before, in place of a new one."),
    ] = None,
    limit: Annotated[
        float, typer.Option("--limit", min=0, help="Most difference of either, per cent.")
    ] = 10.0,
    mtu: Mtu = None,
    latency: Latency = "0 s",
    runtime: Runtime = "docker",
    repeat: Repeat = 1,
    rest: Rest = REST,
    openflow: OpenFlow = OPENFLOW,
    runs: RunsFolder = RUNS,
) -> None:
    """Run a scenario on the testbed and in virtual time; say how far apart, which is off and why.

    Exit code 1 when an iteration or an all-reduce of any job differs by more than the limit.
    """
    from experiments.runner.progress import Reporter
    from scenarios import cli_crosscheck
    from scenarios.runner import Options
    from scenarios.simulated import SimulationOptions

    if emulated is not None:
        names = ("fabric", "iterations", "runtime", "repeat", "rest", "openflow")
        _refuse(context, names, "without effect on a run made before (--emulated)")
    folder, found = cli_crosscheck.run_crosscheck(
        scenario,
        Options(_check_runtime(runtime), repeat, runs, _addresses(rest, openflow)),
        SimulationOptions(runs, mtu, _latency_s(latency)),
        Reporter(),
        fabrics=fabric or (),
        iterations=iterations,
        emulated=emulated,
        limit_percent=limit,
    )
    if as_json:
        show_json(found)
    else:
        cli_crosscheck.show(found, folder)
    if not found["within_limit"]:
        raise typer.Exit(1)


def _refuse(context: typer.Context, names: tuple[str, ...], why: str) -> None:
    """Fails, naming the first of these options that was given, whatever its value."""
    for name in names:
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            fail(f"--{name}: {why}", 2)


def _latency_s(written: str) -> float:
    from fabric.units import parse_time

    try:
        return parse_time(written)
    except ValueError as error:
        fail(f"--latency: {error}", 2)


@app.command(rich_help_panel=EXPERIMENTS)
def check(scenario: ScenarioFile, as_json: Json = False) -> None:
    """Check a scenario file and say what it describes; runs nothing and needs no root."""
    from scenarios.comparison import Comparison
    from scenarios.study import Study, load_any

    checked = load_any(scenario)
    if isinstance(checked, Study):
        from scenarios import cli_study

        cli_study.show_check(checked, as_json)
        return
    if isinstance(checked, Comparison):
        from scenarios.cli_comparison import show_check

        show_check(checked, as_json)
        return
    fabric, spec = checked.fabric, checked.spec
    from scenarios.prediction import predict_completions

    lit = [(str(a), str(b)) for a, b in fabric.circuits]
    cases = {name: predict_completions(checked, lit, case.jobs) for name, case in spec.cases.items()}
    if as_json:
        show_json(
            {
                "name": spec.name,
                **fabric_document(fabric),
                "compute_s": checked.compute_s,
                "gradient_bytes": checked.gradient_bytes,
                "predicted_completion_s": cases,
            }
        )
        return
    from fabric.frames import describe
    from fabric.units import format_size, format_time

    typer.echo(
        f"{scenario}: sound. {len(fabric.gpus)} GPUs, {len(fabric.packet_switches)} packet switches, "
        f"{len(fabric.optical_switches)} optical switches; an iteration computes "
        f"{format_time(checked.compute_s)} and all-reduces {format_size(checked.gradient_bytes)}."
    )
    rows = [
        [name, job, " ".join(gpus), str(checked.iterations(len(gpus))), f"{cases[name][job]:.1f} s"]
        for name, case in spec.cases.items()
        for job, gpus in case.jobs.items()
    ]
    table(["case", "job", "ranks", "iterations", "fragmented, by model"], rows)
    for line in (*fabric_lines("fabric", spec.fabric, fabric), *describe(fabric, checked.frames)):
        typer.echo(line)


@app.command(rich_help_panel=MACHINE)
def up(
    scenario: ScenarioFile,
    fabric: Annotated[
        str | None, typer.Option("--fabric", help="Which, where a scenario compares several.")
    ] = None,
    runtime: Runtime = "docker",
    rest: Rest = REST,
    openflow: OpenFlow = OPENFLOW,
    as_json: Json = False,
) -> None:
    """Build a scenario's fabric, start its controller and leave both running for REST use."""
    from scenarios.comparison import load, setting_named

    checked = setting_named(load(scenario), fabric)
    from experiments.cli.standing import start_standing_lab

    lab = start_standing_lab(checked, _check_runtime(runtime), _addresses(rest, openflow), say)
    if as_json:
        show_json(lab)
    else:
        typer.echo(
            f"lab {lab['lab']} is up; REST at http://{rest}/docs; end it with: ringlight down {lab['lab']}"
        )


@app.command(rich_help_panel=MACHINE)
def down(
    lab: Annotated[str | None, typer.Argument(help="Lab id; without it, every lab left up.")] = None,
) -> None:
    """End what ``up`` left running."""
    from experiments.cli.standing import stop_standing_labs

    ended = stop_standing_labs(lab, say)
    typer.echo(f"ended: {', '.join(ended)}" if ended else "no lab is up")


@app.command(
    rich_help_panel=MACHINE, context_settings={"allow_extra_args": True, "ignore_unknown_options": True}
)
def test(context: typer.Context) -> None:
    """Run the whole test suite: ruff, mypy, pytest with integration tests. Arguments go to pytest alone.

    Without root nothing of the machine is set up, and tests that need it are skipped.
    """
    if os.geteuid() == 0:
        from testbed.setup import ensure_ready

        ensure_ready(say)
    else:
        say("without root, tests that build networks are skipped")
    python = [sys.executable, "-m"]
    steps = [[*python, "pytest", *context.args]]
    if not context.args:
        # Each file's tests in one process, in the file's order: what a test meets is as without xdist.
        in_order = ["--dist", "loadfile", "--no-loadscope-reorder"]
        steps = [
            [*python, "ruff", "check", "."],
            [*python, "ruff", "format", "--check", "."],
            [*python, "mypy"],
            # One process more than there are processors, as some tests wait.
            [*python, "pytest", "-q", "tests/unit", "-n", str((os.cpu_count() or 1) + 1), *in_order],
            # They wait more than they compute: two side by side, each with labs of its own.
            [*python, "pytest", "-q", "--ignore=tests/unit", "-m", "not alone", "-n", "2", *in_order],
            [*python, "pytest", "-q", "--ignore=tests/unit", "-m", "alone"],
        ]
    with tempfile.TemporaryDirectory(prefix="ringlight-caches-") as caches:
        environment = {**os.environ, **({} if os.access(ROOT, os.W_OK) else _caches_in(caches))}
        # The tests start hundreds of Python processes, each of which would compile the sources anew.
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        for step in steps:
            say(" ".join(["$", *step[2:]]))
            code = subprocess.run(step, cwd=ROOT, env=environment, check=False).returncode
            if code:
                raise typer.Exit(code)


def _caches_in(folder: str) -> dict[str, str]:
    """Where the tools of the suite are to keep what they would keep in a tree that they cannot write to."""
    return {
        "RUFF_CACHE_DIR": f"{folder}/ruff",
        "MYPY_CACHE_DIR": f"{folder}/mypy",
        "PYTEST_ADDOPTS": f"{os.environ.get('PYTEST_ADDOPTS', '')} -o cache_dir={folder}/pytest".strip(),
        "HYPOTHESIS_STORAGE_DIRECTORY": f"{folder}/hypothesis",
        "PYTHONPYCACHEPREFIX": f"{folder}/python",
    }


@app.command(rich_help_panel=MACHINE)
def setup(runtime: Runtime = "docker") -> None:
    """Make this machine ready: services, eBPF program, worker image. Does nothing the second time."""
    from testbed.setup import ensure_ready

    ensure_ready(say, runtime=_check_runtime(runtime))
    say("ready")


@app.command(rich_help_panel=MACHINE)
def doctor(as_json: Json = False) -> None:
    """Say what the machine has and lacks, each with the one command that mends it."""
    import dataclasses

    from testbed.setup import doctor_checks

    checks = doctor_checks()
    if as_json:
        show_json([dataclasses.asdict(check) for check in checks])
    else:
        rows = [
            ["yes" if check.ok else "NO", check.name, check.detail, "" if check.ok else check.mend]
            for check in checks
        ]
        table(["", "what", "found", "mend with"], rows)
    if not all(check.ok for check in checks):
        raise typer.Exit(1)


@app.command(rich_help_panel=MACHINE)
def clean(as_json: Json = False) -> None:
    """Remove everything that Ringlight ever made on this machine, and nothing else."""
    from testbed.emulation.clean import clean as clean_machine

    if os.geteuid() != 0:
        fail("root is needed to remove networks and containers; run again with sudo")
    removed = clean_machine()
    if as_json:
        show_json({"removed": removed})
        return
    for line in removed:
        typer.echo(line)
    typer.echo(f"{len(removed)} things removed" if removed else "nothing to remove")


@app.command(rich_help_panel=EXPERIMENTS)
def report(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="Run folder.")], as_json: Json = False
) -> None:
    """Compute result.json, plots and report.html of a run folder anew."""
    from scenarios.runfolder import finish

    _show_result(finish(folder), folder, as_json)


def _show_result(result: dict[str, Any], folder: Path, as_json: bool) -> None:
    report_path = (folder / "report.html").resolve()
    if as_json:
        say(f"report: {report_path}")
        typer.echo(json.dumps(result, indent=2))
        return
    if result.get("kind") == "comparison":
        from scenarios.cli_comparison import show_comparison

        show_comparison(result)
    elif result.get("kind") == "study":
        from scenarios.cli_study import show_study

        show_study(result)
    else:
        _show_regrouping(result)
    if result["runtime"] == "simulated":
        typer.echo("Simulated: no number here was measured, and no testbed was built.")
        typer.echo(f"Report: {report_path}")
        return
    fidelity = result["fidelity"]
    for entry in fidelity["repeated"]:
        typer.echo(
            f"Made once more, as others had the processors: {entry['name']} ({entry['counts']} counts)"
        )
    if fidelity["verdict"] == "bad":
        typer.echo("Do not believe these figures: the emulation did not hold its settings.")
    typer.echo(f"Fidelity: {fidelity['verdict']}" + "".join(f"\n  {r['text']}" for r in fidelity["reasons"]))
    if result["runtime"] != "docker":
        typer.echo("Workers ran in network namespaces, not in containers.")
    typer.echo(f"Report: {report_path}")


def _show_regrouping(result: dict[str, Any]) -> None:
    rows = []
    for name, case in result["cases"].items():
        published, predicted = case["published"], case["predicted"]
        rows.append(
            [
                f"{name}: {case['title']}",
                f"{case['completion_s']['fragmented']:.1f} s",
                f"{case['completion_s']['regrouped']:.1f} s",
                f"{case['reduction_percent']:.1f} %",
                f"{predicted['reduction_percent']:.1f} %",
                f"{published['reduction_percent']:.1f} %" if published else "",
                f"{case['allreduce_over_ideal']:.2f}",
            ]
        )
    head = ["case", "fragmented", "regrouped", "reduction", "all-send model", "paper", "all-reduce / ideal"]
    table(head, rows, numeric=1)
    for variant in result["variants"].values():
        typer.echo(
            f"{variant['title']}, fragmented: {variant['completion_s']:.1f} s "
            f"(all-send model {variant['predicted']['completion_s']:.1f} s)"
        )
    live = result["live"]
    if live:
        if live["parameters_identical"] is None:
            typer.echo(f"Live regroup: blackout {live['blackout_ms']:.0f} ms, without TCP and controller")
            return
        identical = "identical" if live["parameters_identical"] else "NOT identical"
        kept = "kept" if live["connections_unchanged"] else "NOT kept"
        limit = "" if live["limit_ms"] is None else f" (limit {live['limit_ms']:.0f} ms)"
        typer.echo(
            f"Live regroup: blackout {live['blackout_ms']:.0f} ms{limit}, "
            f"parameters {identical}, TCP connections {kept}"
        )


cli_rest.register(app)


def _terminate(number: int, frame: FrameType | None) -> None:
    raise Interrupted(number)


def main() -> None:
    """Entry point: runs the command; turns every foreseen error into one line and an exit code."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _terminate)
    # Without a home directory it says in three lines that it has no place for its cache, and goes on.
    logging.getLogger("matplotlib").setLevel(logging.ERROR)
    try:
        code = app(prog_name="ringlight", standalone_mode=False)
    except Interrupted as error:
        say("interrupted")
        code = 128 + error.number
    except _expected_errors() as error:
        if type(error).__name__ != "NoArgsIsHelpError":
            # Of a wrong option, only this says which.
            said = error.format_message() if hasattr(error, "format_message") else str(error)
            say(" ".join(said.split()) or type(error).__name__)
        code = 2 if type(error).__name__ == "ScenarioError" else getattr(error, "exit_code", 1)
    except BrokenPipeError:
        # The reader of our output has gone; there is nobody left to tell.
        _discard_output()
        code = 1
    except OSError as error:
        if error.errno not in DISK_FULL:
            raise
        # Of a run folder it has been said which file; this is our own output, or a file of the system's.
        say(f"{error.filename or 'what this command prints'}: cannot be written: {error.strerror}")
        _discard_output()
        code = 1
    raise SystemExit(code if isinstance(code, int) else 0)


def _discard_output() -> None:
    """What is left of the output goes nowhere, so that the interpreter does not fail on it at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _expected_errors() -> tuple[type[BaseException], ...]:
    """The classes of :data:`_USER_ERRORS` whose modules are in use, and those of the command-line parser."""
    found: list[type[BaseException]] = []
    for module, names in _USER_ERRORS.items():
        loaded = sys.modules.get(module)
        found += [getattr(loaded, name) for name in names if hasattr(loaded, name)]
    return (*found, *cli_rest.USAGE_ERRORS)


if __name__ == "__main__":
    main()
