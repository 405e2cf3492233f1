"""A job of containers: how it is written, where it is refused, and what becomes of its figures."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import ValidationError

from ringlight.containers.image import ROOT
from ringlight.experiments.analysis.carrying import demand_of
from ringlight.experiments.analysis.metrics import Context, rows_of, table
from ringlight.experiments.backends.emulation import backend, run_state
from ringlight.experiments.backends.emulation import lab as emulation
from ringlight.experiments.backends.emulation.backend import EmulationBackend
from ringlight.experiments.backends.emulation.requests import job_request
from ringlight.experiments.backends.simulation.backend import SimulationBackend
from ringlight.experiments.client import ApiError, Unreachable
from ringlight.experiments.language.expand import parse
from ringlight.experiments.language.plan import RunPlan
from ringlight.experiments.language.text import ScenarioError
from ringlight.experiments.record.events import (
    CommandEnded,
    CommandStarted,
    JobState,
    Record,
    Released,
    RunEnded,
    RunStarted,
    WorkerDone,
)
from ringlight.experiments.record.folder import RunFolder
from ringlight.experiments.record.lab_records import LinkBytes
from ringlight.experiments.record.runs import runs_of
from ringlight.extensions.own_containers import guests
from ringlight.extensions.own_containers.guests import (
    CUT,
    Bind,
    ContainerPlan,
    exit_or_signal,
    refusal_of,
    space_below,
)
from ringlight.extensions.own_containers.outputs import outputs
from ringlight.extensions.own_containers.request import Container as RestContainer
from ringlight.extensions.own_containers.section import containers
from tests.unit.test_experiment_report import ONE_JOB, simulated

HEAD = """
name: small
description: Four GPUs.
scale: {time: 2, payload: 400}
"""
SWITCH = """
fabric:
  servers: {s0: {gpus: {g0: t, g1: t, g2: t, g3: t}}}
  packet_switches: {tor0: {ports: 4}}
  links:
    - {ends: [g0, "tor0:1"], rate: 4 Gbit/s}
    - {ends: [g1, "tor0:2"], rate: 4 Gbit/s}
    - {ends: [g2, "tor0:3"], rate: 4 Gbit/s}
    - {ends: [g3, "tor0:4"], rate: 4 Gbit/s}
"""
TREE = "fabric: {fat_tree: {k: 4, gpu: t, rate: 4 Gbit/s}}\n"
PAIR = "jobs: {own: {ranks: [g0, g1], image: ringlight-worker, command: [echo, 1]}}\n"


def plan_of(text: str) -> RunPlan:
    (plan,) = parse(HEAD + text, "small.yaml").plans
    return plan


def refused(text: str) -> str:
    with pytest.raises(ScenarioError) as caught:
        plan_of(text)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_what_a_file_says_of_a_container_is_what_the_controller_is_asked_for(
    tmp_path: Path,
) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "a.py").write_text("")
    text = f"""{HEAD}{SWITCH}
jobs:
  own:
    ranks: [g0, g1]
    image: my/own:1
    command: python3 /app/a.py --name 'two words'
    environment: {{STEPS: 3, NAME: x}}
    mounts: {{/app: code, /data: {{path: {tmp_path}, write: true}}}}
    devices: [/dev/null]
    memory: 1 GB
    deadline: 10 s
    beacon: 5 ms
