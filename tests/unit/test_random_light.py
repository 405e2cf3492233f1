"""The walk that holds light against its model, on a controller and switches that are only sets in memory.

A right controller passes; each wrong one is found.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest

from tests.light_model import Pairs, Wish, after, clashing, plan_of
from tests.light_rig import SIZE, SWITCHES, LightRig
from tests.random_light import Report, Walk

NONE: Pairs = frozenset()


class Fake:
    """A rig of one process. ``becomes``: what a wish makes of a switch."""

    def __init__(self, becomes: Callable[[Pairs, Wish], Pairs] = after) -> None:
        self._becomes = becomes
        self._lock = threading.Lock()
        self.intents: dict[str, Pairs] = dict.fromkeys(SWITCHES, NONE)
        self.stands: dict[str, Pairs] = dict.fromkeys(SWITCHES, NONE)
        self.switches = {name: self._switch(name) for name in SWITCHES}
        self.controller = SimpleNamespace(poll=lambda: None)
        self.api = self.client()
        self.forgets_at_a_kill = False

    def client(self) -> httpx.Client:
        return httpx.Client(
            transport=httpx.MockTransport(self._answer), base_url="http://controller"
        )

    def kill_controller(self) -> None:
        with self._lock:
            if self.forgets_at_a_kill:
                self.intents = dict.fromkeys(SWITCHES, NONE)

    def kill_switch(self, name: str) -> None:
        """Nothing is lost."""

    def freeze(self, who: str, seconds: float) -> None:
        """Nothing takes any time."""

    def log(self) -> str:
        return ""

    def _switch(self, name: str) -> Any:
        def write(wish: Wish) -> bool:
            with self._lock:
                # What should be lit is mended at once.
                stands = after(self.stands[name], wish)
                self.stands[name] = (
                    stands - clashing(stands, self.intents[name]) | self.intents[name]
                )
            return True

        def circuits() -> Mapping[str, Pairs]:
            return {"kernel": self.stands[name]}

        faults = httpx.MockTransport(
            lambda request: httpx.Response(201 if request.method == "POST" else 200)
        )
        rest = httpx.Client(transport=faults, base_url="http://switch")
        return SimpleNamespace(
            write=write,
            circuits=circuits,
            reported=lambda: self.stands[name],
            rest=rest,
        )

    def _answer(self, request: httpx.Request) -> httpx.Response:
        with self._lock:
            return self._do(request)

    def _do(self, request: httpx.Request) -> httpx.Response:
        body = json.loads(request.content or b"{}")
        path = request.url.path
        named = re.fullmatch(r"/v1/optical-switches/(\w+)/([a-z-]+)(?:/(\d+))?", path)
        if named and request.method == "GET":
            if named[2] == "intent":
                drift: dict[str, list[Any]] = {"missing": [], "broken": [], "left": []}
                entries = _entries(self.intents[named[1]])
                return httpx.Response(
                    200, json={"cross_connects": entries, "drift": drift}
                )
            return httpx.Response(200, json=_entries(self.stands[named[1]]))
        if path == "/v1/regroup":
            return httpx.Response(422, json={"detail": "nothing is regrouped here"})
        if path.endswith("/settle"):
            return httpx.Response(200, json={})
        wishes = _wishes(request, named, body)
        dry = body.get("dry_run", False) or "dry_run=true" in str(request.url)
        for name, wish in wishes.items():
            egresses = [b for _, b in wish.pairs]
            if any(a > SIZE or not SIZE < b <= 2 * SIZE for a, b in wish.pairs) or len(
                set(egresses)
            ) < len(egresses):
                return httpx.Response(422, json={"detail": "impossible"})
            stands = frozenset(
                pair for pair in self.stands[name] if pair[0] not in wish.delete
            )
            if wish.mode == "safe" and clashing(stands, wish.pairs):
                return httpx.Response(409, json={"detail": "busy"})
        plans = {
            name: plan_of(self.stands[name], wish) for name, wish in wishes.items()
        }
        for name, wish in {} if dry else wishes.items():
            self.intents[name] = self._becomes(self.intents[name], wish)
            self.stands[name] = self._becomes(self.stands[name], wish)
        parts = {
            name: {"plan": {key: _entries(group) for key, group in vars(plan).items()}}
            for name, plan in plans.items()
        }
        return httpx.Response(
            200, json={"optical_switches": parts} if named is None else parts[named[1]]
        )


def _wishes(
    request: httpx.Request, named: re.Match[str] | None, body: Any
) -> dict[str, Wish]:
    if named is None:
        if request.url.path == "/v1/circuits":
            wishes = {name: Wish((), "replace") for name in SWITCHES}
            for near, far in body["circuits"]:
                (name, a), (_, b) = _place(near), _place(far)
                pairs = ((a, SIZE + b), (b, SIZE + a))
                wishes[name] = Wish(pairs, "replace")
            return wishes
        return {
            name: _wish(target) for name, target in body["optical_switches"].items()
        }
    if request.method == "DELETE":
        return {named[1]: Wish(delete=(int(named[3]),))}
    if named[3]:
        return {named[1]: Wish(((int(named[3]), body["egress"]),), body["mode"])}
    return {named[1]: _wish(body)}


def _place(end: str) -> tuple[str, int]:
    """The switch and the faceplate of a GPU or a port of the packet switch."""
    if end.startswith("g"):
        return f"ocs{int(end[1:]) // 2}", int(end[1:]) % 2 + 1
    number = int(end.removeprefix("tor0:")) - 1
    return f"ocs{number // 2}", number % 2 + 3


def _wish(target: Any) -> Wish:
    pairs = tuple(
        (entry["ingress"], entry["egress"]) for entry in target["cross_connects"]
    )
    return Wish(pairs, target["mode"], tuple(target.get("delete", ())))


def _entries(pairs: Pairs) -> list[dict[str, int]]:
    return [{"ingress": a, "egress": b} for a, b in sorted(pairs)]


def walked(fake: Fake, operations: int = 300, seed: int = 1) -> Report:
    walk = Walk(cast(LightRig, fake), seed)
    try:
        return walk.run(operations)
    finally:
        walk.close()


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is wrong at rest stays so."""
    monkeypatch.setattr("tests.random_light.REST_S", 0.1)


