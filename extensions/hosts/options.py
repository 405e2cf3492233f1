"""Options of labs on hosts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from ringlight.experiments.cli.common import say

if TYPE_CHECKING:
    from ringlight.extensions.hosts.backend import HostsBackend
    from ringlight.extensions.hosts.spread import Over

#: Where Dask's scheduler is.
Address = Annotated[
    str,
    typer.Option(
        "--dask", metavar="ADDRESS", help="Dask's scheduler, such as tls://HOST:PORT."
    ),
]


@dataclass(frozen=True)
class OverHosts:
    """Options of one lab over several hosts."""

    hosts: Annotated[
        int | None,
        typer.Option(
            "--hosts",
            metavar="N",
            min=2,
            max=64,
            help="With --dask: one lab over N hosts.",
        ),
    ] = None
    vxlan_port: Annotated[
        int,
        typer.Option(
            "--vxlan-port",
            min=1,
            max=65535,
            help="UDP port of the fibres between the hosts of a lab.",
        ),
    ] = 14789
    vxlan_number: Annotated[
        int | None,
        typer.Option(
            "--vxlan-number",
            min=1,
            max=(1 << 24) - 1,
            help="VXLAN number of a lab's first fibre between hosts; the next ones follow. Default: random.",
        ),
    ] = None

    wireguard: Annotated[
        bool,
        typer.Option(
            "--wireguard",
            help="Require encrypted fibres between hosts: workers must have WireGuard addresses.",
        ),
    ] = False

    def chosen(self) -> Over | None:
        """Return the options of a lab over several hosts; None for a lab on one host."""
        from ringlight.extensions.hosts.spread import Over

        if self.hosts is None:
            return None
        return Over(
            self.hosts, self.vxlan_port, self.vxlan_number, wireguard=self.wireguard
        )

    @contextmanager
    def backend_at(
        self, address: str, runtime: str, devices: Sequence[str]
    ) -> Iterator[HostsBackend]:
        """Yield the backend whose labs are on the hosts of a Dask scheduler.

        Raises LabError if the hosts cannot be reached.
        """
        from ringlight.extensions.hosts.backend import HostsBackend
        from ringlight.extensions.hosts.cluster import hosts_of

        with hosts_of(address) as cluster:
            places = sum(host.labs for host in cluster.hosts)
            named = ", ".join(host.name for host in cluster.hosts)
            say(f"{len(cluster.hosts)} hosts for labs, {places} labs at once: {named}")
            backend = HostsBackend(runtime, cluster, devices, self.chosen())
            yield backend
            backend.tidy()


@dataclass(frozen=True)
class OnHosts(OverHosts):
    """Options of commands that build labs, for labs on hosts."""

    dask: Annotated[
        str | None,
        typer.Option(
            "--dask",
            metavar="ADDRESS",
            help="Build labs on hosts: workers of this Dask scheduler (tls://HOST:PORT) with the resource "
            "HOST.",
        ),
    ] = None

    @contextmanager
    def backend(self, runtime: str, devices: Sequence[str]) -> Iterator[HostsBackend]:
        """Yield the backend whose labs are on hosts. Raises LabError if the hosts cannot be reached."""
        assert self.dask is not None
        with self.backend_at(self.dask, runtime, devices) as backend:
            yield backend
