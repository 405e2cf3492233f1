"""The key of a fabric file, and the collectives that need it."""

import pytest

from ringlight.extensions.servers.fabric_key import (
    GPU_SERVERS,
    KEY,
    GpuServersSpec,
    stated,
)
from ringlight.extensions.servers.hardware import GPUS, GpuCluster, Nic, Server
from ringlight.extensions.servers.servers_plane import part_of
from ringlight.fabric.parts import Port
from tests.unit.test_cli import one_line, ringlight

EXAMPLE = "scenarios/examples/gpu_servers.yaml"


def spec(**more: object) -> GpuServersSpec:
    nics = [{"count": 2, "rate": "200 Gbit/s"}, {"rate": "400 Gbit/s", "share": 0.5}]
    keys = {"count": 2, "gpus": 4, "gpu": "a100", "nics": nics} | more
    return GpuServersSpec.model_validate(keys)


def test_links_have_usable_rates_and_each_nic_its_rail():
    slow = {"server": 1, "nic": 0, "share": 0.25}
    tree = GPU_SERVERS.tree(spec(slow=[slow]))
    rates = {(str(link.a), str(link.b)): link.rate_bps for link in tree.links}
    assert len(tree.gpus) == 8
    assert rates["g5:0", "nv1:2"] == pytest.approx(12 * 20 * 8e9)
    assert rates["nv0:5", "rail0:1"] == pytest.approx(192e9)
    assert rates["nv1:5", "rail0:2"] == pytest.approx(48e9)
    assert rates["nv0:7", "rail2:1"] == pytest.approx(200e9)
    assert Port("rail2", 2) in {link.b for link in tree.links}


def test_rates_are_stated_with_their_source():
    document = stated(spec().cluster())
    assert document.nvlink.startswith("1.92 Tbit/s of 2.4 Tbit/s (NVIDIA/nccl v2.30.7")
    assert document.nics[0].startswith("192 Gbit/s of 200 Gbit/s (NCCL's maintainers")
    assert document.nics[2] == "200 Gbit/s of 400 Gbit/s (as stated)"


def test_small_packets_lower_the_stated_rate():
    nic = {"rate": "100 Gbit/s", "kind": "roce", "mtu": 1024}
    (text,) = stated(spec(nics=[nic]).cluster()).nics
    assert text.startswith("89.4")
    assert "of 100 Gbit/s (NCCL's maintainers" in text


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({"gpu": "tesla"}, "gpu: tesla; there are v100, a100"),
        ({"gpu": "gb10"}, "gpu: gb10 has no NVLink to a switch"),
        ({"nics": []}, "servers without NICs cannot be joined"),
        ({"nics": [{"rate": "1 Gbit/s", "kind": "token"}]}, "kind: token; there are"),
        ({"nics": [{"rate": "1 Gbit/s", "kind": "efa"}]}, "share: no source states"),
        ({"nics": [{"rate": "1 Gbit/s", "mtu": 9000}]}, "less than or equal to 4096"),
        (
            {"slow": [{"server": 2, "nic": 0, "share": 0.5}]},
            r"slow\[0\].server: 2; counted from 0, there are 2",
        ),
        (
            {"slow": [{"server": 1, "nic": 9, "share": 0.5}]},
            r"slow\[0\].nic: 9; counted from 0, there are",
        ),
        ({"gpu": "x"}, r"gpu: x; there are [a-z0-9, ]* gb300 \["),
    ],
)
def test_mistakes_are_named(more, text):
    with pytest.raises(ValueError, match=text):
        spec(**more)


def test_a_job_has_the_same_number_of_gpus_of_each_server():
    server = Server(GPUS["h100"], 8, (Nic(400e9),) * 8)
    cluster = GpuCluster(server, 4, ((2, server.slowed(1, 0.5)),))
    part = part_of(cluster, [f"g{n}" for n in (8, 9, 16, 17)])
    assert (part.servers, part.server.gpus) == (2, 2)
    assert [number for number, _ in part.faulty] == [1]
    for ranks in (["g0", "g1", "g8"], ["g0", "g8", "g1", "g9"], ["g0", "h0"]):
        with pytest.raises(ValueError, match=r"as many GPUs of each|none of"):
            part_of(cluster, ranks)


def test_the_example_takes_the_time_of_the_model(tmp_path):
    done = ringlight("simulate", EXAMPLE, "--runs", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "of NCCL's model" in done.stdout
    rows = (next(tmp_path.iterdir()) / "rows.csv").read_text()
    nccl, slow, one, four, _ = (
        float(line.split(",")[4])
        for line in rows.splitlines()
        if ",allreduce," in line and "simulated" in line
    )
    assert one == pytest.approx(4 * four, rel=0.01)
    assert slow == pytest.approx(2 * nccl, rel=0.03)


def test_a_fabric_without_servers_cannot_do_it(tmp_path):
    (tmp_path / "a.yaml").write_text(
        "name: a\nfabric: {fat_tree: {k: 4, gpu: g, rate: 10 Gbit/s}}\n"
        "training: {model: vgg16, compute: 1 ms, batch: 1, iterations: 1, collective: nvls}\n"
        "jobs: {train: {ranks: all}}\n"
    )
    done = ringlight("check", str(tmp_path / "a.yaml"))
    assert done.returncode != 0
    assert f"it needs a fabric with {KEY}" in one_line(done)
