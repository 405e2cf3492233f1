"""Random operations on light by several clients at once, with everything killed, frozen and broken meanwhile.

A round is up to four operations that begin together, each by a client of its own, beside at most one mishap.
Their answers go to the model (`tests/light_model.py`) in one place. After some rounds all faults end, and the
controller's view, each switch's own answer over its own protocol and its own REST, and the light paths in the
kernel must be what the model allows.

The seed decides what is asked and broken, and when. How the processes interleave is the machine's.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

import httpx

from ringlight.controller.optical.errors import OpticalError
from tests.light_model import (
    Carried,
    Change,
    Doubt,
    Mode,
    Outcome,
    Pair,
    Pairs,
    SwitchPlan,
    Wish,
    World,
    after_all,
    at_rest,
    carried_out,
    doubt_of,
    shown,
    touched,
    written,
)
from tests.light_rig import SIZE, SWITCHES, LightRig

CLIENTS = 4
MODES: tuple[Mode, ...] = ("update", "update", "safe", "replace")
#: Most rounds from one rest to the next.
ROUNDS = 14
#: Longest until all is as it should be once nothing is broken any more, seconds.
REST_S = 30.0
#: Faults of the emulated switch, with seconds where the usual ones would only take time.
FAULTS: Mapping[str, float | None] = {
    **dict.fromkeys(
        (
            "deny",
            "half",
            "lose-reply",
            "drop",
            "never-tunes",
            "ghost",
            "garbage",
            "truncate",
        )
    ),
    **dict.fromkeys(("foreign-writer", "autonomous", "port-failed")),
    "slow": 0.05,
    "vanish": 0.1,
    "slow-drip": 0.0001,
    "late": 0.05,
}
#: What may go wrong in a round, and how often of a hundred.
_MISHAPS: Mapping[str, int] = {
    "none": 78,
    "fault": 11,
    "freeze controller": 3,
    "freeze switch": 3,
    "kill switch": 2,
    "kill controller": 1,
    "kill controller in a write": 2,
}
_OUTCOMES: Mapping[int, Outcome] = {
    200: "done",
    409: "conflict",
    422: "invalid",
    503: "away",
}
_NOTHING: Pairs = frozenset()


@dataclass(frozen=True)
class Call:
    """A change of light as a call of the controller's REST."""

    change: Change
    method: str
    path: str
    body: Mapping[str, Any] | None

    def __str__(self) -> str:
        return f"{self.method} {self.path} {'' if self.body is None else self.body}"


@dataclass(frozen=True)
class Hand:
    """A write to a switch over its own protocol, past the controller."""

    name: str
    wish: Wish

    def __str__(self) -> str:
        wish, driver = self.wish, SWITCHES[self.name]
        deleted = f", nothing at {wish.delete}" if wish.delete else ""
        return f"by hand on {self.name} ({driver}): {shown(wish.pairs)} {wish.mode}{deleted}"


@dataclass
class Report:
    """What a walk came to. ``divergences``: where model and switches differ, each with what led there."""

    operations: int = 0
    rests: int = 0
    answers: Counter[str] = field(default_factory=Counter)
    mishaps: Counter[str] = field(default_factory=Counter)
    divergences: list[str] = field(default_factory=list)


