"""The page over run folders: what it is told, and what Chromium shows of it."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from typer.testing import CliRunner

from ringlight.controller.web.listening import listen
from ringlight.controller.web.serving import HttpServer
from ringlight.experiments.backends.simulation.backend import SimulationBackend
from ringlight.experiments.cli.app import add_commands, app
from ringlight.experiments.record.events import ActionEnded
from ringlight.experiments.report.drawing import JOB_COLOURS, JOB_NAMES
from ringlight.experiments.runner.command import carry_out_experiment, load_checked
from ringlight.extensions.page.api_events import told_of
from ringlight.extensions.page.page_files import PAGE
from ringlight.extensions.page.recorded import RATE_UNIT_BPS, Recorded
from ringlight.extensions.page.serving import address, application
from ringlight.extensions.page.single_file import single_file
from tests.browser import CHROMIUM, Browser, browser
from tests.unit.test_cli import MINI

ROOT = Path(__file__).resolve().parents[3]
VENDOR = {
    "cytoscape.js": "0d7e373a706f0f01d6fb7a6ccf04988c01307cee1c2f9bcc7b068e9f6b431e3f",
    "preact.js": "72284e8e9079c87817145df1110f74e8a2aa040b2fc384922e18dfcb46fc1fd7",
    "uplot.js": "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f",
    "uplot.css": "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
}
chromium = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Simulated run of two arms: fragmented, and regrouped while the jobs train."""
    experiment = load_checked(ROOT / "scenarios" / "disaggregation.yaml")
    arms = ("a-fragmented", "live")
    done, _ = carry_out_experiment(
        experiment, SimulationBackend(), tmp_path_factory.mktemp("runs"), arms=arms
    )
    return done.path


@pytest.fixture(scope="module")
def served(folder: Path) -> Iterator[str]:
    with serving(folder) as url:
        yield url


class serving:
    """The page over folders, for as long as the context lasts."""

    def __init__(self, *folders: Path) -> None:
        self._listener = listen("127.0.0.1", 0)
        self._server = HttpServer(
            application([Recorded(one) for one in folders]), self._listener, end_s=0
        )

    def __enter__(self) -> str:
        self._server.start()
        return address(self._listener)

    def __exit__(self, *_: object) -> None:
        with closing(self._listener):
            self._server.stop(at_once=True)


@pytest.fixture(scope="module")
def tab() -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.skip("Chromium is not installed")
    with browser() as found:
        yield found


def shown(tab: Browser, url: str, width: int = 1280) -> None:
    """Open the page and wait for its first picture."""
    tab.said.clear(), tab.asked.clear()
    tab.screen(width)
    tab.open("about:blank")
    tab.open(url)
    tab.wait(
        "window.ringlight && ringlight.drawings.size > 0 && ringlight.clock.to > 0.2"
    )


def classes(tab: Browser, element: str) -> str:
    found = (
        f"[...ringlight.drawings][0].picture.cy.getElementById({json.dumps(element)})"
    )
    return str(tab.run(f"{found}.classes().join(' ')"))


def seek(tab: Browser, t: float) -> None:
    tab.run(
        f"ringlight.clock.seek({t}), new Promise(go => requestAnimationFrame(() => setTimeout(go, 30)))"
    )


def test_libraries_are_the_pinned_ones() -> None:
    for name, sha256 in VENDOR.items():
        assert (
            hashlib.sha256((PAGE / "vendor" / name).read_bytes()).hexdigest() == sha256
        ), name


def test_modules_of_the_page_are_short() -> None:
    long = {
        path.name: n
        for path in PAGE.glob("*.js")
        if (n := len(path.read_text().splitlines())) > 300
    }
    assert not long


def test_modules_are_fetched_at_once_and_not_one_after_another() -> None:
    ahead = re.findall(
        r'rel="modulepreload" href="([^"]+)"', (PAGE / "index.html").read_text()
    )
    texts = [path.read_text() for path in PAGE.glob("*.js")]
    assert sorted(ahead) == sorted(
        {name for text in texts for name in re.findall(r'"\./([\w./]+\.js)"', text)}
    )


