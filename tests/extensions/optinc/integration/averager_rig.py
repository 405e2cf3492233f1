"""Averagers and servers of OptINC as processes in namespaces of their own, a shaped link for each server.

    python -m tests.extensions.optinc.integration.averager_rig PLAN      one server (see :class:`Plan`)

A server's values are drawn from a seed, its rank and the collective's number, so whoever knows these knows
what all must get (:func:`expected`). The control network, over which servers tell each other their scales,
is a socket that all of them reach (:class:`Hub`).
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import pickle
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from io import BufferedRWPair
from pathlib import Path
from typing import Any, BinaryIO

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
import numpy.typing as npt
from pyroute2.iproute import IPRoute

from ringlight.containers.worker.peer import ReduceFailed
from ringlight.extensions.optinc.reducing import Averaging, UnitPlace
from ringlight.extensions.optinc.unit import wire
from ringlight.extensions.optinc.unit.averaging import Coding, goal, mean_of_means
from ringlight.fabric.whole_numbers import blocks
from ringlight.testbed.emulation.kernel import addressing, namespaces, netlink, shaping
from ringlight.testbed.process_start import Process, start_process

ROOT = Path(__file__).resolve().parents[4]
PORT = 7070
#: Length of a queue before a link, seconds.
QUEUE_S = 0.02


@dataclass(frozen=True)
class Plan:
    """What one server does.

    sizes     values of each collective
    bad       (collective, index, value): put there by this rank
    keep      file for the last mean
    """

    rank: int
    ranks: int
    ports: int
    address: str
    tcp_port: int
    hub: str
    sizes: tuple[int, ...]
    bits: int = 8
    block: int = blocks.BLOCK
    frame: int = wire.FRAME
    seed: int = 1
    silence_s: float = 1.5
    bad: tuple[int, int, float] | None = None
    keep: str | None = None


def values(seed: int, rank: int, number: int, size: int) -> npt.NDArray[np.float32]:
    """Evenly spread, so that all codes of all bits occur."""
    return np.random.default_rng((seed, rank, number)).random(size, np.float32) * 2 - 1


def codes_of_all(
    plan: Plan, number: int
) -> tuple[npt.NDArray[Any], npt.NDArray[np.int16]]:
    """All ranks' codes of a collective, shape (ranks, size), and the shared exponents, in one process."""
    own = [
        values(plan.seed, rank, number, plan.sizes[number])
        for rank in range(plan.ranks)
    ]
    shared = blocks.merge([blocks.exponents(one, plan.block) for one in own])
    more = [blocks.raised(rank, plan.ranks) for rank in range(plan.ranks)]
    codes = [
        blocks.quantise(one, shared, plan.bits, plan.block, m)
        for one, m in zip(own, more, strict=True)
    ]
    return np.stack(codes), shared


def expected(
    plan: Plan, number: int, *, equation_9: bool = False
) -> npt.NDArray[np.float32]:
    """What all ranks must get of a collective, by Eq. 3 or 8, or by Eq. 9 of units of ``plan.ports``."""
    codes, shared = codes_of_all(plan, number)
    if equation_9:
        answers = mean_of_means(
            codes.reshape(-1, plan.ports, codes.shape[1]), plan.bits
        )
    else:
        answers = goal(codes, Coding(plan.bits, plan.ranks))
    means = answers.astype(blocks.code_type(plan.bits))
    return blocks.dequantise(means, shared, plan.bits, plan.block)


def digest(mean: npt.NDArray[np.float32]) -> str:
    return hashlib.sha256(mean.tobytes()).hexdigest()


