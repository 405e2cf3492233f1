"""Ring all-reduce of the worker against gloo: processes on loopback, interleaved in the same run.

    python benchmarks/allreduce.py [--processes 4] [--mebibytes 64] [--rounds 41] [--no-gloo]

Both are real processes that wait for their turn on a pipe. Each round runs ours and gloo once each, in
alternating order, because only ratios within one run mean anything on a machine that does other work, and
waits a while for that other work to pause; ``busy_turns`` counts the turns for which it did not.
gloo comes with torch, in an environment of its own under build/ (made by --install-torch).
``bytes_lent``: those that ours sent without copying them (containers/worker/lending.py); none where the
machine does not allow it.
Congestion control is the same for both: as root, both run on the loopback of one network namespace with
what the testbed gives its workers (reno); ``--congestion-control host`` takes the host's loopback as it is.
Bus bandwidth is 2(n-1)/n * S / t (nccl-tests), t from the first start to the last end of a rank.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
TORCH = "torch==2.13.0"
ENVIRONMENT = ROOT / "build" / "gloo"
CONGESTION_CONTROL = Path("/proc/sys/net/ipv4/tcp_congestion_control")
CLONE_NEWNET = 0x40000000  # linux/sched.h


def torch_python(install: bool) -> Path | None:
    """The interpreter that has torch; None when it is not there and may not be installed."""
    python = ENVIRONMENT / "bin" / "python"
    probe = [str(python), "-c", "import torch.distributed as d; assert d.is_gloo_available()"]
    if python.exists() and subprocess.run(probe, capture_output=True, timeout=120).returncode == 0:
        return python
    if not install:
        return None
    subprocess.run([sys.executable, "-m", "venv", str(ENVIRONMENT)], check=True, timeout=120)
    install_line = [str(python), "-m", "pip", "install", "--quiet", "numpy", TORCH]
    subprocess.run(install_line, check=True, timeout=1800)
    return python


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Team:
    """One back end's processes, one per rank."""

    def __init__(self, name: str, python: Path, processes: int, mebibytes: float) -> None:
        self.name = name
        # A rank of ours on its own loopback address, gloo's at the interface it is told.
        environment = os.environ | {
            "PYTHONPATH": str(ROOT / "src"), "GLOO_SOCKET_IFNAME": "lo",
            "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1",
        }  # fmt: skip
        port = free_port()
        self.members = [
            subprocess.Popen(
                [str(python), __file__, "--rank", str(rank), "--backend", name, "--port", str(port),
                 "--processes", str(processes), "--mebibytes", str(mebibytes)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment,
            )
            for rank in range(processes)
        ]  # fmt: skip

    def turn(self) -> list[dict[str, Any]]:
        """One all-reduce on all ranks; what each measured. Raises RuntimeError for a wrong sum."""
        self._tell("prepare")
        answers = self._tell("run")
        # Only when all are done: whoever is done first would else take the processors from the others.
        if not all(answer["right"] for answer in self._tell("check")):
            raise RuntimeError(f"{self.name} gave a wrong sum")
        return answers

    def _tell(self, word: str) -> list[dict[str, Any]]:
        for member in self.members:
            assert member.stdin is not None
            member.stdin.write(word + "\n")
            member.stdin.flush()
        return [self._answer(member) for member in self.members]

    def _answer(self, member: subprocess.Popen[str]) -> dict[str, Any]:
        assert member.stdout is not None
        line = member.stdout.readline()
        if not line:
            raise RuntimeError(f"a {self.name} process ended with code {member.wait(10)}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        for member in self.members:
            member.kill()
            member.wait(10)


def measure(team: Team, vector_bytes: float) -> dict[str, float]:
    answers = team.turn()
    n = len(answers)
    seconds = max(a["end"] for a in answers) - min(a["start"] for a in answers)
    return {
        "seconds": seconds,
        "bus_GBps": 2 * (n - 1) / n * vector_bytes / seconds / 1e9,
        "cpu_s": sum(a["cpu_s"] for a in answers),
        "bytes_lent": sum(a["bytes_lent"] for a in answers),
    }


def compare(options: argparse.Namespace) -> dict[str, Any]:
    """Run the rounds and sum them up."""
    length = int(options.mebibytes * 2**18)
    python = None if options.no_gloo else torch_python(options.install_torch)
    if options.congestion_control != "host":
        enter_own_network(options.congestion_control)
    teams = [Team("ringlight", Path(sys.executable), options.processes, options.mebibytes)]
    try:
        if python is not None:
            teams.append(Team("gloo", python, options.processes, options.mebibytes))
        busy_turns = 0
        rounds: dict[str, list[dict[str, float]]] = {team.name: [] for team in teams}
        for team in teams:
            measure(team, length * 4)
        for number in range(options.rounds):
            for team in teams if number % 2 else reversed(teams):
                busy_turns += not wait_for_idle()
                rounds[team.name].append(measure(team, length * 4))
    finally:
        for team in teams:
            team.close()
    result: dict[str, Any] = {
        "benchmark": "allreduce", "processes": options.processes, "bytes": length * 4, "dtype": "float32",
        "rounds": options.rounds, "cpus": os.cpu_count(), "congestion_control": congestion_control(),
        "busy_turns": busy_turns,
    }  # fmt: skip
    for name, values in rounds.items():
        result[name] = {
            "bus_GBps_median": statistics.median(v["bus_GBps"] for v in values),
            "bus_GBps_best": max(v["bus_GBps"] for v in values),
            "seconds_median": statistics.median(v["seconds"] for v in values),
            "cpu_s_median": statistics.median(v["cpu_s"] for v in values),
            "bytes_lent": values[-1]["bytes_lent"],
        }
    if python is None:
        result["gloo"] = None
        result["note"] = "no torch: run with --install-torch to compare with gloo"
        return result
    pairs = zip(rounds["ringlight"], rounds["gloo"], strict=True)
    ratios = [ours["bus_GBps"] / gloo["bus_GBps"] for ours, gloo in pairs]
    result["ratio_per_round"] = [round(ratio, 3) for ratio in ratios]
    result["ratio_median"] = statistics.median(ratios)
    result["ratio_of_medians"] = result["ringlight"]["bus_GBps_median"] / result["gloo"]["bus_GBps_median"]
    result["target_ratio"] = 1.3
    return result


def wait_for_idle(share: float = 0.9, timeout_s: float = 5.0) -> bool:
    """Wait until the machine was idle for ``share`` of 0.15 s; False when it was not in ``timeout_s``."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        before = cpu_ticks()
        time.sleep(0.15)
        idle, total = (b - a for a, b in zip(before, cpu_ticks(), strict=True))
        if idle >= share * total:
            return True
    return False


def cpu_ticks() -> tuple[int, int]:
    """Idle ticks and all ticks of all processors since the start (proc(5), first line of /proc/stat)."""
    ticks = [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]]
    return ticks[3] + ticks[4], sum(ticks)


def congestion_control() -> str:
    return CONGESTION_CONTROL.read_text().strip() if CONGESTION_CONTROL.exists() else "unknown"


def enter_own_network(algorithm: str) -> None:
    """Move this process and its children to a new network namespace; it ends with the last of them."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNET):
        error = os.strerror(ctypes.get_errno())
        raise SystemExit(f"no network namespace: {error}; be root or use --congestion-control host")
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True, timeout=10)
    CONGESTION_CONTROL.write_text(algorithm)


def our_all_reduce(options: argparse.Namespace, vector: Any) -> Callable[[], object]:
    from ringlight.containers.worker.rendezvous import Line, connect_all, listen
    from ringlight.containers.worker.spec import WorkerSpec
    from ringlight.containers.worker.transport import Transport, partners
    from ringlight.fabric.collectives import all_reduce

    n = options.processes
    peers = tuple(f"127.0.0.{rank + 1}" for rank in range(n))
    spec = WorkerSpec("benchmark", options.rank, n, peers, port=options.port)
    schedule = all_reduce("ring", n)
    with listen(spec, time.monotonic() + 10) as listener:
        others = set().union(*partners(schedule, options.rank))
        wanted = dict.fromkeys(map(Line, others), True)
        lines = connect_all(spec, wanted, listener)
        connections = {line.peer: connection for line, connection in lines.items()}
    transport = Transport(schedule, options.rank, connections, len(vector))
    return lambda: transport.run(vector)


def gloo_all_reduce(options: argparse.Namespace, vector: Any) -> Callable[[], object]:
    import torch
    import torch.distributed as distributed

    distributed.init_process_group(
        "gloo", init_method=f"tcp://127.0.0.1:{options.port}", rank=options.rank, world_size=options.processes
    )
    tensor = torch.from_numpy(vector)
    return lambda: distributed.all_reduce(tensor)


def member(options: argparse.Namespace) -> None:
    """One rank: obeys the words that come on standard input."""
    import numpy as np

    n = options.processes
    length = int(options.mebibytes * 2**18)
    pattern = (np.arange(length) % 251).astype(np.float32)
    expected = pattern * n + n * (n - 1) // 2
    vector = np.empty(length, dtype=np.float32)
    make = our_all_reduce if options.backend == "ringlight" else gloo_all_reduce
    all_reduce = make(options, vector)
    for word in sys.stdin:
        answer: dict[str, object] = {}
        if word.strip() == "prepare":
            np.add(pattern, np.float32(options.rank), out=vector)
        elif word.strip() == "check":
            answer = {"right": bool(np.array_equal(vector, expected))}
        else:
            cpu, start = time.process_time(), time.monotonic()
            report = all_reduce()
            end = time.monotonic()
            answer = {"start": start, "end": end, "cpu_s": time.process_time() - cpu}
            answer["bytes_lent"] = getattr(report, "bytes_lent", 0)
        print(json.dumps(answer), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--mebibytes", type=float, default=64)
    parser.add_argument("--rounds", type=int, default=41)
    parser.add_argument("--congestion-control", default="reno", help="an algorithm's name, or host")
    parser.add_argument("--no-gloo", action="store_true")
    parser.add_argument("--install-torch", action="store_true", help=f"put {TORCH} into build/gloo if absent")
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--backend", help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank is not None:
        member(options)
    else:
        print(json.dumps(compare(options), indent=1))


if __name__ == "__main__":
    main()
