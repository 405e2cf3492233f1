"""The text of slurm.conf and of the files beside it."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ringlight.extensions.slurm.partitions import Partition

TOPOLOGY, PLUGINS, SPANK = "topology.conf", "plugstack.conf", "spank_ringlight.so"
PROLOG, EPILOG = "prolog", "epilog"
#: Scripts that Slurm's controller calls, and the module that each executes.
HOOKS = {
    PROLOG: "ringlight.extensions.slurm.prolog",
    EPILOG: "ringlight.extensions.slurm.epilog",
}
PORT = 17000


@dataclass(frozen=True)
class ClusterSettings:
    """A Slurm cluster on one machine.

    ``directory``: of slurm.conf, the files beside it, and Slurm's own state. ``port``: of slurmctld; slurmd of
    the first node listens at the next one, and so on. ``munge``: socket of munged, None for the machine's.
    ``lab``: the lab whose processes its programs are.
    """

    directory: Path
    nodes: tuple[str, ...]
    partitions: tuple[Partition, ...]
    port: int = PORT
    munge: Path | None = None
    host: str = "localhost"
    lab: str | None = None

    @property
    def follows(self) -> bool:
        """Return whether a partition's topology is that of the light."""
        return any(partition.mode == "follow" for partition in self.partitions)

    @property
    def leads(self) -> bool:
        """Return whether a partition's jobs move light."""
        return any(partition.mode == "lead" for partition in self.partitions)


def slurm_conf(settings: ClusterSettings) -> str:
    """Return the text of slurm.conf, in which comments give the reasons of unusual values."""
    parts = [
        _general(settings),
        _TIMES,
        _topology(settings),
        _hooks(settings),
        _nodes(settings),
        _partitions(settings.partitions),
    ]
    return "\n".join(part for part in parts if part)


def _general(settings: ClusterSettings) -> str:
    directory = settings.directory
    socket = "" if settings.munge is None else f"socket={settings.munge},"
    return f"""\
# A Slurm cluster over a Ringlight lab, as ringlight slurm config prints it: a node at each GPU.
ClusterName=ringlight
SlurmctldHost={settings.host}(127.0.0.1)
SlurmctldPort={settings.port}
# All on loopback; by default Slurm listens at every address.
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
# A requeued job is eligible again when its credential has expired: after 121 s by default, after 6 s so.
AuthInfo={socket}cred_expire=5
StateSaveLocation={directory}/state
SlurmdSpoolDir={directory}/spool.%n
SlurmctldPidFile={directory}/slurmctld.pid
SlurmdPidFile={directory}/slurmd.%n.pid
SlurmctldLogFile={directory}/slurmctld.log
SlurmdLogFile={directory}/slurmd.%n.log
SwitchType=switch/none
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
# Tasks enter the network namespace of their GPU by a SPANK plug-in: ringlight slurm spank compiles it.
PlugStackConfig={directory}/{PLUGINS}
"""


#: When the scheduler looks at its queue.
PARAMETERS = "sched_interval=1,bf_interval=1,sched_min_interval=0"
_TIMES = f"""\
SchedulerType=sched/backfill
# The scheduler looks at requeued and pending jobs every second, not every 60 s and 30 s, and often at once when
# a job ends. A job whose GPU is lost then runs again after 6 to 8 s, not after 26 s.
SchedulerParameters={PARAMETERS}
# A cluster on one machine has no other node to hand over to, so a node that comes back is used again.
ReturnToService=2
# A job that no partition can ever run is refused when it is submitted.
EnforcePartLimits=ALL
SlurmctldTimeout=30
SlurmdTimeout=30
KillWait=5
"""


def _topology(settings: ClusterSettings) -> str:
    select = "SelectType=select/cons_tres\nSelectTypeParameters=CR_CPU\n"
    if not settings.follows:
        why = (
            "Light follows Slurm: it can bring any GPUs together, so"
            if settings.leads
            else "Light stands, and"
        )
        return f"""\
{select}# {why} Slurm sees no switches.
TopologyPlugin=topology/none
"""
    return f"""\
{select}# Slurm follows light: ringlight slurm follow keeps {TOPOLOGY} as the circuits are.
TopologyPlugin=topology/tree
"""


def _hooks(settings: ClusterSettings) -> str:
    if not settings.leads:
        return ""
    return f"""\
# Claims the GPUs of a job before it starts, which moves light, and releases them after its end. A refusal
# requeues the job, drains nothing, and after some refusals holds the job.
PrologSlurmctld={settings.directory}/{PROLOG}
EpilogSlurmctld={settings.directory}/{EPILOG}
PrologEpilogTimeout=60
"""


def _nodes(settings: ClusterSettings) -> str:
    lines = [
        f"NodeName={node} NodeHostname={settings.host} NodeAddr=127.0.0.1 Port={settings.port + 1 + index} CPUs=1"
        for index, node in enumerate(settings.nodes)
    ]
    return "\n".join(lines) + "\n"


def _partitions(partitions: Sequence[Partition]) -> str:
    lines = []
    for index, partition in enumerate(partitions):
        words = [
            f"PartitionName={partition.name}",
            f"Nodes={','.join(partition.nodes)}",
        ]
        words += [f"Default={'NO' if index else 'YES'}", "MaxTime=INFINITE", "State=UP"]
        if partition.mode == "lead":
            # A claim has whole GPUs.
            words.append("OverSubscribe=EXCLUSIVE")
        if partition.max_nodes is not None:
            lines.append(
                "# The GPUs that light can bring to one packet switch. Jobs of more nodes span switches."
            )
            words.append(f"MaxNodes={partition.max_nodes}")
        lines.append(" ".join(words))
    return "\n".join(lines) + "\n"


def flat_topology(nodes: Sequence[str]) -> str:
    """Return a topology.conf with all nodes at one switch, until light is known."""
    return f"SwitchName=ringlight Nodes={','.join(nodes)}\n"


def plugins_conf(directory: Path) -> str:
    """Return the text of plugstack.conf."""
    return f"required {directory}/{SPANK}\n"


def hook_script(module: str, settings: ClusterSettings, python_path: str) -> str:
    """Return a script that Slurm's controller executes, without a PATH, as prolog or epilog."""
    variables = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "PYTHONPATH": python_path}
    variables["SLURM_CONF"] = f"{settings.directory}/slurm.conf"
    if settings.lab is not None:
        variables["RINGLIGHT_LAB"] = settings.lab
    words = [f"{name}={shlex.quote(value)}" for name, value in variables.items()]
    command = ["exec", shlex.quote(sys.executable), "-m", module]
    return f"#!/bin/sh\n{' '.join([*words, *command])}\n"
