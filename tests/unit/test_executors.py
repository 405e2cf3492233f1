"""Work that is shared out to processes of this machine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

import pytest

from ringlight.experiments.runner.executors import in_forks

ALONE = """
import os
from ringlight.experiments.runner.executors import in_forks
made_here = object()
def told(number):
    if number == 7:
        raise OSError(28, "no space left", f"plots/{number}")
    return number * number, os.getpid(), id(made_here)
os.sched_getaffinity = lambda _: {0, 1}
os.getloadavg = lambda: (1.0, 0.0, 0.0)
found = in_forks(told, 7)
assert [square for square, _, _ in found] == [0, 1, 4, 9, 16, 25, 36]
assert os.getpid() not in {pid for _, pid, _ in found}
assert {here for *_, here in found} == {id(made_here)}
try:
    in_forks(told, 8)
except OSError as error:
    print(error.errno, error.filename)
os.getloadavg = lambda: (2.1, 0.0, 0.0)
assert {pid for _, pid, _ in in_forks(told, 7)} == {os.getpid()}
os.getloadavg = lambda: (0.0, 0.0, 0.0)
os.sched_getaffinity = lambda _: {0}
assert {pid for _, pid, _ in in_forks(told, 7)} == {os.getpid()}
"""


BESIDE = """
import os, signal, sys
from ringlight.experiments.runner.executors import beside, in_forks
from ringlight.experiments.record.writing import WriteError
os.sched_getaffinity = lambda _: {0, 1}
os.getloadavg = lambda: (1.0, 0.0, 0.0)
made_here = object()
def work(what):
    if what == "write":
        raise WriteError("plots: no space left")
    if what == "die" and os.getpid() != here:
        os.kill(os.getpid(), signal.SIGKILL)
    return os.getpid(), "cmath" in sys.modules, id(made_here), set(in_forks(lambda _: os.getpid(), 4))
def begin():
    import cmath
here = os.getpid()
with beside(begin, work) as there:
    pid, prepared, what, forked = there("do")()
    assert pid != here and prepared and what == id(made_here) and not {here, pid} & forked
with beside(begin, work) as there:
    try:
        there("write")()
    except WriteError as error:
        print(error)
with beside(begin, work) as there:
    assert there("die")()[0] == here
try:
    with beside(begin, work) as there:
        raise KeyError("meanwhile")
except KeyError as error:
    print(error)
os.getloadavg = lambda: (2.1, 0.0, 0.0)
with beside(begin, work) as there:
    assert there("do")()[0] == here
"""


def test_a_forked_process_prepares_for_what_it_is_to_do() -> None:
    done = subprocess.run(
        [sys.executable, "-c", BESIDE], capture_output=True, text=True, timeout=60
    )
    assert (done.stdout, done.stderr) == ("plots: no space left\n'meanwhile'\n", "")


def test_forked_processes_do_what_cannot_be_sent_to_others() -> None:
    done = subprocess.run(
        [sys.executable, "-c", ALONE], capture_output=True, text=True, timeout=60
    )
    assert (done.stdout, done.stderr) == ("28 plots/7\n", "")


def test_beside_other_threads_nothing_is_forked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    monkeypatch.setattr(os, "getloadavg", lambda: (0.0, 0.0, 0.0))
    over = threading.Event()
    other = threading.Thread(target=over.wait, args=(60,))
    other.start()
    try:
        assert in_forks(lambda number: (number, os.getpid()), 2) == [
            (0, os.getpid()),
            (1, os.getpid()),
        ]
    finally:
        over.set()
        other.join(10)


HEEDED = """
import os, signal, threading
from concurrent.futures import Future
from ringlight.experiments.cli.app import heed_signals
from ringlight.experiments.runner.executors import result_of
heed_signals()
def send():
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
    os.kill(os.getpid(), signal.SIGTERM)
# Another thread gets it, so nothing interrupts this one's wait, as if it had come just before the wait began.
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
threading.Timer(0.2, send).start()
result_of(Future())
"""


def test_a_wait_heeds_a_signal_that_did_not_interrupt_it() -> None:
    done = subprocess.run(
        [sys.executable, "-c", HEEDED], capture_output=True, text=True, timeout=20
    )
    assert done.returncode == 1
    assert "Interrupted" in done.stderr


ENDED = """
import os, sys, time
from ringlight.experiments.cli.app import heed_signals
from ringlight.experiments.runner.executors import in_forks, processes, result_of
os.sched_getaffinity = lambda _: {0, 1}
os.getloadavg = lambda: (1.0, 0.0, 0.0)
heed_signals()
def sleep(number):
    # At once: other processes write to the same pipe.
    os.write(1, f"{os.getpid()}\\n".encode())
    time.sleep(100)
if sys.argv[1] == "forks":
    in_forks(sleep, 4)
else:
    with processes(2) as executor:
        print(executor.submit(os.getpid).result(), flush=True)
        print(executor.submit(os.getpid).result(), flush=True)
        result_of(executor.submit(time.sleep, 100))
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
@pytest.mark.parametrize("how", ["forks", "processes"])
def test_a_signal_ends_the_processes_too_and_at_once(
    how: str, number: signal.Signals
) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", ENDED, how],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as command:
        assert command.stdout is not None
        workers = [int(command.stdout.readline()) for _ in range(2)]
        command.send_signal(number)
        _, err = command.communicate(timeout=30)
    assert command.returncode != 0
    assert "Interrupted" in err
    for pid in workers:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
