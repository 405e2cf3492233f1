"""Commands for labs that stay up, and for this machine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Annotated

import typer

from ringlight.experiments.cli import options, suite
from ringlight.experiments.cli.common import (
    Column,
    answer,
    echo,
    fail,
    listing,
    patience,
    say,
)
from ringlight.experiments.cli.labs import processes_of_lab
from ringlight.testbed.forkserver import forking
from ringlight.testbed.packages import check_packages
from ringlight.testbed.preloaded import TESTBED

ROOT = Path(__file__).resolve().parents[2]


@options.with_groups
def up(
    scenario: options.ScenarioFile,
    place: options.Place,
    lab: options.OpenLab,
    hosts: Annotated[
        bool,
        typer.Option(
            "--hosts",
            help="Give each GPU a network namespace with its NIC while no job holds the GPU.",
        ),
    ] = False,
    as_json: options.Json = False,
) -> None:
    """Build an experiment's fabric, start its controller and leave both running for REST use.

    Examples:
        ringlight examples copy disaggregation
        ringlight up disaggregation.yaml
        ringlight down
    """
    check_packages()
    with forking(TESTBED) as brief:
        from ringlight.experiments.record.writing import writing

        processes = processes_of_lab(
            scenario, place, lab, follow=False, lends=not brief, idle_hosts=hosts
        )
        with writing(processes.state), patience("building the lab"):
            processes.start()
            facts = processes.leave_standing(scenario=str(scenario))
    message = f"lab {facts['lab']} is up; REST at {facts['url']}/docs; end it with: ringlight down {facts['lab']}"
    answer(facts, as_json, lambda _: echo(message))
    lab.announce_pages()


def down(
    lab: Annotated[
        str | None, typer.Argument(help="Lab id; default: every lab left up.")
    ] = None,
) -> None:
    """End labs that `up` left running.

    Examples:
        ringlight down
    """
    from ringlight.testbed import services
    from ringlight.testbed.standing_labs import end_standing

    # Another user does not see whether there is one.
    if os.geteuid() != 0:
        fail(services.root_needed("end a lab"))
    ended = end_standing(lab, say)
    echo(f"ended: {', '.join(ended)}" if ended else "no lab is up")


def test(context: typer.Context) -> None:
    """Run the whole test suite: ruff, mypy, pytest with integration tests. Arguments go to pytest alone.

    The core's unit tests run in a copy of the tree without any extension, those of extensions in the tree.

    With --core: ruff, mypy and the unit tests in a copy of the tree without any extension.
    Without root nothing of the machine is set up, and tests that need it are skipped.

    Examples:
        ringlight test
        ringlight test tests/unit -n auto
        ringlight test tests/unit/test_laps.py -x
    """
    from ringlight.testbed.process_start import dying_with_starter

    if not (ROOT / "tests").is_dir():
        fail(
            "the installed package has no suite; Ringlight's source tree has: ./ringlight test",
            2,
        )
    with ExitStack() as stack:
        if not context.args:
            stack.enter_context(suite.telling_its_cost(say))
        if os.geteuid() == 0:
            from ringlight.testbed.setup import ensure_ready

            ensure_ready(say)
        else:
            say("without root, tests that build networks are skipped")
        environment, cache = dict(os.environ), ROOT / ".pytest_cache"
        if not os.access(ROOT, os.W_OK):
            caches = stack.enter_context(
                tempfile.TemporaryDirectory(prefix="ringlight-caches-")
            )
            environment |= _caches_in(caches)
            cache = Path(caches, "pytest")
        # The tests start hundreds of Python processes, each of which would compile the sources anew.
        environment.pop("PYTHONDONTWRITEBYTECODE", None)

        def run(*step: str, aside: bool = False) -> int:
            say(" ".join(["$", *step]))
            # By force, as nothing else ends pytest for certain; its next run removes the labs of this one.
            command = [*dying_with_starter(signal.SIGKILL), sys.executable, "-m", *step]
            with tempfile.TemporaryFile() if aside else nullcontext() as output:
                done = subprocess.run(
                    command,
                    cwd=ROOT,
                    env=environment,
                    check=False,
                    stdout=output,
                    stderr=output,
                )
                if output is not None:
                    output.seek(0)
                    lines = output.read().decode(errors="replace").splitlines()
                    sys.stdout.write(
                        "\n".join(["", *(lines if done.returncode else lines[-1:]), ""])
                    )
            return done.returncode

        if context.args == ["--core"]:
            code = run("tests.without")
        elif context.args:
            code = run("pytest", *context.args)
        else:
            code = suite.whole(run, cache, say)
    if code:
        raise typer.Exit(code)


def _caches_in(folder: str) -> dict[str, str]:
    """Environment that moves the test tools' caches out of a tree that they cannot write to."""
    return {
        "RUFF_CACHE_DIR": f"{folder}/ruff",
        "MYPY_CACHE_DIR": f"{folder}/mypy",
        "PYTEST_ADDOPTS": f"{os.environ.get('PYTEST_ADDOPTS', '')} -o cache_dir={folder}/pytest".strip(),
        "HYPOTHESIS_STORAGE_DIRECTORY": f"{folder}/hypothesis",
        "PYTHONPYCACHEPREFIX": f"{folder}/python",
    }


