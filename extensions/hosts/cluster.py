"""Hosts: machines that build labs, each a Dask worker that offers the resource ``HOST``.

A worker does as root whatever it is ordered to, so Dask's processes must use TLS if another machine can reach
them. Their certificates are those of Dask's own configuration.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from ringlight.controller.web.access import is_local
from ringlight.experiments.cli.common import patience
from ringlight.testbed.lab import LabError

if TYPE_CHECKING:
    from distributed import Client, Worker

Answer = TypeVar("Answer")

#: What a worker offers for each lab that its machine may have at once.
RESOURCE = "HOST"
#: Seconds that a scheduler has to answer.
ANSWER_S = 30.0
#: So long a lab over several hosts looks for another scheduler where its own is gone, seconds.
RETURN_S = 3600.0
_TLS = "give Dask's processes TLS; for a trial: ringlight hosts certificates DIR"


@dataclass(frozen=True)
class Host:
    """``name``: as its worker was named, else the address of its worker; ``address``: the worker's;
    ``labs``: how many labs it may have at once."""

    name: str
    address: str
    labs: int

    @property
    def ip(self) -> str:
        """Return the IP address at which other hosts reach the host."""
        return urlsplit(self.address).hostname or ""


def name_of(given: object, address: str) -> str:
    """Return the name of a host: the name that its worker was given, else the address of the worker."""
    named = str(given)
    return address.partition("://")[2] if "://" in named else named


def open_doors(addresses: Sequence[str]) -> list[str]:
    """Return the addresses of Dask's processes that other machines can reach and that require no
    certificate.
    """
    reachable = []
    for address in addresses:
        parts = urlsplit(address)
        if parts.scheme not in ("tls", "inproc") and not is_local(parts.hostname or ""):
            reachable.append(address)
    return reachable


class Cluster:
    """The hosts of a Dask scheduler. Methods raise LabError, one line naming the host."""

    def __init__(self, client: Client, address: str, hosts: Sequence[Host]) -> None:
        self._client = client
        self.address, self.hosts = address, tuple(hosts)

    def ask(
        self,
        function: Callable[..., Answer],
        *arguments: Any,
        hosts: Sequence[Host] | None = None,
    ) -> dict[str, Answer]:
        """Call a function of ours on each host. Return its answers by name of the host.

        The call needs no place for a lab, and so waits for none. Raises LabError.
        """
        targets = self.hosts if hosts is None else hosts
        try:
            results = self._client.run(
                _in_thread,
                function,
                arguments,
                workers=[host.address for host in targets],
                on_error="return",
            )
        except OSError:
            raise LabError(f"--dask {self.address}: its scheduler is gone") from None
        answers = {}
        for host in targets:
            answer = results.get(host.address, "its worker is gone")
            if isinstance(answer, ImportError | AttributeError):
                raise LabError(
                    f"host {host.name}: it has another Ringlight, or none: {answer}"
                )
            if isinstance(answer, OSError):
                # Of Dask's connections, as ours are LabErrors.
                raise LabError(f"host {host.name}: its worker is gone")
            if isinstance(answer, Exception) or host.address not in results:
                raise LabError(f"host {host.name}: {answer or type(answer).__name__}")
            answers[host.name] = answer
        return answers

    def executor(self, hosts: Sequence[Host] | None = None) -> Executor:
        """Return an executor that runs each call on a host with a free place for a lab (one of ``hosts``, if
        given).
        """
        where = {} if hosts is None else _on(*hosts)
        executor: Executor = self._client.get_executor(
            pure=False, resources={RESOURCE: 1}, **where
        )
        return executor

    def submit(self, function: Callable[..., Any], argument: Any, host: Host) -> Any:
        """Have a host make a call once it has a place for a lab. Return Dask's future.

        The call is made again if the host's worker dies and another one starts.
        """
        return self._client.submit(
            function, argument, pure=False, resources={RESOURCE: 1}, **_on(host)
        )

    def places_left(self) -> dict[str, int]:
        """Return how many more labs each host has a place for now, by name."""
        taken = self._client.processing()
        return {
            host.name: host.labs - len(taken.get(host.address, ()))
            for host in self.hosts
        }

    def leave(self, future: Any) -> None:
        """Let a call whose result is not awaited any more run to its end."""
        from distributed import fire_and_forget

        fire_and_forget(future)

    def present(self) -> dict[str, str]:
        """Return the addresses of the workers that hosts have now, by IP address: none while the scheduler is
        gone.
        """
        if self._client.status != "running":
            return {}
        workers = self._client.scheduler_info(n_workers=-1)["workers"]
        return {urlsplit(where).hostname or "": where for where in workers}


def _on(*hosts: Host) -> dict[str, Any]:
    """Return Dask's arguments for a call on these hosts only.

    Workers are named by IP address, as another worker of the same host has another port.
    """
    return {"workers": [host.ip for host in hosts], "allow_other_workers": False}


@contextmanager
def known_hosts(address: str, hosts: Sequence[Host]) -> Iterator[Cluster]:
    """Yield the same hosts for a process on one of them, which survives the scheduler and finds the next one.

    Raises LabError if no scheduler answers.
    """
    with _client(address, RETURN_S) as client:
        yield Cluster(client, address, hosts)


async def _in_thread(
    function: Callable[..., Answer], arguments: Sequence[Any]
) -> Answer:
    """Call a function without blocking the worker's loop, and return its answer. Raises LabError for any
    OSError.
    """
    # Here, where its loop has it: a caller that only asks whether a host is lost starts sooner without.
    import asyncio

    try:
        return await asyncio.to_thread(function, *arguments)
    except OSError as error:
        raise LabError(str(error)) from None


@contextmanager
def hosts_of(address: str) -> Iterator[Cluster]:
    """Yield the hosts that a scheduler's workers are now.

    Raises LabError if there are none, if no scheduler answers, and if one of Dask's processes can be reached
    from another machine without TLS.
    """
    _refuse_open([address])
    with _client(address, ANSWER_S) as client:
        known = client.scheduler_info()
        workers = known["workers"]
        doors = [
            known["address"],
            *workers,
            *(w["nanny"] for w in workers.values() if w.get("nanny")),
        ]
        _refuse_open(doors)
        hosts = [
            Host(
                name_of(worker["name"], where),
                where,
                int(worker["resources"][RESOURCE]),
            )
            for where, worker in workers.items()
            if worker["resources"].get(RESOURCE, 0) >= 1
        ]
        if not hosts:
            raise LabError(
                f"--dask {address}: none of its {len(workers)} workers is a host for labs; start one with: "
                f"dask worker {address} --resources {RESOURCE}=1 --nthreads 1"
            )
        yield Cluster(client, address, sorted(hosts, key=lambda host: host.name))


def _client(address: str, timeout_s: float) -> Client:
    try:
        from distributed import Client, Security
    except ImportError:
        raise LabError(
            "--dask: Dask is not installed; install it with: pip install 'ringlight[dask]'"
        ) from None
    # If the scheduler goes, the user of the client reports it.
    for name in ("distributed", "distributed.client"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    security = Security()
    # A client that cannot use TLS waits 60 s for its own end.
    if (
        address.startswith("tls://")
        and security.get_connection_args("client")["ssl_context"] is None
    ):
        raise LabError(
            f"--dask {address}: Dask has no certificates here; for a trial: ringlight hosts certificates DIR, "
            "then export DASK_CONFIG=DIR"
        )
    try:
        with patience(f"waiting for the Dask scheduler at {address}"):
            return Client(
                address, timeout=timeout_s, set_as_default=False, security=security
            )
    except (OSError, ValueError, RuntimeError) as error:
        raise LabError(
            f"--dask {address}: it does not answer: {error or type(error).__name__}"
        ) from None


def _refuse_open(addresses: Sequence[str]) -> None:
    for address in open_doors(addresses):
        raise LabError(
            f"--dask: who reaches {address} runs programs as root without showing a certificate; {_TLS}"
        )


class OwnWorker:
    """The worker, and so the host, on which a task is made; ``name``: the host's."""

    def __init__(self) -> None:
        from distributed import get_worker

        self._worker: Worker = get_worker()
        self._key = self._worker.get_current_task()
        self.name = name_of(self._worker.name, self._worker.address)

    def unwanted(self) -> bool:
        """Return whether the task's result is no longer needed: its command was interrupted, or is gone."""
        task = self._worker.state.tasks.get(self._key)
        return not self.ends() and (task is None or task.state == "cancelled")

    def ends(self) -> bool:
        """Return whether the worker ends: it was ordered to, or its scheduler is gone."""
        return self._worker.status.name not in ("init", "running", "paused")

    def reschedule(self) -> Exception:
        """Return the exception to raise so that another worker continues with the task."""
        from distributed import Reschedule

        again: Exception = Reschedule()
        return again