class Hub:
    """A socket at which servers leave a message each and get all of them, again and again."""

    def __init__(self, path: Path, ranks: int) -> None:
        self.path = path
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen(ranks)
        self._thread = threading.Thread(target=self._serve, args=(ranks,), daemon=True)
        self._thread.start()

    def _serve(self, ranks: int) -> None:
        files: dict[int, Any] = {}
        with ExitStack() as stack, suppress(OSError):
            while len(files) < ranks:
                connection, _ = self._listener.accept()
                stack.enter_context(connection)
                file = stack.enter_context(connection.makefile("rwb"))
                who = file.read(1)
                if not who:
                    return
                files[who[0]] = file
            while True:
                said = [read_message(files[rank]) for rank in range(ranks)]
                for rank in range(ranks):
                    for message in said:
                        write_message(files[rank], message)
                    files[rank].flush()

    def close(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(5)


def read_message(file: BufferedRWPair) -> bytes:
    head = file.read(4)
    if len(head) < 4:
        raise ConnectionError("the control network has lost somebody")
    return file.read(int.from_bytes(head, "little"))


def write_message(file: BufferedRWPair, message: bytes) -> None:
    file.write(len(message).to_bytes(4, "little") + message)


def serve(plan: Plan) -> dict[str, Any]:
    """One server's work; what it has to say of it."""
    digests: list[str] = []
    spans: list[tuple[float, float]] = []
    place = UnitPlace(
        plan.rank,
        plan.ranks,
        plan.rank % plan.ports,
        plan.ports,
        plan.bits,
        plan.block,
        plan.frame,
    )
    with socket.socket(socket.AF_UNIX) as hub:
        hub.connect(plan.hub)
        file = hub.makefile("rwb")
        file.write(bytes([plan.rank]))
        file.flush()

        def exchange(messages: Sequence[bytes]) -> Sequence[bytes]:
            write_message(file, pickle.dumps([*messages]))
            file.flush()
            said = [
                pickle.loads(read_message(file))[plan.rank] for _ in range(plan.ranks)
            ]
            began.append(time.monotonic())
            return said

        began: list[float] = []
        try:
            with Averaging(
                (plan.address, plan.tcp_port), place, exchange, silence_s=plan.silence_s
            ) as averaging:
                for number, size in enumerate(plan.sizes):
                    own = values(plan.seed, plan.rank, number, size)
                    if plan.bad is not None and plan.bad[0] == number:
                        own[plan.bad[1]] = plan.bad[2]
                    mean = averaging.mean(own)
                    spans.append((began[-1], time.monotonic()))
                    digests.append(digest(mean))
                    if plan.keep is not None:
                        np.save(plan.keep, mean)
        except ReduceFailed as error:
            return {"failed": str(error), "rank": error.rank, "at": time.monotonic()}
        except OSError as error:
            return {"failed": str(error), "rank": None, "at": time.monotonic()}
    return {
        "digests": digests,
        "spans": spans,
        "moved": dataclasses.asdict(averaging.moved),
        "cpu_s": time.process_time(),
    }


class Averager:
    """A process of an averager."""

    def __init__(
        self, directory: Path, name: str, namespace: int | None, *arguments: str
    ) -> None:
        self.status_file = directory / f"{name}.json"
        self._command = [
            sys.executable,
            "-m",
            "ringlight.extensions.optinc.emulated",
            "--name",
            name,
        ]
        self._command += ["--status", str(self.status_file), *arguments]
        self._namespace = namespace
        self.process = self._start()

    def _start(self) -> Process:
        self.status_file.unlink(missing_ok=True)
        with open(os.devnull, "wb") as nowhere:
            process = started(self._command, self._namespace, nowhere)
        deadline = time.monotonic() + 60
        while not self.status_file.exists():
            assert process.poll() is None, f"{self._command} ended"
            assert time.monotonic() < deadline
            time.sleep(0.01)
        return process

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.status_file.read_text())
        return found

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(10)

    def restart(self) -> None:
        """Killed and started again at the same address."""
        host, port = self.status()["listen"]
        self._command[self._command.index("--listen") + 1] = f"{host}:{port}"
        self.kill()
        self.process = self._start()

    def stop(self) -> dict[str, Any]:
        """Its last status."""
        self.process.send_signal(signal.SIGCONT)
        self.process.terminate()
        assert self.process.wait(10) == 0
        return self.status()

    def remove(self) -> None:
        self.process.kill()
        self.process.wait(10)


def started(command: Sequence[str], namespace: int | None, output: BinaryIO) -> Process:
    """A process in a namespace, or in this one; its errors are shown with those of this process."""

    def start() -> Process:
        with open(2, "wb", closefd=False) as errors:
            return start_process(
                command, os.environ, output, errors=errors, directory=ROOT
            )

    # A server that forks it may first have to import all.
    return (
        start()
        if namespace is None
        else namespaces.in_namespace(namespace, start, 60.0)
    )