def setup(runtime: options.Runtime = "docker") -> None:
    """Make this machine ready: services, eBPF program, worker image. Does nothing the second time.

    Examples:
        ringlight setup
        ringlight setup --runtime namespace
    """
    from ringlight.testbed.setup import ensure_ready

    ensure_ready(say, runtime=runtime)
    say("ready")


def doctor(as_json: options.Json = False) -> None:
    """List the parts that this machine has and lacks, and the command that fixes each.

    Examples:
        ringlight doctor
    """
    import dataclasses

    from ringlight.testbed.setup import doctor_checks

    checks = [dataclasses.asdict(check) for check in doctor_checks()]
    ok: Column = ("", lambda check: "yes" if check["ok"] else "NO")
    remedy: Column = ("remedy", lambda check: "" if check["ok"] else check["mend"])
    answer(
        checks,
        as_json,
        lambda entries: listing(
            entries, ok, ("what", "name"), ("found", "detail"), remedy
        ),
    )
    if not all(check["ok"] for check in checks):
        raise typer.Exit(1)


def calibrate(as_json: options.Json = False) -> None:
    """Measure the cost of frames, wake-ups and containers on this machine, from which `scale: auto` is chosen.

    Examples:
        ringlight calibrate
    """
    import dataclasses

    from ringlight.experiments.runner.machine import calibrate as measure
    from ringlight.testbed import services

    if os.geteuid() != 0:
        fail(services.root_needed("measure networks"))
    calibration = measure(say)
    # The share that others took has no unit, and is said where it is too much.
    rows = [
        {"what": what, "value": value}
        for what, value in calibration.measured.items()
        if what != "taken"
    ]
    written: Column = (
        "seconds",
        lambda row: "" if row["value"] is None else f"{row['value']:.3g}",
    )
    answer(
        dataclasses.asdict(calibration),
        as_json,
        lambda _: listing(rows, "what", written),
    )


def clean(as_json: options.Json = False) -> None:
    """Remove everything that Ringlight ever made on this machine, and nothing else.

    Examples:
        ringlight clean
    """
    from ringlight.testbed import services
    from ringlight.testbed.emulation.clean import clean as clean_machine

    if os.geteuid() != 0:
        fail(services.root_needed("remove networks and containers"))
    answer({"removed": clean_machine()}, as_json, show_removed)


def show_removed(document: dict[str, list[str]]) -> None:
    """Print what was removed, and how much."""
    for line in document["removed"]:
        echo(line)
    count = len(document["removed"])
    echo(f"{count} things removed" if count else "nothing to remove")


def register(app: typer.Typer) -> None:
    """Add these commands."""
    for command in (up, down, setup, calibrate, doctor, clean):
        app.command(rich_help_panel=options.MACHINE)(command)
    app.command(
        rich_help_panel=options.MACHINE,
        context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    )(test)