"""
    experiment = parse(text, str(tmp_path / "own.yaml"))
    (plan,) = experiment.plans
    request = job_request(plan, plan.job("own"))
    assert json.loads(json.dumps(request["container"])) == {
        "image": "my/own:1",
        "command": ["python3", "/app/a.py", "--name", "two words"],
        "environment": {"STEPS": "3", "NAME": "x"},
        "mounts": [
            {"source": f"{tmp_path}/code", "target": "/app", "write": False},
            {"source": f"{tmp_path}", "target": "/data", "write": True},
        ],
        "devices": ["/dev/null"],
        "memory_bytes": 10**9,
        "deadline_s": 20.0,
    }
    assert (request["workload"], request["beacon_interval_s"]) == ("container", 0.01)
    # A run folder gets a copy of what is the experiment's own.
    assert experiment.files == ("code/a.py",)


def test_a_run_folder_gets_neither_what_a_link_points_to_nor_another_mode(
    tmp_path: Path,
) -> None:
    secret, place = tmp_path / "secret", tmp_path / "lab"
    (place / "code" / "part").mkdir(parents=True)
    secret.write_text("of root alone")
    secret.chmod(0o600)
    text = f"{HEAD}{SWITCH}\njobs: {{own: {{ranks: [g0, g1], image: 'my/own:1', mounts: {{/app: PATH}}}}}}\n"

    def parsed(path: str) -> Any:
        return parse(text.replace("PATH", path), str(place / "own.yaml"))

    (place / "code" / "a.sh").write_text("true")
    (place / "code" / "a.sh").chmod(0o750)
    (place / "code" / "part" / "key").write_text("key")
    (place / "code" / "part" / "key").chmod(0o600)
    experiment = parsed("code")
    runs = tmp_path / "runs"
    folder = RunFolder.new(runs, "own", experiment.text, experiment.files, place)
    with folder:
        pass
    modes = {
        name: (folder.path / name).stat().st_mode & 0o777 for name in experiment.files
    }
    assert modes == {"code/a.sh": 0o750, "code/part/key": 0o600}
    for link, target in (
        ("code/link", secret),
        ("code/part/deep", tmp_path),
        ("whole", place / "code"),
    ):
        (place / link).symlink_to(target)
        with pytest.raises(
            ScenarioError,
            match=f"mounts: {place / link} is a link, and a run folder would",
        ):
            parsed("whole" if link == "whole" else "code")
        (place / link).unlink()
    (place / "in").symlink_to(place / "code")
    with pytest.raises(ScenarioError, match=f"mounts: {place / 'in'} is a link"):
        parsed("in/part")


@pytest.mark.parametrize(
    ("key", "said"),
    [
        (
            "workload: {collective: all-reduce, size: 1 MB}",
            "give either workload or image",
        ),
        ("training: {iterations: 2}", "give either training or image"),
        ("slower: {1: 2}", "slower: "),
        ("mounts: {app: code}", "'app' is no absolute path in the container"),
        ("mounts: {/job: code}", "/job: a container has its own there"),
        ("mounts: {//job: code}", "/job: a container has its own there"),
        ("mounts: {/app: ../code}", "neither an absolute path nor below"),
        (
            "mounts: {/app: logs}",
            "a run folder, which gets a copy, has a file of its own",
        ),
        ("devices: [/etc/passwd]", "'/etc/passwd' is no device"),
        ("devices: [/dev/../etc]", "is no device"),
        ("devices: ['/dev/null:/dev/mem']", "'/dev/null:/dev/mem' is no device"),
        ("mounts: {/proc/x: code}", "/proc/x: a container has its own there"),
        ("mounts: ['code:/app']", "mounts: should be a mapping, such as {/app: code}"),
        (
            "environment: {A-B: 1}",
            "environment.A-B: 'A-B' is no name of a variable: letters, digits and _",
        ),
        ("environment: [A=1]", "environment: should be a mapping, such as {STEPS: 3}"),
        (
            "environment: {RANK: 7}",
            "environment.RANK: each rank is told its own by Ringlight",
        ),
        (
            "environment: {RINGLIGHT_JOB: b}",
            "RINGLIGHT_JOB: each rank is told its own by Ringlight",
        ),
        ("memory: 1 MB", "memory: "),
        ("deadline: 0 s", "deadline"),
        ("command: []", "command"),
    ],
)
def test_what_a_container_cannot_have_is_named_by_its_key(key: str, said: str) -> None:
    found = refused(SWITCH + f"jobs: {{own: {{ranks: [g0, g1], image: a, {key}}}}}\n")
    assert "jobs.own" in found
    assert said in found


def test_an_image_is_called_by_a_name() -> None:
    found = refused(SWITCH + "jobs: {own: {ranks: [g0, g1], image: My Image}}\n")
    assert (
        found
        == "small.yaml: jobs.own.image: 'My Image' is no name of an image, such as my-training:1"
    )


@pytest.mark.parametrize(
    "key", ["command: [a]", "mounts: {/a: b}", "devices: [/dev/null]", "deadline: 1 s"]
)
def test_what_belongs_to_an_image_needs_one(key: str) -> None:
    name = key.partition(":")[0]
    assert f"{name}: only a job with an image has it" in refused(
        SWITCH + f"jobs: {{own: {{ranks: [g0, g1], {key}}}}}\n"
    )


def check_refused_where_a_rank_does_not_reach_every_other(
    fabric: str, ranks: str, said: str
) -> None:
    """Check that a job of containers is refused on a fabric, with a sentence."""
    found = refused(fabric + f"jobs: {{own: {{ranks: {ranks}, image: a}}}}\n")
    assert found.startswith("small.yaml: jobs.own.image: ")
    assert said in found


def test_a_fat_tree_takes_one_and_dark_pairs_are_named() -> None:
    assert plan_of(TREE + "jobs: {own: {ranks: all, image: a}}\n").job("own").gpus == 16
    islands = SWITCH.replace(
        "{tor0: {ports: 4}}", "{tor0: {ports: 4}, tor1: {ports: 4}}"
    ).replace('[g3, "tor0:4"]', '[g3, "tor1:1"]')
    assert "fabric.links" in refused(islands + "jobs: {own: {ranks: all, image: a}}\n")


def test_events_of_iterations_are_refused() -> None:
    found = refused(
        SWITCH
        + PAIR
        + "events: [{when: {job: own, iteration: 1}, do: cancel, target: job own}]\n"
    )
    assert "events.1.when.iteration: job own runs containers" in found


def test_who_cannot_run_it_says_why_in_one_line(tmp_path: Path) -> None:
    plan = plan_of(SWITCH + PAIR)
    assert (
        SimulationBackend().refuses(plan)
        == "jobs.own.image: the simulation runs no containers"
    )
    assert EmulationBackend().refuses(plan) is None
    assert "the runtime is namespace" in str(
        EmulationBackend("namespace").refuses(plan)
    )
    gone = tmp_path / "gone"
    missing = PAIR.replace("command", f"mounts: {{/a: {gone}}}, command")
    said = EmulationBackend().refuses(plan_of(SWITCH + missing))
    assert said == f"jobs.own.mounts./a: there is no {gone}"


def test_an_image_that_docker_has_not_is_named_with_what_makes_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(backend, "image_present", lambda _: False)
    plan = plan_of(SWITCH + PAIR.replace("ringlight-worker", "my-mpi"))
    assert EmulationBackend().refuses(plan) == (
        "jobs.own.image: Docker has no image my-mpi here; build it, load it, or make one of Debian packages: "
        "ringlight image NAME PACKAGE…"
    )


def records(code: int | None) -> list[Record]:
    """Records of a run in which rank 1 of two ends with an exit code, or never."""
    run: dict[str, Any] = {"run": "base"}
    job: dict[str, Any] = {"job": "own", **run}
    started = RunStarted(
        t=0.0,
        arm="base",
        point={},
        repeat=1,
        fabric="fabric",
        jobs={"own": ["g0", "g1"]},
        **run,
    )
    ended = [] if code is None else [CommandEnded(t=4.0, rank=1, exit_code=code, **job)]
    return [
        started,
        JobState(t=1.0, state="READY", gpus=["g0", "g1"], **job),
        Released(t=1.0, at=1.5, jobs=["own"], **run),
        CommandStarted(t=1.75, rank=0, **job),
        CommandStarted(t=2.0, rank=1, **job),
        *ended,
        CommandEnded(t=4.5, rank=0, exit_code=0, **job),
        *(
            WorkerDone(t=5.0, rank=rank, wire_bytes={"eth0": [100, 60]}, **job)
            for rank in (0, 1)
        ),
        LinkBytes(t=5.0, links=[{"from": "g0", "to": "tor0:1", "bytes": 100}], **job),
        JobState(t=5.0, state="SUCCEEDED" if code == 0 else "FAILED", **job),
        RunEnded(t=6.0, **run),
    ]


@pytest.mark.parametrize("code", [0, 3, None])
def test_rows_tell_how_commands_ended_and_what_they_sent(code: int | None) -> None:
    (run,) = runs_of(records(code), [plan_of(SWITCH + PAIR)])
    found = {
        (row.subject, row.metric): row.value
        for row in rows_of(Context(run, "measured"))
    }
    assert found["job own", "commands_failed"] == (0 if code == 0 else 1)
    assert found["job own", "start_spread"] == 0.25
    assert found["job own", "nic_sent"] == 200
    assert found["job own", "nic_received"] == 120
    assert found["job own", "regroups_under"] == 0
    assert found["traffic own g0 > tor0:1", "link_bytes"] == 100
    # Figures that only our own workers report are missing.
    assert not {
        "iterations",
        "gpu_utilisation",
        "connections_unchanged",
        "iteration",
    } & {name for _, name in found}
    # From the release to the end of the last command.
    assert found.get(("job own", "jct")) == (3.0 if code == 0 else None)


@pytest.mark.parametrize(
    ("status", "code", "number"),
    [
        (0, 0, None),
        (1, 1, None),
        (128, 128, None),
        (137, None, 9),
        (143, None, 15),
        (255, 255, None),
    ],
)
def test_an_exit_code_is_not_taken_for_a_signal(
    status: int, code: int | None, number: int | None
) -> None:
    assert exit_or_signal(status) == (code, number)


TRAINED = """
jobs: {own: {ranks: [g0, g1], training: {collective: ring}}}
training: {model: resnet50, compute: 1 ms, batch: 8, iterations: 2}
"""


def check_no_figures_of_light(light: str, jobs: str) -> None:
    """Check that a job of guests, or a training, beside light has no figures of it."""
    section = light.removeprefix("fabric: {").strip().removesuffix("}")
    (run,) = runs_of(records(3), [plan_of(SWITCH + f"  {section}\n" + jobs)])
    found = {row.metric for row in rows_of(Context(run, "measured"))}
    assert "link_bytes" in found
    assert not [name for name in found if name.startswith(("light_use", "set_ups_per"))]


class Answers:
    """Stands for the controller's REST API; ``away`` holds what nobody answers the next time."""

    def __init__(self) -> None:
        self.away: set[str] = set()
        ranks = [{"gpu": "g0"}, {"gpu": "g1"}]
        self.found: dict[str, Any] = {
            "/v1/jobs/own": {
                "state": "SUCCEEDED",
                "ranks": ranks,
                "t_ended": 5.0,
                "error": None,
            },
            "/v1/jobs/own/events": {"cursor": 0, "events": []},
            "/v1/jobs/own/output/0": {"stdout": "0", "stderr": ""},
        }

    def get(self, path: str, **_: Any) -> Any:
        if path in self.away:
            self.away.discard(path)
            raise Unreachable("no controller answers")
        if path == "/v1/jobs/own/output/1":
            raise ApiError(503, "the agent is away")
        return self.found[path]