def test_a_run_is_told_as_the_rest_api_tells_a_lab(folder: Path) -> None:
    take = Recorded(folder).take("live")
    (change,) = (event for event in take["events"] if event["event"] == "circuits")
    added = change["changes"]["ocs0"]["add"]
    assert {(xc["ingress"], xc["egress"]) for xc in added} >= {
        (3, 25),
        (4, 23),
        (5, 24),
    }
    assert all(xc["t_dark"] < xc["t_lit"] <= change["t"] for xc in added)
    assert [event["id"] for event in take["events"]] == list(
        range(1, len(take["events"]) + 1)
    )
    assert len(take["laps"]["red"]["end"]) == 18
    assert take["fabric"]["scale"] == 400.0
    rates = take["rates"]["ports"]["tor0:1"]
    assert max(rates["rx"]) * take["rates"]["unit_bps"] * take["fabric"]["scale"] > 30e9


def test_what_a_switch_kept_stays_lit() -> None:
    told = {"state": "CONNECTED", "reason": ""}
    results = [
        {"ingress": 1, "egress": 21, "action": "keep", **told},
        {"ingress": 2, "egress": 22, "action": "remove", "t_dark": 4.0, **told},
        {
            "ingress": 2,
            "egress": 23,
            "action": "add",
            "t_dark": 4.0,
            "t_lit": 5.0,
            **told,
        },
    ]
    ended = ActionEnded(
        t=6.0, name="1", do="regroup", result={"results": {"ocs0": results}}
    )
    plan = load_checked(ROOT / "scenarios" / "disaggregation.yaml").plans[0]
    change = next(
        event for event in told_of(plan, ended) if event["event"] == "circuits"
    )["changes"]["ocs0"]
    assert [(xc["ingress"], xc["egress"]) for xc in change["remove"]] == [(2, 22)]
    assert [(xc["ingress"], xc["egress"]) for xc in change["add"]] == [(2, 23)]


def test_the_page_is_guarded(served: str) -> None:
    answer = httpx.get(served)
    assert answer.status_code == 200
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert (
        httpx.get(
            f"{served}runs.json", headers={"origin": "http://evil.example"}
        ).status_code
        == 403
    )
    wrong = (
        "../recorded.py",
        "%2e%2e/recorded.py",
        "take/9/0.json",
        "take/0/99.json",
        "vendor",
        "no.js",
    )
    for name in wrong:
        assert httpx.get(served + name).status_code == 404, name


def simulated(name: str, arm: str, place: Path) -> dict[str, Any]:
    """Take of an arm of a scenario of the clone."""
    experiment = load_checked(ROOT / "scenarios" / name)
    done, _ = carry_out_experiment(experiment, SimulationBackend(), place, arms=(arm,))
    return Recorded(done.path).take(arm)


@chromium
def test_light_moves_as_it_did(tab: Browser, served: str) -> None:
    shown(tab, f"{served}#2")
    seek(tab, 10.3)
    assert "lit" in classes(tab, "f g2:0")
    assert "dark" not in classes(tab, "f g2:0")
    dark = next(
        e
        for e in httpx.get(f"{served}take/0/1.json").json()["events"]
        if e["event"] == "circuits"
    )
    xc = dark["changes"]["ocs0"]["add"][0]
    seek(tab, (xc["t_dark"] + xc["t_lit"]) / 2)
    assert "dark" in classes(tab, "f g2:0")
    assert "lit" in classes(tab, "f g0:0")
    assert "moving" not in classes(tab, "f g0:0")
    seek(tab, xc["t_lit"] + 0.01)
    assert {"lit", "moving"} <= set(classes(tab, "f g2:0").split())
    # Where it went: port 3 of the optical switch to tor1's.
    assert classes(tab, "x ocs0:11 ocs0:3")
    seek(tab, xc["t_lit"] + 5)
    assert "moving" not in classes(tab, "f g2:0")
    assert tab.said == []
    assert {
        url.partition("/view/")[0] for url in tab.asked if url.startswith("http")
    } == {served.partition("/view/")[0]}