class Draw:
    """Draws operations. Pure but for its dice."""

    def __init__(self, dice: random.Random) -> None:
        self.dice = dice

    def pairs(self, most: int) -> tuple[Pair, ...]:
        count = self.dice.randint(1, most)
        inputs = self.dice.sample(range(1, SIZE + 1), count)
        outputs = self.dice.sample(range(SIZE + 1, 2 * SIZE + 1), count)
        return tuple(zip(inputs, outputs, strict=True))

    def wish(self, *, delete: bool) -> Wish:
        pairs = self.pairs(4) if self.dice.random() < 0.9 else ()
        mode = self.dice.choice(MODES)
        free = [
            port for port in range(1, SIZE + 1) if port not in {a for a, _ in pairs}
        ]
        deleted = (
            self.dice.sample(free, self.dice.randint(0, 2))
            if delete and mode == "update"
            else ()
        )
        return Wish(pairs, mode, tuple(deleted))

    def operation(self) -> Call | Hand:
        kinds: Sequence[tuple[int, Callable[[], Call | Hand]]] = (
            (24, self.put_one),
            (14, self.delete_one),
            (20, self.put_set),
            (20, self.optical_change),
            (4, self.circuits),
            (5, self.impossible),
            (13, self.by_hand),
        )
        return self.dice.choices(
            [kind for _, kind in kinds], [weight for weight, _ in kinds]
        )[0]()

    def put_one(self) -> Call:
        ((ingress, egress),) = self.pairs(1)
        name, mode, dry = self._name(), self.dice.choice(MODES), self._dry()
        change = Change({name: Wish(((ingress, egress),), mode)}, dry)
        body = {"egress": egress, "mode": mode, "dry_run": dry}
        return Call(
            change, "PUT", f"/v1/optical-switches/{name}/cross-connects/{ingress}", body
        )

    def delete_one(self) -> Call:
        name, ingress, dry = self._name(), self.dice.randint(1, SIZE), self._dry()
        change = Change({name: Wish(delete=(ingress,))}, dry)
        query = "?dry_run=true" if dry else ""
        return Call(
            change,
            "DELETE",
            f"/v1/optical-switches/{name}/cross-connects/{ingress}{query}",
            None,
        )

    def put_set(self) -> Call:
        name, wish, dry = self._name(), self.wish(delete=False), self._dry()
        body = {
            "mode": wish.mode,
            "cross_connects": _entries(wish.pairs),
            "dry_run": dry,
        }
        return Call(
            Change({name: wish}, dry),
            "PUT",
            f"/v1/optical-switches/{name}/cross-connects",
            body,
        )

    def optical_change(self) -> Call:
        names = self.dice.sample(sorted(SWITCHES), self.dice.randint(1, 4))
        return self._over({name: self.wish(delete=True) for name in names}, self._dry())

    def circuits(self) -> Call:
        circuits, dry = [], self._dry()
        wishes = {}
        for index, name in enumerate(SWITCHES):
            near, far = self.dice.sample(range(4), 2)
            ends = [
                f"g{2 * index}",
                f"g{2 * index + 1}",
                f"tor0:{2 * index + 1}",
                f"tor0:{2 * index + 2}",
            ]
            has_light = self.dice.random() < 0.5
            if has_light:
                circuits.append([ends[near], ends[far]])
            pairs = (
                ((near + 1, SIZE + far + 1), (far + 1, SIZE + near + 1))
                if has_light
                else ()
            )
            wishes[name] = Wish(pairs, "replace")
        return Call(
            Change(wishes, dry),
            "PUT",
            "/v1/circuits",
            {"circuits": circuits, "dry_run": dry},
        )

    def impossible(self) -> Call:
        """What no switch has: a port beyond the last, an egress as ingress, one egress for two."""
        pairs = self.dice.choice(
            [
                ((1, 2 * SIZE + 1),),
                ((SIZE + 1, SIZE + 2),),
                ((1, SIZE + 3), (2, SIZE + 3)),
            ]
        )
        whole = self.wish(delete=False)
        first, second = self.dice.sample(sorted(SWITCHES), 2)
        call = self._over({first: whole, second: Wish(pairs)}, dry=False)
        return replace(call, change=replace(call.change, possible=False))

    def by_hand(self) -> Hand:
        if self.dice.random() < 0.4:
            return Hand(self._name(), Wish(delete=(self.dice.randint(1, SIZE),)))
        return Hand(self._name(), Wish(self.pairs(2)))

    def _over(self, wishes: Mapping[str, Wish], dry: bool) -> Call:
        targets = {
            name: {
                "mode": w.mode,
                "cross_connects": _entries(w.pairs),
                "delete": list(w.delete),
            }
            for name, w in wishes.items()
        }
        body = {"optical_switches": targets, "dry_run": dry}
        return Call(Change(wishes, dry), "POST", "/v1/optical-changes", body)

    def _name(self) -> str:
        return self.dice.choice(sorted(SWITCHES))

    def _dry(self) -> bool:
        return self.dice.random() < 0.1


