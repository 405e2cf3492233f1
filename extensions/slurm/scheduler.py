"""One Slurm cluster as the follower reads and changes it: topology, nodes, jobs."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ringlight.experiments.record.writing import write_whole
from ringlight.extensions.interchange.hostlists import expand
from ringlight.extensions.interchange.slurm_topology import (
    NodeTopology,
    block_sizes,
    write_conf,
)
from ringlight.extensions.slurm.following import (
    DARK,
    Command,
    is_same,
    node_commands,
    requeue_commands,
    shown_nodes,
    shown_topology,
    topology_commands,
)
from ringlight.extensions.slurm.partitions import SlurmError
from ringlight.extensions.slurm.scontrol import (
    SlurmDroppedError,
    SlurmSilentError,
    slurm,
)

#: Longest wait for Slurm's answer to a question, and to a command, seconds. A slurmctld that is down is asked
#: again at the follower's next check, not after the 9 s that ``scontrol`` itself waits.
READ_S, COMMAND_S = 3.0, 5.0
#: First version in which ``scontrol update`` moves a node in the topology, and which reads topology.yaml.
DYNAMIC = (25, 5)
CONF, YAML = "topology.conf", "topology.yaml"
#: Names of the topology that the follower writes: in topology.yaml, and that of topology.conf.
LIT, DEFAULT = "lit", "default"
TREE, BLOCK = "topology/tree", "topology/block"


@dataclass(frozen=True)
class Plugin:
    """Topology plug-in of a Slurm. ``name``: of the plug-in, such as ``topology/tree``."""

    name: str
    version: tuple[int, int]

    def shaped(self, tree: NodeTopology) -> NodeTopology:
        """Return a tree as the plug-in has it. Blocks are its leaves, without those of nodes without light."""
        if self.name != BLOCK:
            return tree
        leaves = tree.leaves.items()
        blocks = NodeTopology({s: n for s, n in leaves if not s.startswith(DARK)})
        return replace(blocks, block_sizes=block_sizes(blocks))


def plugin_of(version: str, config: str) -> Plugin:
    """Return the plug-in by ``scontrol --version`` and ``scontrol show config``.

    Raises SlurmError for a plug-in that has no switches.
    """
    numbers = re.search(r"(\d+)\.(\d+)", version)
    line = re.search(r"^TopologyPlugin\s*=\s*(\S+)", config, re.MULTILINE)
    if numbers is None or line is None:
        raise SlurmError("scontrol does not print its version and TopologyPlugin")
    name = line[1]
    if name not in (TREE, BLOCK):
        needed = "a partition that follows light needs topology/tree or topology/block"
        raise SlurmError(f"TopologyPlugin={name} in slurm.conf; {needed}")
    return Plugin(name, (int(numbers[1]), int(numbers[2])))


def topology_file(
    directory: Path, plugin: Plugin, topology: NodeTopology
) -> tuple[Path, str]:
    """Return the file that Slurm reads, and its text.

    It is topology.yaml if there is one and the version reads it. There the other topologies stay as they are.
    Raises ValueError for a topology that Slurm would not take, or a topology.yaml that cannot be read.
    """
    path = directory / YAML
    if plugin.version < DYNAMIC or not path.exists():
        comment = "The light of a Ringlight lab; ringlight slurm follow writes this."
        return directory / CONF, write_conf(topology, [comment])
    # Here, as it is rarely needed.
    from ringlight.extensions.interchange.slurm_yaml import (
        NamedTopology,
        read_yaml,
        write_yaml,
    )

    topologies = read_yaml(path.read_text(encoding="utf-8"), str(path))
    rest = [entry for entry in topologies if entry.name != LIT]
    is_default = not any(entry.cluster_default for entry in rest)
    return path, write_yaml([NamedTopology(LIT, topology, is_default), *rest])


class Scheduler:
    """One Slurm cluster. Its methods bring topology and nodes up to date, and raise SlurmError if that fails.

    ``directory``: of slurm.conf. ``say``: prints a line. ``drained``: nodes that the follower has drained, as
    Slurm last listed them.
    """

    def __init__(self, directory: Path, say: Callable[[str], None]) -> None:
        self._directory, self._say = directory, say
        self._plugin: Plugin | None = None
        self._topology: NodeTopology | None = None
        self._interactive: set[str] = set()
        self.drained: tuple[str, ...] = ()

    def forget(self) -> None:
        """Read everything again at the next call."""
        self._topology = None

    def follow(self, tree: NodeTopology) -> bool:
        """Have Slurm place jobs by a tree. Return whether something had to change.

        Also raises WriteError and ValueError, the latter for names that Slurm does not take.
        """
        if self._plugin is None:
            version = slurm("scontrol", "--version", deadline_s=READ_S)
            self._plugin = plugin_of(version, _ask("show", "config"))
        plugin = self._plugin
        target = plugin.shaped(tree)
        path, text = topology_file(self._directory, plugin, target)
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            write_whole(path, text)
        if self._topology is None:
            self._topology = self._read_topology()
        name = LIT if path.name == YAML else DEFAULT
        dynamic = name if plugin.version >= DYNAMIC else None
        commands = topology_commands(self._topology, target, dynamic)
        for command in commands:
            _tell(command)
        if commands:
            self._topology = self._read_topology()
        if not is_same(self._topology, target):
            raise SlurmError(f"slurmctld has not taken over {path}")
        return bool(commands)

    def _read_topology(self) -> NodeTopology:
        return shown_topology(_ask("show", "topology"), expand)

    def spare(self, nodes: Sequence[str], lost: Collection[str]) -> bool:
        """Drain those of some nodes whose GPUs are lost, requeue their jobs, and resume nodes of GPUs that are
        back. Return whether something had to change.
        """
        commands = self._node_commands(nodes, lost)
        for command in commands:
            _tell(command)
            self._say(f"{' '.join(command[1:])}")
        if commands and (left := self._node_commands(nodes, lost)):
            raise SlurmError(f"slurmctld has not done: {' '.join(left[0])}")
        on_lost = sorted(set(nodes) & set(lost))
        return self._requeue(on_lost) or bool(commands)

    def _node_commands(
        self, nodes: Sequence[str], lost: Collection[str]
    ) -> list[Command]:
        shown = shown_nodes(_ask("show", "nodes"))
        ours = {name: shown[name] for name in nodes if name in shown}
        self.drained = tuple(name for name, node in ours.items() if node.is_ours)
        return node_commands(ours, lost)

    def _requeue(self, nodes: Sequence[str]) -> bool:
        """Requeue the jobs on nodes. Return whether there were any."""
        if not nodes:
            return False
        words = ["--states=R,CF", f"--nodelist={','.join(nodes)}", "--format=%A"]
        jobs = _call("squeue", "--noheader", *words, deadline_s=READ_S).split()
        self._interactive &= set(jobs)
        commands = requeue_commands(jobs, self._interactive)
        for command in commands:
            try:
                _tell(command)
                self._say(f"job {command[1]} is requeued")
            except SlurmSilentError:
                raise
            except SlurmError as error:
                # Slurm requeues batch jobs only. Others end when their user ends them.
                self._interactive.add(command[1])
                self._say(
                    f"job {command[1]} on {','.join(nodes)} is not requeued: {error}"
                )
        return bool(commands)


def _ask(*words: str) -> str:
    return _call("scontrol", "--oneliner", *words, deadline_s=READ_S)


def _tell(command: Command) -> None:
    _call("scontrol", *command, deadline_s=COMMAND_S)


def _call(*words: str, deadline_s: float) -> str:
    """Run a command as :func:`.slurm`, once more if slurmctld dropped it. Each may be run twice."""
    try:
        return slurm(*words, deadline_s=deadline_s)
    except SlurmDroppedError:
        return slurm(*words, deadline_s=deadline_s)