def test_the_end_of_a_container_is_told_though_the_controller_went_away_meanwhile(
    tmp_path: Path,
) -> None:
    plan = plan_of(SWITCH + PAIR)
    processes: Any = SimpleNamespace(
        inventory={"agent": "unix:/none"}, logs=tmp_path, state=tmp_path
    )
    answers: Any = Answers()
    nothing: Any = None
    lab = emulation.EmulatedLab(
        plan.setting, processes, answers, nothing, nothing, nothing
    )
    lab._now = run_state.LabRun(plan, nothing, nothing, nothing, nothing)
    job = run_state.LabJob(plan.job("own"), "own", {}, state="RUNNING", released=True)
    answers.away.add("/v1/jobs/own/output/0")
    with pytest.raises(Unreachable):
        lab._look_at(job)
    lab._look_at(job)
    assert [
        record.state for record in lab._records if isinstance(record, JobState)
    ] == ["SUCCEEDED"]
    said = {path.name: path.read_text() for path in tmp_path.rglob("*.txt")}
    assert said["own-0.stdout.txt"] == "0"
    # What could not be read is no empty output.
    assert "the agent is away" in said["own-1.stderr.txt"]


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"environment": {"RANK": "7"}}, "each rank is told its own by Ringlight"),
        (
            {"environment": {"RINGLIGHT_LAB": "x"}},
            "each rank is told its own by Ringlight",
        ),
        ({"devices": ["/dev/null:/dev/mem"]}, "devices.0"),
        ({"devices": ["/dev/../etc/passwd"]}, "is no device"),
        (
            {"mounts": [{"source": "/srv", "target": "/job"}]},
            "/job: a container has its own there",
        ),
        (
            {"mounts": [{"source": "/srv", "target": "/proc/x"}]},
            "/proc/x: a container has its own there",
        ),
        (
            {"mounts": [{"source": "/srv", "target": "/app/../job"}]},
            "is no absolute path in the container",
        ),
    ],
)
def test_a_call_names_no_more_than_a_file_may(keys: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError) as caught:
        RestContainer.model_validate({"image": "a", **keys})
    error = caught.value.errors()[0]
    assert said in f"{error['msg']} {'.'.join(map(str, error['loc']))}"