@chromium
def test_another_lab_has_light_of_its_own_though_it_looks_the_same(
    tab: Browser, served: str
) -> None:
    shown(tab, served)
    told = tab.run("""(async () => {
      const { Lab } = await import(new URL("live.js", location).href);
      const health = { lab: "a", t: 10, uptime_s: 5, packet_switches: {}, optical_switches: {} };
      const lab = new Lab({ get: async (path) => (path === "/v1/health" ? health : []) }, () => {});
      const none = { event: "rates", t: 11, ports: {}, iterations: [], power_dbm: {}, lightpaths: [] };
      const some = { ...none, t: 12, lightpaths: [["g0", "g1", null, 1]] };
      const told = [];
      for (let up = 0; up < 2; up++) {
        lab.take = null;
        await lab.begin(health);
        for (const sample of up ? [some, some] : [none, some]) lab.on(sample);
        told.push(lab.take.moments.map((one) => one.pairs.length));
      }
      return told;
    })()""")
    assert told == [[1], [1]]


def test_curves_that_grow_are_not_made_anew(tab: Browser, served: str) -> None:
    shown(tab, f"{served}#2")
    tab.wait("[...ringlight.drawings][0].curves.plots.length > 1")
    tab.run(
        "window.curves = [...ringlight.drawings][0].curves, window.before = curves.plots.map(p => p.plot), 0"
    )
    tab.run("curves.refresh()")
    assert tab.run("curves.plots.every((one, at) => one.plot === before[at])")
    # A panel that has become empty goes.
    tab.run("curves.take = { ...curves.take, laps: {} }, curves.refresh()")
    assert tab.run("curves.plots.length") == 1


def test_an_event_leads_to_its_moment(tab: Browser, served: str) -> None:
    shown(tab, f"{served}#2")
    said = "[...document.querySelectorAll('.events button')].find(b => b.innerText.includes('Light changed'))"
    assert "dark for 32.5 ms" in tab.run(f"{said}.innerText")
    tab.run(f"{said}.click()")
    tab.wait("Math.abs(ringlight.clock.t - 10.391) < 0.01")


def drive(tab: Browser) -> None:
    """Do by keyboard alone what the page's fields and buttons are for."""
    tab.run("document.activeElement.blur(), ringlight.clock.seek(0)")
    tab.reach("e.parentElement.innerText.startsWith('beside')")
    tab.key("ArrowDown")
    tab.wait("ringlight.drawings.size === 2")
    tab.key("ArrowUp")
    tab.wait("ringlight.drawings.size === 1")
    tab.reach("e.parentElement.innerText.startsWith('Look at')")
    tab.key("ArrowDown")
    first = tab.wait("document.querySelector('.note')?.innerText")
    tab.key("ArrowDown")
    assert tab.wait(
        f"(n => n !== {json.dumps(first)} && n)(document.querySelector('.note').innerText)"
    )
    tab.key("o")
    tab.wait(
        "document.querySelector('.note').innerText.startsWith('ocs0: mems, 14 ports')"
    )
    tab.reach("e.parentElement.innerText.startsWith('Switch')")
    tab.key("o")
    tab.wait("document.querySelector('.events small').innerText === '1 events'")
    tab.reach("e.matches('.events li button')")
    tab.key("Enter")
    tab.wait("ringlight.clock.t > 10")
    tab.reach("e.matches('.play')")
    tab.key(" ")
    tab.wait("ringlight.clock.playing && ringlight.clock.t > 10.4")
    tab.key(" ")
    tab.wait("!ringlight.clock.playing")
    tab.reach("e.parentElement.innerText.startsWith('Speed')")
    tab.key("ArrowDown")
    tab.wait("ringlight.clock.speed === 2")
    tab.reach("e.type === 'range'")
    before = tab.run("ringlight.clock.t")
    tab.key("ArrowRight")
    tab.wait(f"ringlight.clock.t > {before}")
    tab.reach("e.parentElement.innerText.startsWith('Switch')")
    tab.key("ArrowUp")
    tab.run("ringlight.clock.seek(0)")


