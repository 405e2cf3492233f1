"""Signals that end a command: when they are an exception, and what that leaves."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from typing import Literal

import pytest

from ringlight.experiments.cli.app import heed_signals
from ringlight.experiments.cli.common import Interrupted


@pytest.fixture(autouse=True)
def heeded() -> Iterator[None]:
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.getsignal(number) for number in numbers}
    heed_signals()
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


class Lock:
    """A lock with methods in Python, as httpcore's are; a signal comes in one of them."""

    def __init__(self, within: Literal["__enter__", "__exit__"]) -> None:
        self.lock, self._within = threading.Lock(), within

    def __enter__(self) -> None:
        self.lock.acquire()
        if self._within == "__enter__":
            os.kill(os.getpid(), signal.SIGINT)

    def __exit__(self, *_: object) -> None:
        if self._within == "__exit__":
            os.kill(os.getpid(), signal.SIGINT)
        self.lock.release()


def take_and_wait(taken: Lock) -> None:
    with taken:
        pass
    time.sleep(10)


@pytest.mark.parametrize("within", ["__enter__", "__exit__"])
def test_an_interrupt_while_a_lock_is_taken_or_given_back_does_not_keep_it_taken(
    within: Literal["__enter__", "__exit__"],
) -> None:
    taken = Lock(within)
    with pytest.raises(Interrupted):
        take_and_wait(taken)
    assert not taken.lock.locked()


class Forgotten:
    def __del__(self) -> None:
        os.kill(os.getpid(), signal.SIGINT)


def forget_and_wait(kept: list[Forgotten]) -> None:
    kept.clear()
    time.sleep(10)


@pytest.mark.filterwarnings(
    "error", "ignore:unclosed:ResourceWarning"
)  # earlier tests left them
def test_an_interrupt_while_an_object_is_forgotten_is_not_forgotten() -> None:
    kept = [Forgotten()]
    with pytest.raises(Interrupted):
        forget_and_wait(kept)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupt_elsewhere_is_one_at_once(number: signal.Signals) -> None:
    with pytest.raises(Interrupted) as raised:
        os.kill(os.getpid(), number)
    assert raised.value.number == number


def test_one_that_waits_is_ignored_where_meanwhile_all_are() -> None:
    with Lock("__enter__"):
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        time.sleep(0.2)
