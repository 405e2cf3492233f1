"""Packages of ``docs/``, installed beside Ringlight: a torus, simulated and emulated; a switch, spoken to."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from ringlight.containers.image import ROOT
from ringlight.containers.image_build import ensure_image
from tests.installed import COMMAND, finding, install, ringlight
from tests.integration.test_run import free_ports
from tests.served import Lines, Served, any_port

SCENARIO = ROOT / "docs/extension/torus.yaml"


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    """Variables of a process that finds the installed torus."""
    return finding(
        install(ROOT / "docs/extension", tmp_path_factory.mktemp("extension"))
    )


@pytest.fixture(scope="module")
def acme(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    """Variables of a process that finds the installed optical switch."""
    return finding(install(ROOT / "docs/switch", tmp_path_factory.mktemp("switch")))


def left(runs: Path) -> tuple[Mapping[str, Any], Mapping[tuple[str, str], Any], str]:
    """The result of the only run folder there, values by arm and metric of the job, and the report."""
    (folder,) = runs.iterdir()
    result = json.loads((folder / "result.json").read_text())
    of_job = (row for row in result["rows"] if row["subject"] == "job train")
    values = {(row["arm"], row["metric"]): row["value"] for row in of_job}
    return result, values, (folder / "report.html").read_text()


def test_it_is_checked_and_simulated(
    environment: Mapping[str, str], tmp_path: Path
) -> None:
    checked = ringlight(environment, "check", str(SCENARIO))
    assert (
        "6 packet switches r0 … r5, 9 links between them at 40 Gbit/s" in checked.stdout
    ), checked.stderr
    wrong = ringlight(
        environment, "check", str(SCENARIO), "--set", "fabric.torus.cubes=2"
    )
    assert (
        "fabric.torus: tori: name each of the cubes 0 to 1 at most once" in wrong.stderr
    )
    done = ringlight(environment, "simulate", str(SCENARIO), "--runs", str(tmp_path))
    assert done.returncode == 0, done.stderr
    _, values, report = left(tmp_path)
    assert (
        values["by-number", "torus_links"],
        values["by-number", "torus_shared"],
    ) == (2, 3)
    assert (values["by-job", "torus_links"], values["by-job", "torus_shared"]) == (1, 1)
    ratio = values["by-number", "allreduce"] / values["by-job", "allreduce"]
    assert ratio == pytest.approx(3, rel=0.01)
    assert "Cubes joined by light" in report


@pytest.mark.root
@pytest.mark.alone
def test_it_is_emulated_as_simulated(
    environment: Mapping[str, str], tmp_path: Path
) -> None:
    ensure_image(lambda _: None)
    words = [
        "run",
        str(SCENARIO),
        "--arm",
        "by-job",
        "--runs",
        str(tmp_path),
        *free_ports(),
    ]
    done = ringlight(environment, *words)
    assert done.returncode == 0, done.stderr
    result, values, _ = left(tmp_path)
    assert result["fidelity"]["verdict"] == "good", result["fidelity"]
    assert values["by-job", "torus_links"] == 1


def test_an_optical_switch_of_another_package_is_checked(
    acme: Mapping[str, str],
) -> None:
    scenario = str(ROOT / "docs/switch/acme.yaml")
    checked = ringlight(acme, "check", scenario)
    assert "acme.yaml: sound. 2 runs of 2 arms on 1 fabric" in checked.stdout, (
        checked.stderr
    )
    other = ringlight(
        acme, "check", scenario, "--set", "fabric.optical_switches.ocs0.profile=lcos"
    )
    assert (
        "profile: lcos; the driver acme goes with acme-p, mems, piezo, ideal"
        in other.stderr
    )


def test_it_speaks_its_protocol_alone(acme: Mapping[str, str], tmp_path: Path) -> None:
    options = ("--profile", "acme-p", "--ports", "8", *any_port("acme"), "--json")
    errors = tmp_path / "errors"
    with (
        errors.open("w") as log,
        subprocess.Popen(
            [*COMMAND, "ocs", "serve", *options],
            env=acme,
            text=True,
            stdout=subprocess.PIPE,
            stderr=log,
        ) as process,
    ):
        try:
            assert process.stdout is not None
            served = Served(process, process.stdout, errors)  # type: ignore[arg-type]
            with Lines(served.addresses["acme"]) as client:
                assert client.ask("ID\n", b"\n") == "OK Acme P8 A0001 1.0 8\n"
                assert client.ask("CONNECT 1 9 2 10\n", b"\n") == "OK\n"
                assert client.ask("CONNECT 3 9\n", b"\n").startswith("ERR ")
                assert client.ask("SHOW\n", b"\n").startswith("OK 2 1-9")
        finally:
            process.kill()