@chromium
@pytest.mark.parametrize("width", [1280, 400])
def test_everything_can_be_reached_by_keyboard(
    tab: Browser, served: str, width: int
) -> None:
    shown(tab, f"{served}#2", width)
    wide = tab.run("document.documentElement.scrollWidth")
    assert wide <= width
    wanted = tab.run(
        "document.querySelectorAll('button:not(:disabled), select, input').length"
    )
    tab.run("document.activeElement.blur()")
    reached = set()
    for _ in range(wanted + 4):
        tab.key("Tab")
        reached.add(
            tab.run(
                "[...document.querySelectorAll('button, select, input')].indexOf(document.activeElement)"
            )
        )
    assert len(reached - {-1}) == wanted
    drive(tab)
    tab.run("document.activeElement.blur()")
    tab.key("n")
    tab.key("n")
    assert tab.run("ringlight.clock.t") > 10
    tab.key("Home")
    tab.key(" ")
    tab.wait("ringlight.clock.playing && ringlight.clock.t > 0.05")
    tab.key(" ")
    assert not tab.run("ringlight.clock.playing")


@chromium
def test_one_file_shows_the_same_without_a_server(
    tab: Browser, folder: Path, tmp_path: Path
) -> None:
    add_commands()
    file = tmp_path / "page.html"
    add_commands()
    done = CliRunner().invoke(
        app, ["view", str(folder), "--html", str(file), "--arm", "live"]
    )
    assert done.exit_code == 0, done.output
    shown(tab, file.as_uri())
    seek(tab, 12.0)
    assert "lit" in classes(tab, "f g2:0")
    assert classes(tab, "x ocs0:11 ocs0:3")
    assert [
        url for url in tab.asked if not url.startswith(("file:", "data:", "about:"))
    ] == []
    assert tab.said == []


@chromium
def test_a_report_links_to_the_page_beside_it(
    tab: Browser, folder: Path, tmp_path: Path
) -> None:
    here = tmp_path / folder.name
    shutil.copytree(folder, here)
    add_commands()
    done = CliRunner().invoke(app, ["report", str(here)])
    assert done.exit_code == 0, done.output
    tab.open((here / "report.html").as_uri())
    tab.wait("!!document.querySelector('a[href=\"view.html\"]')")
    tab.run("document.querySelector('a[href=\"view.html\"]').click()")
    tab.wait("window.ringlight && ringlight.drawings.size > 0")
    assert tab.run("document.querySelectorAll('header option').length") == 5


def test_a_page_beside_a_report_has_as_many_runs_as_fit(folder: Path) -> None:
    page = single_file([Recorded(folder)], most_bytes=1)
    (index,) = json.loads(re.search(r'id="recorded">(.*?)</script>', page)[1])  # type: ignore[index]
    assert (len(index["takes"]), index["left_out"]) == (1, 1)


@chromium
def test_names_that_are_html_are_text(tab: Browser, tmp_path: Path) -> None:
    evil = "</script><img src=x onerror=window.hit=1><script>window.hit=1</script>"
    scenario = tmp_path / "evil.yaml"
    arms = {"one": {"title": evil, "fabric": "fast"}}
    text = (ROOT / "scenarios/examples/packet_switches.yaml").read_text()
    raw = {**yaml.safe_load(text), "name": "evil", "description": evil, "arms": arms}
    raw.pop("compare", None)
    scenario.write_text(yaml.safe_dump(raw))
    done, _ = carry_out_experiment(
        load_checked(scenario), SimulationBackend(), tmp_path / "runs"
    )
    file = tmp_path / "page.html"
    file.write_text(single_file([Recorded(done.path)]))
    with serving(done.path) as url:
        for where in (url, file.as_uri()):
            shown(tab, where)
            assert evil in tab.run("document.querySelector('.stage h2').innerText")
            assert tab.run("window.hit") is None


