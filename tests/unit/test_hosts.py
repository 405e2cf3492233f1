"""Hosts for labs: who may be one, certificates for a trial, what is refused before anything starts."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from ringlight.testbed.hosts.certificates import make_certificates
from ringlight.testbed.hosts.cluster import Host, hosts_of, name_of, open_doors
from ringlight.testbed.lab import LabError


def test_only_tls_may_be_reached_from_other_machines() -> None:
    closed = [
        "tls://10.0.0.1:1",
        "tcp://127.0.0.1:1",
        "tcp://localhost:1",
        "tcp://[::1]:1",
        "inproc://10.0.0.1/1/1",
    ]
    opened = [
        "tcp://10.0.0.1:1",
        "ws://10.0.0.1:1",
        "tcp://[fe80::1]:1",
        "tcp://somewhere:1",
        "tcp://0.0.0.0:1",
    ]
    assert open_doors(closed + opened) == opened


def test_a_scheduler_without_tls_is_refused_by_name() -> None:
    with pytest.raises(
        LabError, match=r"^--dask: who reaches tcp://10\.0\.0\.1:8786 .* hosts certificates DIR$"
    ):
        hosts_of("tcp://10.0.0.1:8786").__enter__()


def test_a_scheduler_without_hosts_says_how_to_start_one() -> None:
    distributed = pytest.importorskip("distributed")
    size = {"n_workers": 1, "threads_per_worker": 1, "processes": False}
    with distributed.LocalCluster(
        **size, protocol="tcp://", host="127.0.0.1", dashboard_address=None
    ) as local:
        address = local.scheduler_address
        with pytest.raises(
            LabError, match=rf"none of its 1 workers is a host.*dask worker {address} --resources HOST=1"
        ):
            hosts_of(address).__enter__()


def test_a_host_is_called_as_its_worker_or_by_its_address() -> None:
    assert name_of("left", "tls://10.0.0.1:5") == "left"
    assert name_of(3, "tls://10.0.0.1:5") == "3"
    assert name_of("tls://10.0.0.1:5", "tls://10.0.0.1:5") == "10.0.0.1:5"
    assert Host("a", "tls://10.0.0.1:5", 1).ip == "10.0.0.1"


def test_certificates_are_for_their_owner_and_bind_all_of_dask(tmp_path: Path) -> None:
    dask_config = pytest.importorskip("dask.config")
    security = pytest.importorskip("distributed.security")
    config = make_certificates(tmp_path / "trial")
    assert stat.S_IMODE((tmp_path / "trial").stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / "trial" / "key.pem").stat().st_mode) == 0o600
    found = dask_config.collect([str(config.parent)], env={})
    with dask_config.set(dask_config.merge(dask_config.config, found)):
        found = security.Security()
        assert found.require_encryption
        # ssl reads certificate, key and authority, which must belong together.
        assert all(
            found.get_connection_args(role)["ssl_context"] for role in ("scheduler", "worker", "client")
        )
    with pytest.raises(LabError, match="it is there already"):
        make_certificates(tmp_path / "trial")
