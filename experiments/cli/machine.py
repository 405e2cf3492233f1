"""Commands for labs that stay up, and for this machine."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from experiments.cli.common import fail, say, show_json, table
from experiments.cli.options import (
    MACHINE,
    OPENFLOW,
    REST,
    Json,
    OpenFlow,
    Rest,
    Runtime,
    ScenarioFile,
    addresses,
    check_runtime,
)

ROOT = Path(__file__).resolve().parents[2]


def up(
    scenario: ScenarioFile,
    arm: Annotated[str | None, typer.Option("--arm", help="Whose fabric, where a file has several.")] = None,
    runtime: Runtime = "docker",
    rest: Rest = REST,
    openflow: OpenFlow = OPENFLOW,
    as_json: Json = False,
) -> None:
    """Build an experiment's fabric, start its controller and leave both running for REST use."""
    from experiments.cli.standing import setting_of, start_standing_lab
    from experiments.language.expand import load

    setting = setting_of(load(scenario), arm)
    where = str(scenario)
    lab = start_standing_lab(setting, where, check_runtime(runtime), addresses(rest, openflow), say)
    if as_json:
        show_json(lab)
    else:
        typer.echo(
            f"lab {lab['lab']} is up; REST at http://{rest}/docs; end it with: ringlight down {lab['lab']}"
        )


def down(
    lab: Annotated[str | None, typer.Argument(help="Lab id; without it, every lab left up.")] = None,
) -> None:
    """End what ``up`` left running."""
    from experiments.cli.standing import stop_standing_labs

    ended = stop_standing_labs(lab, say)
    typer.echo(f"ended: {', '.join(ended)}" if ended else "no lab is up")


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


def setup(runtime: Runtime = "docker") -> None:
    """Make this machine ready: services, eBPF program, worker image. Does nothing the second time."""
    from testbed.setup import ensure_ready

    ensure_ready(say, runtime=check_runtime(runtime))
    say("ready")


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
        table(["", "what", "found", "remedy"], rows)
    if not all(check.ok for check in checks):
        raise typer.Exit(1)


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


def register(app: typer.Typer) -> None:
    """Add these commands."""
    for command in (up, down, setup, doctor, clean):
        app.command(rich_help_panel=MACHINE)(command)
    app.command(
        rich_help_panel=MACHINE,
        context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    )(test)
