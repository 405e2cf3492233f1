"""A forked process is as an executed one to whoever looks at it, waits for it or kills it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ringlight.testbed.emulation.namespace_hosts import program_is_readable
from ringlight.testbed.forkserver import ForkServer, forking, prepare
from ringlight.testbed.process_start import SOCKET, Forked, Process, start_process

PROGRAM = """
import json, os, signal, sys, time
if __name__ == "__main__":
    facts = os.environ.get("RINGLIGHT_LAB"), os.getcwd(), os.getsid(0) == os.getpid()
    print(json.dumps([sys.argv[1:], *facts]))
    print("wrong", file=sys.stderr, flush=True)
    time.sleep(float(sys.argv[1]))
    sys.exit(int(sys.argv[2]))
"""


class Place:
    """A folder with a program, and with what its processes say."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.said = folder, folder / "said"
        (folder / "forked_program.py").write_text(PROGRAM)
        self.server = ForkServer(folder / "socket", ["json"], os.environ)

    def start(
        self, *words: str, lab: str = "abcd", follow: signal.Signals | None = None
    ) -> Process:
        environment = {
            **os.environ,
            SOCKET: str(self.server.path),
            "RINGLIGHT_LAB": lab,
        }
        command = [sys.executable, "-m", "forked_program", *words]
        with self.said.open("wb") as output:
            return start_process(
                command, environment, output, directory=self.folder, follow=follow
            )

    def until_said(self) -> str:
        until(lambda: b"wrong" in self.said.read_bytes())
        return self.said.read_text()


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path)
    yield made
    made.server.close()


