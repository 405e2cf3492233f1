"""Applications of others: Ryu's names for os-ken, REST routes, and options of commands."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import webob

from ringlight.containers.image import ROOT
from ringlight.controller.service import ProgramProcess, health_model
from ringlight.experiments.backends.emulation import lab_of_setting
from ringlight.experiments.backends.emulation.backend import EmulationBackend
from ringlight.experiments.cli import app
from ringlight.experiments.language.expand import load
from ringlight.experiments.language.text import ScenarioError
from ringlight.experiments.record.version import code_version
from ringlight.experiments.runner.command import check_resumed
from ringlight.extensions.applications import apps
from ringlight.extensions.applications.apps import wsgi
from ringlight.extensions.applications.options import (
    ApplicationOptions,
    all_for_applications,
)
from ringlight.fabric.building import build_fabric
from ringlight.fabric.schema import FabricSpec
from ringlight.testbed.lab import LabError

APPLICATIONS = ROOT / "docs/applications"


def loaded(text: str, folder: Path, *more: Path) -> tuple[int, str]:
    """Exit code and standard error of a process that runs an application file with this text."""
    file = folder / "my_app.py"
    file.write_text(text)
    command = [
        sys.executable,
        "-m",
        "ringlight.extensions.applications.apps",
        "--openflow",
        "127.0.0.1:9",
    ]
    done = subprocess.run(
        [*command, "--rest", "127.0.0.1:9", *map(str, more), str(file)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, done.stderr


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "from ryu.app import simple_switch_13",
            "imports ryu.app.simple_switch_13, which os-ken has dropped",
        ),
        (
            "import ryu.app.rest_router",
            "imports ryu.app.rest_router, which os-ken has dropped",
        ),
        (
            "from ryu.app.wsgi import websocket",
            "imports ryu.app.wsgi.websocket: WebSockets are left out",
        ),
        ("import ryu.base.app_manager", "no application in it"),
        ("from ryu.base import app_manager as\n", "my_app.py, line 1: "),
        ("import no_such_module", "No module named 'no_such_module'"),
        ("1 / 0", "ZeroDivisionError: division by zero"),
    ],
)
def test_a_file_that_cannot_be_run_is_named_in_one_line(
    text: str, said: str, tmp_path: Path
) -> None:
    code, error = loaded(text, tmp_path)
    last = error.strip().splitlines()[-1]
    assert code == 1
    assert last.startswith("applications: ")
    assert str(tmp_path / "my_app.py") in last
    assert said in last


#: What a failing application does; each is one line that names its file and ends the process.
FAILING = """if True:
    from ryu.base import app_manager
    from ryu.topology.api import get_link

    class App(app_manager.RyuApp):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            {}
