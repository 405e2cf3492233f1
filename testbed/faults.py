"""Client of a lab's fault service: what to break, and what has become of it.

The service is the testbed's own, on the Unix socket of its server agent; the controller knows nothing of it.
What each fault does is in docs/faults.md.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

State = Literal["asked", "in force", "over", "failed"]
#: Longest wait for one answer, seconds: the service answers at once.
ANSWER_S = 10.0
#: And where an idle host is made for every GPU first.
HOSTS_S = 30.0


class FaultError(RuntimeError):
    """The service refused, or does not answer (then ``status`` is None); one line."""

    def __init__(self, status: int | None, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True)
class FaultReport:
    """One fault. Times in seconds of CLOCK_MONOTONIC, None for what has not happened.

    ``t_done``: the kernel, or the switch, was seen to be so. ``t_back``: everything was seen to work as
    before; a killed worker does not come back. ``back_after_s``: counted from ``t_done``, None until it is
    restored. ``error``: one line with the reason of a failure, then the state is ``failed``.
    """

    id: str
    do: str
    target: str
    state: State
    back_after_s: float | None
    t_asked: float
    t_done: float | None = None
    t_back: float | None = None
    error: str | None = None


class FaultClient:
    """Asks for faults of one lab. Every method raises FaultError; none waits for what it asked for.

    ``agent``: address of the server agent, as the lab's inventory has it (``unix:/path``).
    """

    def __init__(self, agent: str) -> None:
        # Here, as the testbed needs only the reports, and a lab comes up sooner without.
        from ringlight.controller.web.client import http_client

        self.agent = agent
        self._http = http_client(agent, timeout_s=ANSWER_S)

    @classmethod
    def of_inventory(cls, inventory: Path) -> Self:
        """Return the client for the lab with this ``inventory.json``. Raises FaultError."""
        try:
            return cls(json.loads(inventory.read_text(encoding="utf-8"))["agent"])
        except OSError as error:
            raise FaultError(None, f"{inventory}: {error.strerror}") from None
        except (ValueError, KeyError, TypeError):
            raise FaultError(None, f"{inventory}: names no agent") from None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        self._http.close()

    def ask(
        self,
        do: str,
        target: str,
        *,
        back_after_s: float | None = None,
        control: Mapping[str, Any] | None = None,
        **effects: Mapping[str, float],
    ) -> str:
        """``cut``, ``kill``, ``lose``, ``disturb`` or ``restore`` a target (docs/faults.md), or do to a link
        what an extension does. Return the fault's id.

        ``control`` of ``disturb``: every message of the O-NICs' agents arrives ``delay_s`` seconds later. The
        shares ``loss``, ``duplicate`` and ``reorder`` of them, from 0 to 1, are lost, doubled and overtaken.
        ``tuning_s``: tuning time of the laser by GPU, in seconds, if it differs from the fabric's.
        ``effects``: what a link is to do to frames, by the key of the extension's event
        (``fabric.keys.LinkKeys``), times in emulated seconds. Both ``control`` and ``effects`` replace what
        was there before. Raises FaultError.
        """
        body: dict[str, Any] = {"do": do, "target": target}
        if back_after_s is not None:
            body["back_after_s"] = back_after_s
        if control is not None:
            body["control"] = dict(control)
        body |= {key: dict(effect) for key, effect in effects.items()}
        return str(self._call("POST", "/v1/faults", body)["id"])

    def kill(self, target: str, *, back_after_s: float | None = None) -> str:
        """Kill ``switch NAME``, ``agent GPU``, ``worker JOB RANK`` or ``server agent``. Return the fault's
        id.
        """
        return self.ask("kill", target, back_after_s=back_after_s)

    def counters(self) -> dict[str, list[dict[str, Any]]]:
        """Return what the lab's devices have counted since it came up, by the name of a kind of counters."""
        counters: dict[str, list[dict[str, Any]]] = self._call("GET", "/v1/counters")
        return counters

    def restore(self, target: str) -> str:
        """End the fault of this target. Return that fault's id."""
        return self.ask("restore", target)

    def faults(self) -> list[FaultReport]:
        """Return every fault since the lab came up, in the order of the requests."""
        return [
            FaultReport(**entry) for entry in self._call("GET", "/v1/faults")["faults"]
        ]

    def fault(self, fault_id: str) -> FaultReport:
        report = next((fault for fault in self.faults() if fault.id == fault_id), None)
        if report is None:
            raise FaultError(404, f"there is no fault {fault_id}")
        return report

    def light_counters(self) -> dict[str, Any]:
        """Return the kernel's counters of the O-NICs and WSSs since they were made."""
        counters: dict[str, Any] = self._call("GET", "/v1/onics")
        return counters

    def hosts(self, *, fill: bool) -> list[dict[str, Any]]:
        """Return the hosts and workers at the GPUs' NICs. ``fill``: first put an idle host at each NIC that
        has nothing.
        """
        hosts: list[dict[str, Any]] = self._call(
            "POST" if fill else "GET", "/v1/hosts", timeout_s=HOSTS_S
        )
        return hosts

    def run(
        self, route: str, namespace: str | None, words: Sequence[str], timeout_s: float
    ) -> dict[str, Any]:
        """Run a command in a network namespace of another machine of the lab. Return its ``stdout``,
        ``stderr`` and ``code``.

        ``route``: the server agent's for commands there. ``namespace``: None for the machine's own.
        """
        body = {"namespace": namespace, "words": list(words), "timeout_s": timeout_s}
        reply: dict[str, Any] = self._call(
            "POST", route, body, timeout_s=timeout_s + ANSWER_S
        )
        return reply

    def _call(
        self, method: str, path: str, body: Any = None, timeout_s: float = ANSWER_S
    ) -> Any:
        import httpx

        try:
            answer = self._http.request(method, path, json=body, timeout=timeout_s)
        except httpx.HTTPError as error:
            reason = str(error) or type(error).__name__
            raise FaultError(
                None, f"the server agent at {self.agent} does not answer: {reason}"
            ) from None
        try:
            reply = answer.json()
        except ValueError:
            reply = {"detail": answer.text.strip()}
        if answer.is_error:
            raise FaultError(
                answer.status_code, str(reply.get("detail") or answer.reason_phrase)
            )
        return reply