def test_a_right_controller_passes() -> None:
    report = walked(Fake())
    assert report.divergences == []
    assert report.operations >= 300
    assert report.answers.keys() >= {
        "PUT 200",
        "POST 409",
        "POST 422",
        "DELETE 200",
        "by hand done",
    }


def _without_deletions(pairs: Pairs, wish: Wish) -> Pairs:
    return after(pairs, Wish(wish.pairs, wish.mode))


def _beside_what_is_in_the_way(pairs: Pairs, wish: Wish) -> Pairs:
    return after(pairs, wish) | clashing(pairs, wish.pairs)


def _without_the_last(pairs: Pairs, wish: Wish) -> Pairs:
    return after(
        pairs,
        Wish(wish.pairs[:-1], wish.mode, wish.delete) if len(wish.pairs) > 3 else wish,
    )


@pytest.mark.parametrize(
    "becomes", [_without_deletions, _beside_what_is_in_the_way, _without_the_last]
)
def test_a_wrong_change_is_found(becomes: Callable[[Pairs, Wish], Pairs]) -> None:
    assert walked(Fake(becomes)).divergences


def test_an_intent_that_a_kill_loses_is_found() -> None:
    fake = Fake()
    fake.forgets_at_a_kill = True
    (text, *_) = walked(fake, 600).divergences
    assert "kill controller" in text


def test_a_seed_asks_the_same_again() -> None:
    first, second = walked(Fake(), 100, seed=5), walked(Fake(), 100, seed=5)
    assert first.mishaps == second.mishaps
    assert first.answers.total() == second.answers.total()