def until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def gone(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()


def shown(pid: int, name: str) -> list[str]:
    return Path(f"/proc/{pid}/{name}").read_bytes().decode().split("\0")[:-1]


def test_it_is_shown_with_its_own_words_and_label_and_ends_with_its_own_code(
    place: Place,
) -> None:
    first = place.start("60", "0", lab="wxyz")
    assert isinstance(first, Forked)
    place.until_said()
    second = place.start("1", "3", "a b", "", lab="abcd")
    assert place.until_said().startswith(
        f'[["1", "3", "a b", ""], "abcd", "{place.folder}", true]'
    )
    assert shown(second.pid, "cmdline")[1:] == [
        "-m",
        "forked_program",
        "1",
        "3",
        "a b",
        "",
    ]
    for process, lab in ((first, "wxyz"), (second, "abcd")):
        assert f"RINGLIGHT_LAB={lab}" in shown(process.pid, "environ")
        assert process.poll() is None
    assert (second.wait(20), second.poll()) == (3, 3)
    with pytest.raises(subprocess.TimeoutExpired):
        first.wait(0.05)
    first.kill()
    assert first.wait(20) == -signal.SIGKILL
    first.terminate()


def test_its_output_is_known_for_the_pipe_that_it_is(place: Place) -> None:
    (place.folder / "seeks.py").write_text(
        "import sys; print(sys.stdout.seekable(), sys.stdin.read())"
    )
    environment = {**os.environ, SOCKET: str(place.server.path)}
    output, into = os.pipe()
    with open(output) as said, open(into, "wb") as given:
        process = start_process(
            [sys.executable, "-m", "seeks"], environment, given, directory=place.folder
        )
        given.close()
        assert isinstance(process, Forked)
        assert said.read() == "False \n"
    assert process.wait(20) == 0


@pytest.mark.parametrize(
    ("end", "code", "last"),
    [("", 0, ""), ("sys.exit(300)", 44, ""), ("exit('no')", 1, "no\n")],
)
def test_it_ends_after_its_threads_and_what_was_to_be_done_last(
    place: Place, end: str, code: int, last: str
) -> None:
    """Whatever it has said without a line's end is there, too."""
    program = """
import atexit, sys, threading, time
atexit.register(sys.stdout.write, "last")
threading.Thread(target=lambda: time.sleep(0.2) or sys.stdout.write("thread ")).start()
"""
    (place.folder / "ends.py").write_text(program + end)
    for server in (str(place.server.path), ""):
        environment = {**os.environ, SOCKET: server}
        command = [sys.executable, "-m", "ends"]
        wrong = place.folder / "wrong"
        with place.said.open("wb") as output, wrong.open("wb") as errors:
            process = start_process(
                command, environment, output, errors=errors, directory=place.folder
            )
        assert (process.wait(20), isinstance(process, Forked)) == (code, bool(server))
        assert (place.said.read_text(), wrong.read_text()) == ("thread last", last)


def test_nobody_waits_without_end_for_a_server_that_is_stopped(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = place.start("60", "0")
    place.until_said()
    # Not before: on a full machine a server that runs may take longer, too.
    monkeypatch.setattr("ringlight.testbed.process_start.ANSWER_S", 0.1)
    assert isinstance(place.server._process, subprocess.Popen)
    place.server._process.send_signal(signal.SIGSTOP)
    try:
        process.kill()
        assert process.wait(20) == 255
    finally:
        place.server._process.send_signal(signal.SIGCONT)


def test_it_ends_with_whoever_asked_for_it_only_where_it_is_to(place: Place) -> None:
    left, followed = (
        place.start("60", "0"),
        place.start("60", "0", follow=signal.SIGTERM),
    )
    pids = left.pid, followed.pid
    try:
        del left, followed
        until(lambda: gone(pids[1]))
        assert not gone(pids[0])
    finally:
        os.kill(pids[0], signal.SIGKILL)


def test_it_outlives_its_server_which_ends_in_order(place: Place) -> None:
    process = place.start("60", "0")
    place.server.close()
    try:
        assert process.poll() is None
        assert not gone(process.pid)
    finally:
        process.kill()
    assert process.wait(20) == 255


def test_without_a_server_it_is_executed(place: Place) -> None:
    place.server.close()
    process = place.start("0", "4")
    assert not isinstance(process, Forked)
    assert process.wait(20) == 4
    assert '"abcd"' in place.until_said()


STATUS = """
import json, os, sys
status = dict(line.split(":", 1) for line in open("/proc/self/status") if ":" in line)
rights = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs", "Uid", "Gid", "Groups")
found = {name: status[name].split() for name in rights}
found["own"] = os.stat("/proc/self/fd").st_uid
try:
    os.setuid(0)
    found["root"] = os.getuid() == 0 and os.path.exists("/root/.") and os.access("/etc/shadow", os.W_OK)
except OSError as error:
    found["root"] = error.strerror
print(json.dumps([found, "RINGLIGHT_FORKSERVER" in os.environ]), flush=True)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize("user", [61000, 0])
def test_without_privileges_it_is_as_an_executed_one(place: Place, user: int) -> None:
    """Forked or executed: of that user and group alone, with no capability and no way to one."""
    executed = user == 0 or program_is_readable()
    found = []
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        Path(folder, "rights.py").write_text(STATUS)
        for server in (str(place.server.path), "")[: 1 + executed]:
            environment = {**os.environ, SOCKET: server}
            command = [sys.executable, "-m", "rights"]
            with place.said.open("wb") as output:
                process = start_process(
                    command, environment, output, directory=Path(folder), user=user
                )
            assert isinstance(process, Forked) == bool(server)
            assert process.wait(20) == 0, place.said.read_text()
            found.append(json.loads(place.said.read_text()))
    assert found[0] == found[-1]
    rights, told = found[0]
    assert {int(rights[name][0], 16) for name in rights if name.startswith("Cap")} == {
        0
    }
    assert (rights["NoNewPrivs"], rights["Groups"], rights["own"]) == (["1"], [], user)
    assert rights["Uid"] == rights["Gid"] == [str(user)] * 4
    assert not told


@pytest.mark.skipif(os.geteuid() != 0, reason="only root builds labs")
def test_a_command_has_a_server_for_a_while_and_lends_it_or_not(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(SOCKET, raising=False)
    asks = [sys.executable, "-m", "asking"]
    (place.folder / "asking.py").write_text(
        f"import os\nprint(os.environ.get({SOCKET!r}), flush=True)\n"
    )
    told = {}
    with forking(["json"]) as ends:
        path = os.environ[SOCKET]
        for lends in (True, False):
            with place.said.open("wb") as output:
                process = start_process(
                    asks, os.environ, output, directory=place.folder, as_client=lends
                )
            assert isinstance(process, Forked)
            assert process.wait(20) == 0
            told[lends] = place.said.read_text().strip()
        with forking(["json"]) as again:
            assert os.environ[SOCKET] == path
    assert (ends, again) == (True, False)
    assert told == {True: path, False: "None"}
    assert SOCKET not in os.environ
    assert not Path(path).exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root builds labs")
def test_a_server_that_still_imports_keeps_nobody_waiting(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(SOCKET, raising=False)
    monkeypatch.setenv("PYTHONPATH", str(place.folder))
    (place.folder / "slow_to_import.py").write_text("import time\ntime.sleep(60)\n")
    began = time.monotonic()
    with forking(["slow_to_import"]):
        pass
    # An orderly end was waited for 5 s.
    assert time.monotonic() - began < 4


FOR_A_WHILE = """
import os, time
from ringlight.testbed.forkserver import forking
from ringlight.testbed.process_start import SOCKET
with forking(["json"]):
    print(os.environ[SOCKET], flush=True)
    time.sleep(60)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root builds labs")
def test_the_server_of_a_command_that_is_killed_leaves_no_folder(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(SOCKET, raising=False)
    with subprocess.Popen(
        [sys.executable, "-c", FOR_A_WHILE], stdout=subprocess.PIPE
    ) as command:
        assert command.stdout is not None
        path = Path(command.stdout.readline().decode().strip())
        assert path.exists()
        command.kill()
    until(lambda: not path.parent.exists())


SERVING = """
import os, sys
from pathlib import Path
from ringlight.testbed.forkserver import ForkServer
from ringlight.testbed.process_start import SOCKET, Forked, start_process
held = open("held", "w")
server = ForkServer(Path("own"), sys.argv[1:], os.environ)
with open("child", "wb") as output:
    environment = {**os.environ, SOCKET: "own", "RINGLIGHT_LAB": "chld"}
    child = start_process([sys.executable, "-m", "counting"], environment, output, directory=Path.cwd())
assert isinstance(child, Forked)
assert child.wait(20) == 7
server.close()
"""
COUNTING = """
import os, sys
import imported_once
loaded = "colorsys" in sys.modules
print(imported_once.BY == os.getpid(), imported_once.BY, loaded, os.environ["RINGLIGHT_LAB"], flush=True)
open_here = [os.path.realpath(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if int(fd) > 2]
sys.exit(7 if not any("held" in path for path in open_here) else 8)
"""


def test_a_forked_process_has_a_server_that_imports_nothing_again(
    tmp_path: Path,
) -> None:
    """Nor has what is forked anything that the process has open."""
    (tmp_path / "imported_once.py").write_text("import os\nBY = os.getpid()\n")
    (tmp_path / "serving.py").write_text(SERVING)
    (tmp_path / "counting.py").write_text(COUNTING)
    paths = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    server = ForkServer(
        tmp_path / "socket", ["imported_once"], {**os.environ, "PYTHONPATH": paths}
    )
    try:
        environment = {**os.environ, SOCKET: str(server.path), "PYTHONPATH": paths}
        said = tmp_path / "said"
        for modules, more in (
            (["imported_once"], False),
            (["imported_once", "colorsys"], True),
        ):
            with said.open("wb") as output:
                command = [sys.executable, "-m", "serving", *modules]
                process = start_process(
                    command, environment, output, directory=tmp_path
                )
            assert process.wait(20) == 0, said.read_text()
            own, by, loaded, lab = (tmp_path / "child").read_text().split()
            assert (own, loaded, lab) == ("False", str(more), "chld")
            assert int(by) == server_pid(server)
        prepare(str(server.path), ["colorsys"])
        with said.open("wb") as output:
            command = [sys.executable, "-m", "counting"]
            environment |= {"RINGLIGHT_LAB": "late"}
            process = start_process(command, environment, output, directory=tmp_path)
        assert process.wait(20) == 7
        assert said.read_text().split()[2:] == ["True", "late"]
    finally:
        server.close()


def server_pid(server: ForkServer) -> int:
    return server._process.pid