@dataclass(frozen=True)
class Links:
    """A namespace for the averager and one for each server, a veth pair between them.

    Of rank i: ``s{i}`` at the server, 10.7.i.2, ``a{i}`` at the averager, 10.7.i.1.
    """

    averager: int
    servers: tuple[int, ...]

    def address(self, rank: int) -> str:
        return f"10.7.{rank}.1"

    def bytes_of(self, rank: int) -> tuple[int, int]:
        """Bytes that the server's end of a link has sent and received, with Ethernet's headers."""

        def read() -> tuple[int, int]:
            with IPRoute() as here:
                counted = here.get_links(ifname=f"s{rank}")[0].get("stats64")
                return int(counted["tx_bytes"]), int(counted["rx_bytes"])

        return namespaces.in_namespace(self.servers[rank], read)


@contextmanager
def links(ranks: int, rate_bps: float | None) -> Iterator[Links]:
    """``rate_bps``: of each link each way, bits per second; None for as fast as it goes."""
    names = [f"rlav{os.getpid()}-{what}" for what in ("a", *range(ranks))]
    with ExitStack() as stack:
        ends = []
        for name in names:
            ends.append(namespaces.create_namespace(name))
            stack.callback(namespaces.delete_namespace, name)
            stack.callback(os.close, ends[-1])
            namespaces.in_namespace(ends[-1], namespaces.configure_namespace)
        found = Links(ends[0], tuple(ends[1:]))
        for rank, server in enumerate(found.servers):

            def connect(rank: int = rank, server: int = server) -> None:
                with IPRoute() as here:
                    netlink.create_veth(
                        here, f"a{rank}", f"s{rank}", peer_namespace=server
                    )

            def set_up(name: str, address: str) -> Callable[[], None]:
                def work() -> None:
                    with IPRoute() as here:
                        index = netlink.set_up(here, name)
                        addressing.address(here, index, address, 24, rto_min_s=None)
                        if rate_bps is not None:
                            shaping.shape(here, index, rate_bps, QUEUE_S)

                return work

            namespaces.in_namespace(found.averager, connect)
            namespaces.in_namespace(
                found.averager, set_up(f"a{rank}", found.address(rank))
            )
            namespaces.in_namespace(server, set_up(f"s{rank}", f"10.7.{rank}.2"))
        yield found


class Servers:
    """The processes of all servers."""

    def __init__(self, plans: Sequence[Plan], namespaces: Sequence[int] | None) -> None:
        program = (
            sys.executable,
            "-m",
            "tests.extensions.optinc.integration.averager_rig",
        )
        self._files = ExitStack()
        enter = self._files.enter_context
        self._said = [enter(tempfile.TemporaryFile()) for _ in plans]  # noqa: SIM115
        self.processes = [
            started(
                [*program, json.dumps(dataclasses.asdict(plan))],
                None if namespaces is None else namespaces[rank],
                self._said[rank],
            )
            for rank, plan in enumerate(plans)
        ]

    def answers(
        self, timeout_s: float = 120.0, but: int | None = None
    ) -> list[dict[str, Any]]:
        """What all servers ``but`` one have said."""
        said = []
        for rank, process in enumerate(self.processes):
            if rank != but:
                code = process.wait(timeout_s)
                assert code == 0, f"rank {rank} ended with {code}"
                self._said[rank].seek(0)
                said.append(json.load(self._said[rank]))
        return said

    def remove(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait(10)
        self._files.close()


@contextmanager
def hub_of(directory: Path, ranks: int) -> Iterator[Hub]:
    hub = Hub(directory / "hub", ranks)
    try:
        yield hub
    finally:
        hub.close()
        hub.path.unlink()


@contextmanager
def serving(
    plans: Sequence[Plan], namespaces: Sequence[int] | None = None
) -> Iterator[Servers]:
    servers = Servers(plans, namespaces)
    try:
        yield servers
    finally:
        servers.remove()


@contextmanager
def averaging(
    directory: Path, name: str, namespace: int | None, *arguments: str
) -> Iterator[Averager]:
    averager = Averager(directory, name, namespace, *arguments)
    try:
        yield averager
    finally:
        averager.remove()


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    given |= {
        "sizes": tuple(given["sizes"]),
        "bad": given["bad"] and tuple(given["bad"]),
    }
    sys.stdout.write(json.dumps(serve(Plan(**given))) + "\n")