"""


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("raise ValueError('two\\nlines')", "my_app.py: ValueError: two lines"),
        (
            "get_link(self)",
            "my_app.py: RuntimeError: EventLinkRequest: no application switches runs",
        ),
    ],
)
def test_an_application_that_fails_at_its_start_is_one_line(
    statement: str, said: str, tmp_path: Path
) -> None:
    code, error = loaded(FAILING.format(statement), tmp_path)
    last = error.strip().splitlines()[-1]
    assert (code, last.startswith("applications: ")) == (1, True), error
    assert said in last
    assert "Traceback" not in error


def test_an_application_that_is_required_and_not_here_is_named(tmp_path: Path) -> None:
    text = "from ryu.base import app_manager\napp_manager.require_app('ryu.app.ofctl_rest')\n"
    code, error = loaded(text + "class App(app_manager.RyuApp): pass\n", tmp_path)
    last = error.strip().splitlines()[-1]
    assert code == 1
    assert (
        "my_app.py: an application requires ryu.app.ofctl_rest, which os-ken has dropped"
        in last
    )


def test_two_applications_of_one_name_are_both_named(tmp_path: Path) -> None:
    text = "from ryu.base import app_manager\nclass App(app_manager.RyuApp): pass\n"
    (tmp_path / "other.py").write_text(text)
    code, error = loaded(text, tmp_path, tmp_path / "other.py")
    assert code == 1
    assert (
        "other.py, my_app.py: both have an application App"
        in error.strip().splitlines()[-1]
    )


def in_os_ken(program: str) -> str:
    """Standard output of a program in a process of its own, as os-ken changes what it is imported into."""
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def test_a_handler_or_thread_that_fails_is_one_line_and_the_application_goes_on() -> (
    None
):
    program = """if True:
        import logging, sys, time
        from ringlight.extensions.applications.apps import ryu, threads
        ryu.install()
        threads.install()
        handler = logging.StreamHandler(sys.stdout)
        handler.setFormatter(threads.OneLine("%(levelname)s %(message)s"))
        logging.basicConfig(level=logging.ERROR, handlers=[handler])
        from ryu.base import app_manager
        from ryu.controller import event
        from ryu.controller.handler import set_ev_cls
        from ryu.lib import hub

        class Asked(event.EventBase):
            pass

        class App(app_manager.RyuApp):
            seen = 0

            @set_ev_cls(Asked)
            def asked(self, ev):
                self.seen += 1
                raise KeyError("lost")

        app = App()
        app_manager.register_app(app)
        app.start()
        for _ in range(2):
            app._send_event(Asked(), None)
        hub.spawn(lambda: 1 / 0).join()
        logging.getLogger("own").error("a table\\nof two lines")
        while app.seen < 2:
            time.sleep(0.01)
        began = time.monotonic()
        assert not hub.Event().wait(0.1) and time.monotonic() - began < 5
        app.stop()
    """
    lines = in_os_ken(program).splitlines()
    assert len(lines) == 5, lines
    assert lines[lines.index("ERROR a table") + 1] == "of two lines"
    assert sum(": KeyError: 'lost'" in line for line in lines) == 2
    assert sum(": ZeroDivisionError: division by zero" in line for line in lines) == 1


def test_a_link_without_frames_is_reported_gone_and_a_host_that_moved_is_reported() -> (
    None
):
    program = """if True:
        from types import SimpleNamespace as Fake
        from ringlight.extensions.applications.apps import ryu, threads
        ryu.install()
        threads.install()
        from ringlight.extensions.applications.apps import topology
        topology.install()
        from os_ken import cfg
        from os_ken.base import app_manager
        from os_ken.controller.handler import set_ev_cls
        from os_ken.topology import api, event, switches
        cfg.CONF(args=[], project="os_ken", default_config_files=[], default_config_dirs=[])
        cfg.CONF.set_override("observe_links", True)
        switches.Switches.LINK_TIMEOUT = switches.Switches.TIMEOUT_CHECK_PERIOD = 0.2
        ofproto = Fake(OFPP_MAX=9, OFPPS_LINK_DOWN=1, OFPPC_PORT_DOWN=1)
        a, b = (
            switches.Port(dpid, ofproto, Fake(config=0, state=0, port_no=1, hw_addr="", name=b""))
            for dpid in (1, 2)
        )
        told = app_manager.hub.Queue()

        class App(app_manager.RyuApp):
            @set_ev_cls(event.EventLinkDelete)
            def gone(self, ev):
                told.put(("gone", ev.link.src.dpid, ev.link.dst.dpid))

            @set_ev_cls(event.EventHostMove)
            def moved(self, ev):
                told.put(("moved", ev.src.port.dpid, ev.dst.port.dpid))

        manager = app_manager.AppManager()
        app, found = manager.instantiate(App), manager.instantiate(switches.Switches)
        for one in (app, found):
            one.start()
        found.links.update_link(a, b)
        found.links.update_link(b, a)
        links = api.get_link(app)
        found.links.update_link(a, a)
        print(sorted((link.src.dpid, link.dst.dpid) for link in links))
        print(sorted(told.get(timeout=20) for _ in range(3)), len(api.get_link(app)))
        found.send_event_to_observers(event.EventHostMove(switches.Host("m", a), switches.Host("m", b)))
        print(told.get(timeout=20))
        manager.close()
    """
    assert in_os_ken(program).splitlines() == [
        "[(1, 2), (2, 1)]",
        "[('gone', 1, 1), ('gone', 1, 2), ('gone', 2, 1)] 0",
        "('moved', 1, 2)",
    ]


def test_applications_are_not_called_ready_before_their_port_is_open() -> None:
    program = (
        "import socket\n"
        "from ringlight.extensions.applications.apps.__main__ import AppError, _await_listening\n"
        "with socket.create_server(('127.0.0.1', 0)) as taken:\n"
        "    port = taken.getsockname()[1]\n"
        "    _await_listening(port, 0.1)\n"
        "try:\n"
        "    _await_listening(port, 0.1)\n"
        "except AppError as error:\n"
        "    print(str(error).replace(str(port), 'PORT'))\n"
    )
    # In a process of its own, as os-ken changes what it is imported into.
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout == "OpenFlow port PORT was not opened within 0.1 s\n", (
        done.stderr
    )


def test_ryu_is_os_ken_under_another_name() -> None:
    code = """if True:
        from ringlight.extensions.applications.apps import ryu
        ryu.install()
        from ryu.base import app_manager
        import os_ken.base.app_manager as theirs
        import ryu.lib.packet.ethernet, os_ken.lib.packet.ethernet
        from ryu.exception import RyuException
        from ryu.app.wsgi import ControllerBase
        from os_ken.app import wsgi
        from ringlight.extensions.applications.apps import wsgi as ours
        assert app_manager is theirs and theirs.__spec__.name == "os_ken.base.app_manager"
        assert app_manager.RyuApp is theirs.OSKenApp
        assert ryu.lib.packet.ethernet is os_ken.lib.packet.ethernet
        assert os_ken.lib.packet.ethernet.__spec__.name == "os_ken.lib.packet.ethernet"
        assert ControllerBase is ours.ControllerBase is wsgi.ControllerBase
        try:
            import ryu.app.ofctl_rest
        except ImportError as error:
            print(error)
    """
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (
        0,
        "ryu.app.ofctl_rest: os-ken has dropped it\n",
    ), done.stderr


class Tables(wsgi.ControllerBase):
    @wsgi.route(
        "table",
        "/table/{dpid}",
        methods=["PUT"],
        requirements={"dpid": wsgi.DIGIT_PATTERN},
    )
    def put(self, req: Any, dpid: str, **more: Any) -> Any:
        return wsgi.Response(
            content_type="application/json",
            text=json.dumps([self.data, dpid, req.json]),
        )

    def oldest(self, req: Any, **more: Any) -> Any:
        return wsgi.Response(status=202)


def test_routes_of_an_application_are_answered_as_ryu_does() -> None:
    application = wsgi.WSGIApplication()
    application.register(Tables, {"app": 1})
    application.mapper.connect("old", "/old", controller=Tables, action="oldest")

    def call(path: str, method: str, body: bytes = b"") -> Any:
        return webob.Request.blank(path, method=method, body=body).get_response(
            application
        )

    assert call("/table/12", "PUT", b"[3]").json == [{"app": 1}, "12", [3]]
    assert call("/old", "GET").status_code == 202
    assert [
        call(*words).status_code
        for words in (("/table/12", "GET"), ("/table/x", "PUT"))
    ] == [404, 404]


@pytest.mark.parametrize("command", ["run", "up", "shell"])
@pytest.mark.parametrize(
    ("scenario", "words", "said"),
    [
        (
            "docs/applications/two_switches.yaml",
            [],
            "controller: app, and no application was given",
        ),
        (
            "docs/applications/two_switches.yaml",
            ["--app-all"],
            "--app-all: which application?",
        ),
        (
            "docs/applications/two_switches.yaml",
            ["--observe-links"],
            "--observe-links: for which application?",
        ),
        (
            "scenarios/examples/dead_switch.yaml",
            ["--app", "a.py"],
            "is for applications; say 'controller: app'",
        ),
    ],
)
def test_switches_for_applications_and_applications_need_each_other(
    command: str,
    scenario: str,
    words: list[str],
    said: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        sys, "argv", ["ringlight", command, str(ROOT / scenario), *words]
    )
    with pytest.raises(SystemExit) as ended:
        app.main()
    assert ended.value.code == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert said in lines[0]


def test_all_switches_are_given_to_applications() -> None:
    setting = load(ROOT / "scenarios/disaggregation.yaml").plans[0].setting
    made = all_for_applications(setting)
    assert {switch.controller for switch in made.fabric.packet_switches.values()} == {
        "app"
    }
    assert build_fabric(FabricSpec.model_validate(made.section)) == made.fabric
    assert {
        switch.controller for switch in setting.fabric.packet_switches.values()
    } == {"ringlight"}


def test_a_run_is_not_gone_on_with_under_other_applications(tmp_path: Path) -> None:
    learning, elephants = (
        APPLICATIONS / "learning_switch.py",
        APPLICATIONS / "elephants.py",
    )
    experiment = load(APPLICATIONS / "two_switches.yaml")
    before = EmulationBackend(programs=[ApplicationOptions(app=[learning])])
    (tmp_path / "scenario.yaml").write_text(experiment.text)
    facts = {"backend": before.name, "code": code_version(), **before.facts()}
    (tmp_path / "environment.json").write_text(json.dumps(facts))
    check_resumed(tmp_path, experiment, before)
    with pytest.raises(ScenarioError) as caught:
        check_resumed(
            tmp_path,
            experiment,
            EmulationBackend(programs=[ApplicationOptions(app=[elephants])]),
        )
    assert (
        str(caught.value)
        == f"{tmp_path}: its runs were made with another --app; begin anew"
    )


@pytest.mark.parametrize("command", ["up", "shell"])
def test_a_lab_that_stands_gets_the_applications_that_were_asked_for(
    command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    def made(
        setting: Any, *_: object, programs: list[ApplicationOptions], **more: Any
    ) -> None:
        asked.extend((programs, setting.fabric.foreign_switches))
        raise LabError("enough")

    monkeypatch.setattr(lab_of_setting, "processes_of", made)
    scenario = ROOT / "scenarios/disaggregation.yaml"
    words = [command, str(scenario), "--arm", "a-fragmented", "--runtime", "namespace"]
    words += [
        "--app-openflow",
        "127.0.0.1:3",
        "--app-rest",
        "127.0.0.1:4",
        "--observe-links",
    ]
    app.add_commands()
    with pytest.raises(LabError, match="enough"):
        app.app(
            [*words, "--app", "ryu.app.rest_topology", "--app-all"],
            standalone_mode=False,
        )
    brought = Path(apps.__path__[0], "rest_topology.py").resolve()
    ((options,), switches) = asked
    assert options == ApplicationOptions(
        "127.0.0.1:3", "127.0.0.1:4", [brought], True, True
    )
    assert set(switches) == set(load(scenario).plans[0].setting.fabric.packet_switches)
    assert options.listens() == {
        "--app-openflow": "127.0.0.1:3",
        "--app-rest": "127.0.0.1:4",
    }


def test_their_routes_are_open_to_no_other_machine() -> None:
    with pytest.raises(
        LabError, match=r"--app-rest 0\.0\.0\.0:8081: not a loopback address"
    ):
        ApplicationOptions(app_rest="0.0.0.0:8081").listens()


def test_an_unknown_controller_is_told_of_them() -> None:
    with pytest.raises(
        ScenarioError,
        match="write ringlight, none, app, or another controller's address",
    ):
        load(APPLICATIONS / "two_switches.yaml", sets=["fabrics.two.controller=torus"])


def test_health_has_their_process() -> None:
    keys = health_model().__annotations__
    assert keys["applications"] == ProgramProcess | None
    assert "status" in keys