class Walk:
    """One rig, one model, one recorder."""

    def __init__(self, rig: LightRig, seed: int) -> None:
        self._rig = rig
        self._dice = random.Random(seed)
        self._draw = Draw(self._dice)
        self._clients = [rig.client() for _ in range(CLIENTS)]
        self._pool = ThreadPoolExecutor(CLIENTS + 1)
        self._recording = threading.Lock()
        self._began = time.monotonic()
        self._lines: list[str] = []
        self._worlds: list[World] = [self._read_all()]
        self._doubts: dict[str, Doubt] = {}
        self.report = Report()

    def run(self, operations: int) -> Report:
        """Run so many operations, or until the first divergence."""
        while self.report.operations < operations and not self.report.divergences:
            steps = [self._round] * self._dice.randint(ROUNDS // 2, ROUNDS)
            for step in (*steps, self._rest):
                if not self.report.divergences:
                    step()
        return self.report

    def close(self) -> None:
        self._pool.shutdown()
        for client in self._clients:
            client.close()

    # The recorder

    def _record(self, text: str) -> None:
        with self._recording:
            self._lines.append(f"{time.monotonic() - self._began:9.3f} {text}")

    def _diverged(self, text: str) -> None:
        self.report.divergences.append("\n".join([text, *self._lines]))

    # A round

    def _round(self) -> None:
        count = self._dice.choice((1, 1, 2, 3, CLIENTS))
        operations = [self._draw.operation() for _ in range(count)]
        calls = [step for step in operations if isinstance(step, Call)]
        hands = [step for step in operations if isinstance(step, Hand)]
        mishap = self._mishap(calls)
        for hand in hands:
            self._doubt(hand.name)
        futures = [
            self._pool.submit(self._call, client, step)
            if isinstance(step, Call)
            else self._pool.submit(self._write, step)
            for client, step in zip(self._clients, operations, strict=False)
        ]
        beside = self._pool.submit(mishap)
        results = [future.result() for future in futures]
        beside.result()
        assert self._rig.controller is not None
        if self._rig.controller.poll() is not None:
            self._rig.start_controller()
            self._record("the controller is there again")
        changes = [result for result in results if isinstance(result, Change)]
        self._learn(
            changes,
            [
                (hand, bool(sure))
                for hand, sure in zip(hands, _hands(results), strict=True)
            ],
            calls,
        )
        self.report.operations += count

    def _learn(
        self, changes: list[Change], hands: list[tuple[Hand, bool]], calls: list[Call]
    ) -> None:
        """Hold a round's answers against the model."""
        calm = frozenset(SWITCHES.keys() - self._doubts.keys())
        worlds = after_all(self._worlds, changes, calm)
        if not worlds:
            answers = "\n".join(
                f"    {call}: {change.outcome}"
                for call, change in zip(calls, changes, strict=True)
            )
            self._diverged(
                f"no order of a round's changes explains their answers:\n{answers}\n{self._thought(calls)}"
            )
            return
        before, self._worlds = self._worlds, worlds
        for change in changes:
            for name in change.wishes.keys() & self._doubts.keys():
                if not change.dry_run and change.outcome not in (
                    "conflict",
                    "invalid",
                    "away",
                    "unsent",
                ):
                    self._doubts[name] = touched(
                        self._doubts[name], change.wishes[name]
                    )
        touching = {name for change in changes for name in change.wishes}
        for hand, sure in hands:
            alone = (
                hand.name not in touching
                and sum(other.name == hand.name for other, _ in hands) == 1
            )
            sure = sure and alone and hand.name not in self._broken
            doubt = self._doubts[hand.name]
            self._doubts[hand.name] = written(
                doubt, [*before, *worlds], hand.name, hand.wish, surely=sure
            )

    def _thought(self, calls: Sequence[Call]) -> str:
        names = sorted({name for call in calls for name in call.change.wishes})
        return "\n".join(
            f"    {name}{', not calm' if name in self._doubts else ''}:"
            f" wanted {shown(world[name].intent)}, stands {shown(world[name].stands)}"
            for world in self._worlds
            for name in names
        )

    def _call(self, client: httpx.Client, call: Call) -> Change:
        """Make a call; the change with what became of it."""
        self._record(f"asked    {call}")
        status, detail, outcome = 0, "", None
        plans: dict[str, SwitchPlan] = {}
        try:
            answer = client.request(call.method, call.path, json=call.body)
            status, document = answer.status_code, answer.json()
            outcome = _OUTCOMES.get(status)
            if status == 502:
                outcome = "undone" if document["undone"] else "done"
            if status in (200, 502):
                parts = document.get("optical_switches") or {
                    next(iter(call.change.wishes)): document
                }
                plans = {name: _plan(part["plan"]) for name, part in parts.items()}
            detail = document.get("detail", "") if status != 200 else ""
        except httpx.ConnectError:
            outcome = "unsent"
        except httpx.TransportError as error:
            outcome, detail = "unknown", repr(error)
        self._record(f"answered {call}: {status or outcome} {detail}")
        with self._recording:
            self.report.answers[f"{call.method} {status or outcome}"] += 1
        if outcome is None:
            self._diverged(f"an answer that no operation may have: {status} {detail}")
            outcome = "unknown"
        if outcome in ("unknown", "unsent") and not self._killed:
            self._diverged(
                f"no answer from a controller that nobody had killed: {detail or outcome}"
            )
        return replace(call.change, outcome=outcome, plans=plans)

    def _write(self, hand: Hand) -> bool:
        self._record(f"asked    {hand}")
        sure = self._rig.switches[hand.name].write(hand.wish)
        self._record(f"answered {hand}: {'done' if sure else 'unknown'}")
        with self._recording:
            self.report.answers[f"by hand {'done' if sure else 'unknown'}"] += 1
        return sure

    # Mishaps

    #: Whether the controller has been killed since it was last at rest, and switches that had a mishap.
    _killed = False
    _broken: frozenset[str] = frozenset()

    def _doubt(self, name: str) -> None:
        if name not in self._doubts:
            self._doubts[name] = doubt_of(self._worlds, name)

    def _mishap(self, calls: Sequence[Call]) -> Callable[[], None]:
        """Draw what goes wrong in a round: it is prepared now and happens beside the operations."""
        kind = self._dice.choices([*_MISHAPS], [*_MISHAPS.values()])[0]
        asked = sorted({name for call in calls for name in call.change.wishes})
        name, after_s = self._dice.choice(sorted(SWITCHES)), self._dice.uniform(0, 0.03)
        seconds = self._dice.uniform(0.1, 0.6)
        if kind == "none":
            return lambda: None
        self.report.mishaps[kind] += 1
        if kind == "fault":
            self._break([name])
            self._fault(name)
            return lambda: None
        if kind.startswith("kill controller"):
            self._killed = True
            self._break(SWITCHES)
            if kind == "kill controller in a write" and asked:
                # The switch does it, and the controller waits for its word.
                self._inject(
                    self._dice.choice(asked),
                    {"kind": "lose-reply", "seconds": 0.5, "count": 1},
                )
                after_s += 0.1
            return lambda: self._happen(kind, after_s, self._rig.kill_controller)
        if kind == "freeze controller":
            return lambda: self._happen(
                kind, after_s, lambda: self._rig.freeze("controller", seconds)
            )
        self._break([name])
        if kind == "freeze switch":
            return lambda: self._happen(
                f"{kind} {name}", after_s, lambda: self._rig.freeze(name, seconds)
            )
        return lambda: self._happen(
            f"{kind} {name}", after_s, lambda: self._rig.kill_switch(name)
        )

    def _happen(self, what: str, after_s: float, do: Callable[[], None]) -> None:
        time.sleep(after_s)
        self._record(what)
        do()
        self._record(f"over: {what}")

    def _break(self, names: Sequence[str] | Mapping[str, str]) -> None:
        for name in names:
            self._doubt(name)
        self._broken |= frozenset(names)

    def _fault(self, name: str) -> None:
        """Inject a fault of a random kind that acts once or twice, into one emulated switch."""
        kinds = [
            kind for kind in FAULTS if kind != "autonomous" or SWITCHES[name] != "scpi"
        ]
        kind = self._dice.choice(kinds)
        body: dict[str, Any] = {"kind": kind, "seed": self._dice.randrange(1 << 30)}
        if kind == "port-failed":
            body["port"] = self._dice.randint(1, 2 * SIZE)
        else:
            body["count"] = self._dice.randint(1, 2)
        if FAULTS[kind] is not None:
            body["seconds"] = FAULTS[kind]
        if kind == "foreign-writer":
            ((ingress, egress),) = self._draw.pairs(1)
            body |= {"ingress": ingress, "egress": egress}
            wish = Wish(((ingress, egress),))
            self._doubts[name] = written(
                self._doubts[name], self._worlds, name, wish, surely=False
            )
        self._inject(name, body)

    def _inject(self, name: str, body: Mapping[str, Any]) -> None:
        self.report.mishaps[f"fault {body['kind']}"] += 1
        answer = self._rig.switches[name].rest.post("/v1/faults", json=body)
        self._record(
            f"fault on {name} ({SWITCHES[name]}): {body}: {answer.status_code}"
        )
        assert answer.status_code == 201, answer.text

    # At rest

    def _rest(self) -> None:
        """Nothing is broken any more: until all is as the model allows, or for `REST_S`."""
        for switch in self._rig.switches.values():
            switch.rest.delete("/v1/faults").raise_for_status()
        # Otherwise the reconciler does it by itself, when it thinks that it is time.
        by_hand = self._dice.random() < 0.7
        deadline, asked_at = time.monotonic() + REST_S, 0.0
        while True:
            intents, stands, complaints = self._observe()
            complaints += at_rest(self._worlds, self._doubts, intents, stands)
            if not complaints:
                break
            if time.monotonic() > deadline:
                self._diverged("at rest: " + "\n".join(complaints))
                return
            if by_hand and time.monotonic() > asked_at + 0.3:
                asked_at = time.monotonic()
                for name in {text.partition(":")[0] for text in complaints}:
                    self._rig.api.post(
                        f"/v1/optical-switches/{name}/settle", json={"how": "mend"}
                    )
            time.sleep(0.05)
        self._worlds = [
            {name: Carried(intents[name], stands[name]) for name in SWITCHES}
        ]
        self._doubts, self._broken, self._killed = {}, frozenset(), False
        self.report.rests += 1
        self._lines.clear()
        self._record(
            "at rest: "
            + "; ".join(f"{n}: {shown(c.intent)}" for n, c in self._worlds[0].items())
        )
        if "Traceback" in (log := self._rig.log()):
            self._diverged(
                "the controller's log: " + log[log.index("Traceback") :][:3000]
            )
        elif self._dice.random() < 0.5:
            self._regroup()

    def _observe(self) -> tuple[dict[str, Pairs], dict[str, Pairs], list[str]]:
        """What the controller wants, what stands, and where those who say what stands do not agree."""
        intents, stands, complaints = {}, {}, []
        for name, switch in self._rig.switches.items():
            views: dict[str, Pairs] = {}
            try:
                views = switch.circuits()
                views[f"own protocol {SWITCHES[name]}"] = switch.reported()
                views["controller"] = _pairs(
                    self._get(f"/v1/optical-switches/{name}/cross-connects")
                )
            except (OpticalError, httpx.HTTPError) as error:
                complaints.append(f"{name}: cannot be read: {error}")
            if len(set(views.values())) > 1:
                complaints.append(
                    f"{name}: "
                    + "; ".join(f"{who}: {shown(what)}" for who, what in views.items())
                )
            stands[name] = next(iter(views.values()), _NOTHING)
            document = self._get(f"/v1/optical-switches/{name}/intent")
            intents[name] = _pairs(document["cross_connects"])
            lacking = [
                key for key in ("missing", "broken", "left") if document["drift"][key]
            ]
            complaints += [
                f"{name}: drift: {key} {document['drift'][key]}" for key in lacking
            ]
        return intents, stands, complaints

    def _get(self, path: str) -> Any:
        answer = self._rig.api.get(path)
        answer.raise_for_status()
        return answer.json()

    def _regroup(self) -> None:
        """Regroup, with nothing beside it: what it plans, carried out on what stands, is then wanted."""
        dry = self._dice.random() < 0.3
        answer = self._rig.api.post("/v1/regroup", json={"dry_run": dry})
        self._record(
            f"POST /v1/regroup, dry_run {dry}: {answer.status_code} {answer.text[:300]}"
        )
        self.report.operations += 1
        self.report.answers[f"POST regroup {answer.status_code}"] += 1
        if answer.status_code != 200:
            if answer.status_code not in (409, 422):
                self._diverged(f"a regroup at rest was answered {answer.status_code}")
            return
        entry, deadline = answer.json(), time.monotonic() + REST_S
        while entry["state"] == "APPLYING" and time.monotonic() < deadline:
            time.sleep(0.01)
            entry = self._get(f"/v1/regroup/{entry['id']}")
        if entry["state"] != ("PLANNED" if dry else "DONE"):
            self._diverged(
                f"a regroup at rest ended {entry['state']}: {entry['error']}"
            )
        if not dry:
            (world,) = self._worlds
            wishes = {}
            for name, plan in entry["plan"]["cross_connects"].items():
                if plan["remove"] or plan["add"]:
                    becomes = world[name].stands - _pairs(plan["remove"]) | _pairs(
                        plan["add"]
                    )
                    wishes[name] = Wish(tuple(sorted(becomes)), "replace")
            self._worlds = [carried_out(world, Change(wishes))]

    def _read_all(self) -> World:
        """The first world: what the fabric's own circuits make of it."""
        intents, stands, complaints = self._observe()
        assert not complaints, complaints
        return {name: Carried(intents[name], stands[name]) for name in SWITCHES}


def _hands(results: Sequence[Change | bool]) -> list[bool]:
    return [result for result in results if isinstance(result, bool)]


def _entries(pairs: Sequence[Pair]) -> list[dict[str, int]]:
    return [{"ingress": a, "egress": b} for a, b in pairs]


def _pairs(entries: Sequence[Mapping[str, Any]]) -> Pairs:
    return frozenset((entry["ingress"], entry["egress"]) for entry in entries)


def _plan(document: Mapping[str, Any]) -> SwitchPlan:
    return SwitchPlan(*(_pairs(document[key]) for key in ("keep", "remove", "add")))
