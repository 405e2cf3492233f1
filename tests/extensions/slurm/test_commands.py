"""``ringlight slurm``: what it prints and refuses, without a lab."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from ringlight.experiments.cli.common import UserError
from ringlight.extensions.slurm import commands, process
from ringlight.extensions.slurm.options import SlurmOptions
from ringlight.extensions.slurm.partitions import SlurmError
from ringlight.extensions.slurm.plugin import compile_plugin
from ringlight.testbed.lab import LabError

FABRIC: dict[str, Any] = {
    "gpus": [{"name": f"g{n}", "ip": f"10.0.0.{n}"} for n in range(4)],
    "packet_switches": [{"name": "t0"}, {"name": "t1"}],
    "optical_switches": [{"name": "ocs"}],
    "links": [
        *({"ends": [f"g{n}", f"ocs:{n + 1}"]} for n in range(4)),
        *({"ends": [f"t{t}:{p}", f"ocs:{5 + 3 * t + p}"]} for t in (0, 1) for p in (1, 2, 3)),
        {"ends": ["t0:4", "t1:4"]},
    ],
}  # fmt: skip


@pytest.fixture(autouse=True)
def lab(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "get", lambda _: FABRIC)
    monkeypatch.setattr(commands, "_url", lambda: "http://127.0.0.1:8080")


def run(*words: str) -> str:
    done = CliRunner().invoke(commands.slurm, words, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def test_the_printed_configuration_has_a_node_for_each_gpu() -> None:
    text = run("config")
    for n in range(4):
        assert (
            f"NodeName=g{n} NodeHostname=localhost NodeAddr=127.0.0.1 Port={17001 + n} CPUs=1"
            in text
        )
    # Three ports of a packet switch lead to the optical switch.
    (line,) = (line for line in text.splitlines() if line.startswith("PartitionName="))
    assert line.startswith("PartitionName=gpus Nodes=g0,g1,g2,g3 Default=YES ")
    assert line.endswith(" OverSubscribe=EXCLUSIVE MaxNodes=3")


def test_a_node_of_both_modes_is_refused_by_name() -> None:
    with pytest.raises(SlurmError, match="node g1 is in partition a"):
        run("config", "--partition", "a=lead:g0,g1", "--partition", "b=follow:g1,g2")


def test_the_written_files_are_listed_and_there(tmp_path: Path) -> None:
    if not Path("/usr/include/slurm/spank.h").exists():
        pytest.skip("libslurm-dev is not installed")
    words = ["--partition", "a=lead:g0,g1", "--partition", "b=follow:g2,g3"]
    text = run("config", *words, "--directory", str(tmp_path), "--write")
    names = {Path(line).name for line in text.split()}
    expected = {"slurm.conf", "ringlight.json", "plugstack.conf", "spank_ringlight.so"}
    assert names == expected | {"prolog", "epilog", "topology.conf"}
    assert all((tmp_path / name).exists() for name in names)
    assert (tmp_path / "prolog").stat().st_mode & 0o111
    site = json.loads((tmp_path / "ringlight.json").read_text())
    assert site["addresses"]["g3"] == "10.0.0.3"
    assert (tmp_path / "topology.conf").read_text().startswith("SwitchName=")
    # Our own may be written again.
    run("config", "--directory", str(tmp_path), "--write")


def test_a_configuration_of_somebody_else_is_left_as_it_is(tmp_path: Path) -> None:
    other = tmp_path / "slurm.conf"
    other.write_text("ClusterName=production\n")
    with pytest.raises(SlurmError, match=f"^{other}: .*another"):
        run("config", "--directory", str(tmp_path), "--write")
    assert other.read_text() == "ClusterName=production\n"
    assert list(tmp_path.iterdir()) == [other]


def test_a_plug_in_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    if not Path("/usr/include/slurm/spank.h").exists():
        pytest.skip("libslurm-dev is not installed")
    with pytest.raises(SlurmError) as refused:
        compile_plugin(tmp_path / "none" / "x.so")
    assert "\n" not in str(refused.value)


def test_the_environment_without_a_lab_names_the_command_that_makes_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("ringlight.testbed.lab.STATE_ROOT", tmp_path)
    with pytest.raises(UserError, match="ringlight up SCENARIO --slurm"):
        run("env")
    for name in ("abcd", "efgh"):
        (tmp_path / name / "slurm").mkdir(parents=True)
    with pytest.raises(UserError, match="which lab"):
        run("env")
    assert run("env", "efgh") == f"export SLURM_CONF={tmp_path}/efgh/slurm/slurm.conf\n"


@pytest.mark.parametrize(
    "options", [SlurmOptions(slurm_mode="follow"), SlurmOptions(slurm_port=18000)]
)
def test_options_of_a_cluster_need_a_cluster(options: SlurmOptions) -> None:
    with pytest.raises(UserError, match="only with --slurm"):
        options.given_to(Path("x.yaml"), [])


@pytest.mark.parametrize("address", ["127.0.1.1", "172.17.0.2", None])
def test_a_machine_whose_name_is_another_address_than_loopback_is_refused(
    address: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def resolved(name: str) -> str:
        if address is None:
            raise OSError("unknown")
        return address

    monkeypatch.setattr(process, "missing_packages", list)
    monkeypatch.setattr("socket.gethostname", lambda: "lab1")
    monkeypatch.setattr("socket.gethostbyname", resolved)
    line = (
        rf"--slurm: .* that of lab1 is {address or 'unknown'}; .*: 127\.0\.0\.1 lab1$"
    )
    with pytest.raises(LabError, match=line):
        SlurmOptions(slurm=True).listens()
    monkeypatch.setattr("socket.gethostbyname", lambda _: "127.0.0.1")
    assert SlurmOptions(slurm=True).listens() == {"--slurm-port": "127.0.0.1:17000"}


def test_missing_packages_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "missing_packages", lambda: ["munge"])
    with pytest.raises(LabError, match=r"run as root: apt-get install munge$"):
        SlurmOptions(slurm=True).listens()