@chromium
def test_many_gpus_are_folded_by_switch(tab: Browser, tmp_path: Path) -> None:
    gpus = [f"g{index}" for index in range(72)]
    tors = {f"tor{t}": {"ports": 40} for t in (0, 1)}
    fibres = [
        {"ends": [gpu, f"ocs0:{i + 1}"], "rate": "10 Gbit/s"}
        for i, gpu in enumerate(gpus)
    ]
    ports = [f"tor{t}:{p}" for t in (0, 1) for p in range(1, 37)]
    fibres += [
        {"ends": [port, f"ocs0:{73 + i}"], "rate": "10 Gbit/s"}
        for i, port in enumerate(ports)
    ]
    raw = {
        "name": "many",
        "description": "many GPUs",
        "fabric": {
            "servers": {
                f"s{s}": {"gpus": dict.fromkeys(gpus[8 * s : 8 * s + 8], "tesla-m40")}
                for s in range(9)
            },
            "packet_switches": tors,
            "optical_switches": {
                "ocs0": {"size": 144, "driver": "scpi", "profile": "mems"}
            },
            "links": [*fibres, {"ends": ["tor0:40", "tor1:40"], "rate": "100 Gbit/s"}],
            "circuits": [list(pair) for pair in zip(gpus, ports, strict=True)],
        },
        "training": {
            "model": "resnet50",
            "compute": "50 ms",
            "batch": 16,
            "iterations": 2,
            "collective": "ring",
        },
        "scale": {"payload": 400},
        "jobs": {"red": {"ranks": gpus[:8]}},
    }
    scenario = tmp_path / "many.yaml"
    scenario.write_text(yaml.safe_dump(raw))
    done, _ = carry_out_experiment(
        load_checked(scenario), SimulationBackend(), tmp_path / "runs"
    )
    nodes = "[...ringlight.drawings][0].picture.cy.nodes"
    with serving(done.path) as url:
        shown(tab, url)
        assert tab.run(f"{nodes}('.gpu').length") == 0
        seek(tab, 0.1)
        labels = tab.run(f"{nodes}('.fold').map(n => n.data('label'))")
        assert labels == ["36 GPUs · tor0\n8 busy, red", "36 GPUs · tor1\n0 busy"]
        tab.run(f"{nodes}('.fold')[0].emit('tap'), 0")
        assert tab.run(f"{nodes}('.gpu').length") == 36
        assert tab.said == []


@chromium
def test_two_arms_go_in_step(tab: Browser, served: str) -> None:
    shown(tab, f"{served}#1+2")
    tab.wait("ringlight.drawings.size === 2")
    seek(tab, 12.0)
    assert tab.run("[...ringlight.drawings].map(one => one.picture.at)") == [12.0, 12.0]
    titles = tab.run(
        "[...document.querySelectorAll('.stage h2')].map(h => h.innerText)"
    )
    assert len(titles) == 2
    assert "fragmented" in titles[0]


#: Whether the marked event is seen: inside its list, and not under the bar of time.
MARK_IS_SEEN = """(() => {
  const place = (name) => document.querySelector(name)?.getBoundingClientRect();
  const [row, box, bar] = [".events [aria-current]", ".events ol", ".time"].map(place);
  return row && row.top >= Math.max(0, box.top) - 1 && row.bottom <= Math.min(bar.top, box.bottom) + 1;
})()"""


@chromium
@pytest.mark.parametrize(("width", "height"), [(1280, 900), (1280, 420), (400, 800)])
def test_n_and_p_scroll_to_the_event_that_they_mark(
    tab: Browser, served: str, width: int, height: int
) -> None:
    shown(tab, f"{served}#2", width)
    tab.screen(width, height)
    tab.run("scrollTo(0, 0), ringlight.clock.seek(ringlight.clock.from)")
    # Somebody reads in the list, and has chosen an event there.
    tab.run(
        "document.querySelector('.events ol').dispatchEvent(new PointerEvent('pointerenter'))"
    )
    tab.run(
        "document.querySelector('.events li button').focus({ preventScroll: true })"
    )
    told = httpx.get(f"{served}take/0/1.json").json()["events"]
    times = sorted({event["t"] for event in told if event["event"] != "flow"})
    for key, moments in (("n", times[1:]), ("p", times[-2::-1])):
        for t in moments:
            tab.key(key)
            tab.wait(
                f"Math.abs(ringlight.clock.t - {t}) < 1e-9 && {MARK_IS_SEEN}",
                timeout_s=5.0,
            )
    # The focus follows in an effect, after the mark is drawn.
    tab.wait(
        "document.activeElement.getAttribute('aria-current') === 'time'", timeout_s=5.0
    )


