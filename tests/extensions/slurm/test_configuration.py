"""The files of a Slurm cluster: partitions and their modes, slurm.conf, and what Ringlight's programs read."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringlight import IMPORT_PATH
from ringlight.extensions.slurm.partitions import (
    Partition,
    SlurmError,
    check_partitions,
    most_at_a_switch,
    parse_partitions,
)
from ringlight.extensions.slurm.site import FILE, Site, directory_of, read_site
from ringlight.extensions.slurm.slurm_conf import (
    HOOKS,
    PROLOG,
    ClusterSettings,
    hook_script,
    slurm_conf,
)

GPUS = tuple(f"g{n}" for n in range(6))


def values(text: str) -> dict[str, str]:
    """Return the values of a slurm.conf by key, of keys that stand alone in a line."""
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return dict(line.split("=", 1) for line in lines if " " not in line)


def settings(*partitions: Partition, **more: object) -> ClusterSettings:
    return ClusterSettings(Path("/etc/slurm"), GPUS, partitions, **more)  # type: ignore[arg-type]


def test_a_partition_that_leads_has_a_prolog_and_no_switches() -> None:
    text = slurm_conf(settings(Partition("gpus", "lead", GPUS, 4)))
    known = values(text)
    assert known["PrologSlurmctld"] == "/etc/slurm/prolog"
    assert known["EpilogSlurmctld"] == "/etc/slurm/epilog"
    assert known["TopologyPlugin"] == "topology/none"
    (line,) = re.findall(r"^PartitionName=gpus .*$", text, re.MULTILINE)
    assert "MaxNodes=4" in line
    assert "OverSubscribe=EXCLUSIVE" in line


def test_a_partition_that_follows_has_switches_and_no_prolog() -> None:
    text = slurm_conf(settings(Partition("gpus", "follow", GPUS)))
    assert values(text)["TopologyPlugin"] == "topology/tree"
    assert "Prolog" not in text
    assert "MaxNodes" not in text


def test_what_shortens_requeueing_has_its_reason_in_the_line_before() -> None:
    lines = slurm_conf(settings(Partition("gpus", "lead", GPUS))).splitlines()
    for key in ("AuthInfo=", "SchedulerParameters=", "CommunicationParameters="):
        (index,) = (n for n, line in enumerate(lines) if line.startswith(key))
        assert lines[index - 1].startswith("# ")


def test_munged_of_the_lab_is_named_and_the_machines_is_not() -> None:
    leads = Partition("gpus", "lead", GPUS)
    own = values(slurm_conf(settings(leads, munge=Path("/run/munge.socket"))))
    assert own["AuthInfo"] == "socket=/run/munge.socket,cred_expire=5"
    assert values(slurm_conf(settings(leads)))["AuthInfo"] == "cred_expire=5"


def test_a_script_names_the_lab_and_quotes_paths() -> None:
    cluster = ClusterSettings(Path("/a b"), GPUS, (), lab="abcd")
    script = hook_script("some.module", cluster, "/src")
    assert script.startswith("#!/bin/sh\n")
    assert "RINGLIGHT_LAB=abcd" in script
    assert "SLURM_CONF='/a b/slurm.conf'" in script


@pytest.mark.parametrize(
    ("texts", "reason"),
    [
        (["a=lead", "b=follow"], "node g0 is in partition a (lead) and in partition b"),
        (["a=lead:g0,g1", "b=follow:g1"], "node g1 is in partition a"),
        (["a=mixed"], "not NAME=lead or NAME=follow"),
        (["a"], "not NAME=lead or NAME=follow"),
        (["a=lead:g9"], "partition a: there is no GPU g9"),
        (["a=lead:"], "partition a: no GPU"),
        (["a=lead:g0,g0"], "partition a: a GPU is named twice"),
        (["a=lead:g0", "a=lead:g1"], "partition a: named twice"),
        (["a b=lead"], "partition 'a b': not a name"),
        ([], "no partition"),
    ],
)
def test_partitions_that_cannot_be_are_refused_by_name(
    texts: list[str], reason: str
) -> None:
    with pytest.raises(SlurmError, match=re.escape(reason)) as refused:
        parse_partitions(texts, GPUS, 4)
    assert "\n" not in str(refused.value)


def test_partitions_of_both_modes_share_a_cluster_but_no_node() -> None:
    made = parse_partitions(["a=lead:g0,g1", "b=follow:g2,g3"], GPUS, 4)
    assert made[0] == Partition("a", "lead", ("g0", "g1"), 4)
    assert made[1] == Partition("b", "follow", ("g2", "g3"), None)


@pytest.mark.parametrize("gpu", ["g[0]", "g,1", "0", "", "g 1", "g.1", "ä", "g" * 64])
def test_names_of_gpus_that_are_no_names_of_nodes_are_refused(gpu: str) -> None:
    with pytest.raises(SlurmError, match="not a name of a Slurm node"):
        check_partitions([Partition("a", "lead", (gpu,))], [gpu])


@given(st.from_regex(r"[a-z][a-z0-9-]{0,11}", fullmatch=True))
def test_every_name_of_a_gpu_of_a_fabric_file_is_that_of_a_node(gpu: str) -> None:
    check_partitions([Partition("a", "lead", (gpu,))], [gpu])


def test_the_most_gpus_of_a_packet_switch_count_light_and_cables() -> None:
    links = [("t0", "ocs"), ("t0", "ocs"), ("g0", "t0"), ("t0", "t1"), ("t1", "ocs")]
    assert most_at_a_switch(["t0", "t1"], ["g0", "g1"], ["ocs"], links) == 3
    with pytest.raises(SlurmError, match="no packet switch"):
        most_at_a_switch(["t0"], ["g0"], [], [("t0", "t1")])


def test_the_programs_read_what_the_configuration_writes(tmp_path: Path) -> None:
    partitions = (Partition("a", "lead", ("g0",), 4), Partition("b", "follow", ("g1",)))
    site = Site("http://h:1", partitions, {"g0": "10.0.0.1"}, "/token", None, 5)
    site.write(tmp_path)
    assert read_site(tmp_path) == site
    assert site.nodes("lead") == ("g0",)
    assert site.partition("b") == partitions[1]
    assert site.partition("c") is None


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"partitions": [{}]}', '{"partitions": [], "no": 1}']
)
def test_a_file_of_another_form_is_refused_by_its_path(
    tmp_path: Path, text: str
) -> None:
    (tmp_path / FILE).write_text(text)
    with pytest.raises(SlurmError, match=re.escape(str(tmp_path / FILE))):
        read_site(tmp_path)


def test_a_missing_file_names_the_command_that_writes_it(tmp_path: Path) -> None:
    with pytest.raises(SlurmError, match="ringlight slurm config"):
        read_site(tmp_path)


def test_the_folder_is_that_of_the_slurm_conf_in_the_environment() -> None:
    assert directory_of({"SLURM_CONF": "/x/slurm.conf"}) == Path("/x")
    assert directory_of({}) == Path("/etc/slurm")


def test_the_file_holds_no_secret(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("hush\n")
    site = Site("http://h:1", (), {}, str(tmp_path / "token"))
    site.write(tmp_path)
    assert site.token() == "hush"
    assert "hush" not in (tmp_path / FILE).read_text()


def test_hooks_import_nothing_from_where_slurmctld_was_started(tmp_path: Path) -> None:
    # They are root's, and the folder may be anybody's.
    (tmp_path / "json.py").write_text("raise SystemExit('imported from here')\n")
    script = tmp_path / "prolog"
    source = str(IMPORT_PATH)
    hook = hook_script(HOOKS[PROLOG], ClusterSettings(tmp_path, GPUS, ()), source)
    script.write_text(hook)
    done = subprocess.run(
        ["/bin/sh", str(script)],
        cwd=tmp_path, capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert f"{tmp_path}/ringlight.json: " in done.stderr