def test_what_a_container_is_shown_is_what_was_named(tmp_path: Path) -> None:
    real = tmp_path / "real"
    real.mkdir()
    (tmp_path / "link").symlink_to(real)
    (real / "file").write_text("x")

    def refusal(source: Path, *devices: str) -> str | None:
        return refusal_of(
            ContainerPlan("a", mounts=(Bind(str(source), "/app"),), devices=devices)
        )

    assert refusal(real) is None
    assert refusal(real / "file", "/dev/null") is None
    assert refusal(tmp_path / "link") == (
        f"mounts: {tmp_path / 'link'} is a link, or below one; name {real}, which it leads to"
    )
    assert "is a link, or below one" in str(refusal(tmp_path / "link" / "file"))
    assert refusal(tmp_path / "none") == f"mounts: there is no {tmp_path / 'none'}"
    assert refusal(real, "/dev/no-such") == "devices: there is no device /dev/no-such"


def test_a_job_directory_is_measured_as_it_stands(tmp_path: Path) -> None:
    (tmp_path / "deep" / "er").mkdir(parents=True)
    (tmp_path / "deep" / "er" / "file").write_bytes(b"x" * 100_000)
    # What a link leads to is not its own, and holes take no room.
    (tmp_path / "link").symlink_to("/")
    with (tmp_path / "hole").open("wb") as file:
        file.truncate(1 << 30)
    used = space_below(tmp_path, 1 << 20, 100)
    assert used is not None
    assert 100_000 <= used < 1 << 20
    assert space_below(tmp_path, 90_000, 100) is None
    assert space_below(tmp_path, 1 << 20, 4) is None