@chromium
def test_n_finds_events_that_are_less_than_a_microsecond_apart(
    tab: Browser, served: str
) -> None:
    shown(tab, f"{served}#2")
    events = "[...ringlight.drawings][0].view.take.events"
    tab.run(
        f"{events}.forEach((event, at) => {{ event.t = 2 + at * 1e-7 }}), ringlight.clock.seek(2)"
    )
    tab.key("n")
    assert tab.run("ringlight.clock.t") == 2 + 1e-7


#: Hands over a lab that is played by a few answers; ``states``: those of its regrouping, one an answer.
HANDS = """(async () => {
  const at = (name) => import(new URL(name, location));
  const [{ html, render }, { Hands }] = await Promise.all([at("vendor/preact.js"), at("hands.js")]);
  const { take, plug } = [...ringlight.drawings][0].view;
  const moves = [{ gpu: "g2", from: "tor0:1", to: "tor1:2" }];
  const plan = { moves, stay_lit: [], cross_connects: {}, predicted: [] };
  window.states = ["APPLYING", "APPLYING"];
  const regroup = (state, error) => ({ id: "regroup-7", state, jobs: ["a"], plan, problems: [], error });
  const api = {
    call: async (method, path, body) => {
      return path === "/v1/regroup" ? regroup(body.dry_run ? "PLANNED" : "APPLYING") : null;
    },
    get: async (path) => {
      if (path !== "/v1/regroup/regroup-7") return [];
      const now = states.length > 1 ? states.shift() : states[0];
      if (now === "away") throw new Error("Failed to fetch");
      return regroup(now, now === "FAILED" ? "port 4 has failed" : null);
    },
  };
  document.querySelector("#played")?.remove();
  const box = document.querySelector("main").appendChild(document.createElement("div"));
  box.id = "played";
  render(html`<${Hands} view=${{ api, take: { ...take, live: true, broken: [] }, plug }} />`, box);
})()"""


def press(tab: Browser, words: str) -> None:
    button = f"[...document.querySelectorAll('#played button')].find(b => b.innerText.startsWith('{words}'))"
    tab.wait(f"!!{button} && !{button}.disabled")
    tab.run(f"{button}.click()")


@chromium
@pytest.mark.parametrize("width", [1280, 400])
@pytest.mark.parametrize("words", ["Plan", "Inject", "Clear", "Break"])
def test_a_plan_opens_beside_the_button_that_asked_for_it(
    tab: Browser, served: str, words: str, width: int
) -> None:
    shown(tab, f"{served}#2", width)
    tab.run(HANDS)
    press(tab, words)
    tab.wait("!!document.querySelector('#played .plan')")
    form, next_one = tab.run(
        "(plan => [plan.previousElementSibling.innerText, plan.nextElementSibling?.tagName ?? null])"
        "(document.querySelector('#played .plan'))"
    )
    assert words in form
    assert next_one == (None if words == "Break" else "FORM")
    seen = "(b => b.top >= 0 && b.bottom <= document.querySelector('.time').getBoundingClientRect().top)"
    assert tab.wait(
        f"{seen}(document.querySelector('#played .plan').getBoundingClientRect())", 5.0
    )
    press(tab, "Leave it")
    tab.wait("!document.querySelector('#played .plan')")


@chromium
@pytest.mark.parametrize(
    ("states", "end"),
    [
        (["APPLYING", "away", "DONE"], "Regroup 1 job: done"),
        (["APPLYING", "FAILED"], "Regroup 1 job: port 4 has failed"),
    ],
)
def test_what_is_under_way_comes_to_its_end(
    tab: Browser, served: str, states: list[str], end: str
) -> None:
    shown(tab, f"{served}#2")
    tab.run(HANDS)
    press(tab, "Plan")
    press(tab, "Do it")
    note = "document.querySelector('#played .note')?.innerText"
    tab.wait(f"{note} === 'Regroup 1 job: under way'")
    tab.run(f"window.states = {json.dumps(states)}, 0")
    tab.wait(f"{note} === {json.dumps(end)}", timeout_s=10.0)
    assert "Regroup" in tab.run(
        "document.querySelector('#played .note').previousElementSibling.innerText"
    )


