"""The backend of commands that emulate: on this machine, or on the hosts of a Dask scheduler."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from ringlight.experiments.cli import options
from ringlight.experiments.cli.common import fail, say
from ringlight.testbed.forkserver import forking
from ringlight.testbed.lab_programs import ProgramOptions, waiting
from ringlight.testbed.packages import check_packages
from ringlight.testbed.preloaded import lab_modules

if TYPE_CHECKING:
    from ringlight.experiments.backends.emulation.backend import EmulationBackend
    from ringlight.fabric.topology import Fabric
    from ringlight.testbed.hosts.cluster import Cluster

#: Without effect where each host chooses for its labs, or bound to files and addresses of one machine.
_OF_ONE_MACHINE = ("rest", "openflow", "tls_cert", "tls_key", "rest_insecure", "openflow_insecure")
#: How a lab is over hosts.
OVER_HOSTS = ("hosts", "vxlan_port", "vxlan_number", "wireguard")


@contextmanager
def emulation(
    lab: options.LabOptions,
    context: typer.Context,
    dask: str | None,
    programs: Sequence[ProgramOptions] = (),
    over: options.OverHosts | None = None,
) -> Iterator[EmulationBackend]:
    """Yield the backend that emulates on this machine, or on the hosts of the Dask cluster ``dask``.

    Raises UserError, and LabError if the hosts cannot be reached.
    """
    if dask is None:
        refuse_hosts(context)
        check_packages()
        # It imports what labs are made of while this process imports its own and reads the scenario.
        with forking(lab_modules()):
            from ringlight.experiments.backends.emulation.backend import EmulationBackend

            yield EmulationBackend(lab.runtime, lab.addresses(), programs, lab.devices)
        return
    of_programs = [field.name for group in options.program_options() for field in fields(group)]
    of_one_machine = [*_OF_ONE_MACHINE, *of_programs, *options.lab_flags()]
    refuse(context, of_one_machine, "without effect on labs of other hosts (--dask)")
    from ringlight.experiments.runner.hosts import HostsBackend
    from ringlight.testbed.hosts.cluster import hosts_of

    with hosts_of(dask) as cluster:
        places = sum(host.labs for host in cluster.hosts)
        named = ", ".join(host.name for host in cluster.hosts)
        say(f"{len(cluster.hosts)} hosts for labs, {places} labs at once: {named}")
        backend = HostsBackend(lab.runtime, cluster, lab.devices, None if over is None else over.chosen())
        yield backend
        backend.tidy()


@contextmanager
def standing(
    scenario: Path,
    place: options.Place,
    lab: options.OpenLab,
    context: typer.Context,
    dask: str,
    over: options.OverHosts,
) -> Iterator[tuple[Cluster, dict[str, Any], Any]]:
    """Build a lab on hosts that stays up. Yield the hosts' cluster, the lab's facts, and the lab's Dask
    future.

    The lab ends with its future. Raises UserError, ScenarioError, BackendError, LabError.
    """
    with emulation(lab, context, dask, (), over) as backend:
        from ringlight.experiments.backends.emulation.lab_of_setting import cannot_drive
        from ringlight.experiments.runner.hosts import HostsBackend
        from ringlight.experiments.runner.standing import stand

        assert isinstance(backend, HostsBackend)
        setting = place.setting(scenario, options.machine(lab))
        fabric = setting.fabric
        why = cannot_drive(fabric) or _waits(fabric) or backend.cannot_spread(fabric)
        if why is not None:
            fail(f"{scenario}: {why}", 2)
        backend.check_ready()
        backend.prepare([setting], None, say, {})
        yield backend.cluster, *stand(backend, setting, str(scenario))


def _waits(fabric: Fabric) -> str | None:
    why = waiting(fabric)
    return None if why is None else f"fabric.{why}"


def refuse_hosts(context: typer.Context) -> None:
    """Fails where a lab of this machine was to be over hosts."""
    refuse(context, OVER_HOSTS, "only with --dask")


def refuse(context: typer.Context, names: Sequence[str], why: str) -> None:
    """Fails, naming the first of these options that was given, whatever its value."""
    for name in names:
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            fail(f"--{name.replace('_', '-')}: {why}", 2)