class Said:
    """Docker, of what a container has said."""

    def __init__(self, log: Path, said: bytes) -> None:
        self._log, self._said = log, said

    def inspect_container(self, _: str | None) -> dict[str, str]:
        return {"LogPath": str(self._log)}

    def logs(self, _: str | None, *, stdout: bool, stderr: bool) -> bytes:
        return self._said if stdout else b""


def test_output_that_is_cut_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guests, "LOG_BYTES", 10)

    def output(said: bytes) -> dict[str, bytes]:
        more: Any = {
            "name": "a",
            "beside": "b",
            "home": tmp_path,
            "uid": 1,
            "labels": {},
            "environment": {},
        }
        api: Any = Said(tmp_path / "x.log", said)
        return guests.ContainerGuest(api, ContainerPlan("a"), **more).output()

    assert output(b"0123456789") == {"stdout": b"0123456789", "stderr": b""}
    assert output(b"0123456789a") == {"stdout": CUT + b"123456789a", "stderr": b""}
    # Docker has begun a second file, so it may have dropped one.
    (tmp_path / "x.log.1").touch()
    assert output(b"0123") == {"stdout": CUT + b"0123", "stderr": b""}


def test_nobody_knows_what_a_container_sends() -> None:
    assert demand_of(plan_of(SWITCH + PAIR)) is None


def written(folder: Path, name: str, content: bytes) -> None:
    file = folder / "logs/fabric/output/base" / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content)


def test_the_last_lines_of_containers_are_read_and_no_more(tmp_path: Path) -> None:
    written(tmp_path, "pair-10.stdout.txt", b"ten\n")
    written(tmp_path, "pair-2.stderr.txt", b"\x1b[31mred\xff\n")
    written(
        tmp_path,
        "pair-2.stdout.txt",
        b"".join(b"line %d\n" % n for n in range(100_000)),
    )
    written(tmp_path, "pair-3.stdout.txt", b"")
    (tmp_path / "logs/fabric/output/base/pair-4.stdout.txt").symlink_to("/etc/passwd")
    found = outputs(tmp_path)
    assert [(one.rank, one.stream) for one in found] == [
        (2, "stdout"),
        (2, "stderr"),
        (10, "stdout"),
    ]
    assert found[0].lines[-1] == "line 99999"
    assert len(found[0].lines) == 12
    assert found[0].size > 1_000_000
    assert found[0].path == "logs/fabric/output/base/pair-2.stdout.txt"
    assert found[1].lines == [
        "\N{REPLACEMENT CHARACTER}[31mred\N{REPLACEMENT CHARACTER}"
    ]


def test_what_containers_wrote_is_on_the_page_and_is_no_code(tmp_path: Path) -> None:
    view = simulated(ONE_JOB)
    run = view.runs[0].name
    file = tmp_path / "logs/fabric/output" / run / "red-0.stdout.txt"
    file.parent.mkdir(parents=True)
    file.write_text("hello\n<script>alert(1)</script>\n")
    shown = containers(replace(view, folder=tmp_path), lambda *_: "")
    assert "<script" not in shown
    assert "&lt;script&gt;" in shown
    assert f"logs/fabric/output/{run}/red-0.stdout.txt" in shown
    assert "hello" in shown
    assert "What they wrote" not in containers(view, lambda *_: "")


def test_the_page_lists_every_metric() -> None:
    """To bring it up to date, put what ``table()`` gives in place of its table."""
    listed = table("ringlight.extensions.own_containers")
    assert "commands_failed" in listed
    assert f"\n{listed}" in (ROOT / "docs" / "containers.md").read_text()