@chromium
def test_the_key_has_the_dashes_of_the_drawing_and_a_legend_those_of_its_curves(
    tab: Browser, served: str
) -> None:
    shown(tab, f"{served}#2")
    # As cytoscape has them for an edge with these marks.
    drawn = tab.run("""(() => {
      const { cy } = [...ringlight.drawings][0].picture;
      const edge = cy.add({ data: { id: "probe", source: "g0", target: "g1", w: 3, colour: "#123456" } });
      const look = (classes) => {
        edge.classes(classes);
        if (edge.style("line-style") === "solid") return [];
        return String(edge.style("line-dash-pattern")).split(" ").map(parseFloat);
      };
      const found = ["lit", "lit moving", "dark", "unlit"].map(look);
      edge.remove();
      return found;
    })()""")
    key = tab.run("""[...document.querySelectorAll('.key line')].map((line) => {
      const dash = getComputedStyle(line).strokeDasharray;
      return dash === "none" ? [] : dash.split(",").map(parseFloat);
    })""")
    lit, moving, dark, unlit = drawn
    assert key == [lit, lit, moving, dark, unlit]
    assert lit == []
    assert len({tuple(one) for one in (moving, dark, unlit)}) == 3
    legends = tab.run("""[...ringlight.drawings][0].curves.plots.map(({ plot }) => {
      const marks = [...plot.root.querySelectorAll(".u-series .u-marker")];
      const own = marks.slice(1 - plot.series.length);
      return plot.series.slice(1).map((one, at) => [one.dash || [], own[at].style.background]);
    })""")
    assert legends
    for dash, mark in (pair for legend in legends for pair in legend):
        stops = [sum(dash[: at + 1]) for at in range(len(dash))]
        assert all(f"{stop}px" in mark for stop in stops), (dash, mark)
        assert ("gradient" in mark) == bool(dash)


@chromium
def test_axes_of_time_are_named(tab: Browser, served: str) -> None:
    shown(tab, f"{served}#2")
    # Each tick of time has its unit.
    ticks = (
        "[...ringlight.drawings][0].curves.plots.map(({ plot }) =>"
        " plot.axes[0].values(plot, [0.5, 1])[1])"
    )
    assert set(tab.run(ticks)) == {"1 s"}


def test_jobs_have_the_colours_that_the_report_gives_them() -> None:
    script = (PAGE / "colours.js").read_text()
    palette = re.search(r"const PALETTE = (\[.*\]);", script)
    named = re.search(r"const NAMED = \{(.*)\};", script)
    assert palette
    assert named
    assert list(JOB_COLOURS) == json.loads(palette[1])
    assert dict(re.findall(r'(\w+): "(#\w+)"', named[1])) == JOB_NAMES


def test_the_page_shows_all_that_a_port_carried(tmp_path: Path) -> None:
    small = load_checked(MINI)
    folder = carry_out_experiment(small, SimulationBackend(), tmp_path, arms=["live"])[
        0
    ].path
    file = folder / "throughput.csv"
    head, *lines = file.read_text().splitlines()
    shown = Recorded(folder).take("live")["rates"]["ports"]
    # An earlier version wrote a row for each GPU that a port ever had.
    twice = []
    for line in lines:
        *front, _, _ = line.split(",")
        twice += [line, ",".join([*front, "0.0", "0.0"])]
    file.write_text("\n".join([head, *twice]) + "\n")
    assert Recorded(folder).take("live")["rates"]["ports"] == shown
    busiest = max(max(port["rx"]) for port in shown.values()) * RATE_UNIT_BPS
    link = (
        max(link.rate_bps for link in small.plans[0].setting.fabric.links)
        / small.plans[0].setting.scale.rate
    )
    assert busiest <= link * 1.001
