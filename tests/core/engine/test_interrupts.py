"""Ctrl-C takes effect between steps."""

from __future__ import annotations

import signal
import threading

import pytest

from baseboard.engine.interrupts import interrupts_held


def press() -> None:
    signal.raise_signal(signal.SIGINT)


def test_the_block_is_finished_first() -> None:
    done = []

    def work() -> None:
        with interrupts_held():
            press()
            done.append("all of it")
        done.append("nothing more")

    with pytest.raises(KeyboardInterrupt):
        work()
    assert done == ["all of it"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_pressed_twice_it_acts_at_once() -> None:
    done = []

    def work() -> None:
        with interrupts_held():
            press()
            done.append("half of it")
            press()
            done.append("the rest")

    with pytest.raises(KeyboardInterrupt):
        work()
    assert done == ["half of it"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_error_within_is_kept_as_the_context() -> None:
    def work() -> None:
        with interrupts_held():
            press()
            raise RuntimeError("as well")

    with pytest.raises(KeyboardInterrupt) as interrupted:
        work()
    assert isinstance(interrupted.value.__context__, RuntimeError)


def test_without_ctrl_c_nothing_happens() -> None:
    with interrupts_held():
        assert signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_handler_of_the_programs_own_is_left_alone() -> None:
    seen = []
    before = signal.signal(signal.SIGINT, lambda number, frame: seen.append(number))
    try:
        with interrupts_held():
            press()
            assert seen == [signal.SIGINT]
    finally:
        signal.signal(signal.SIGINT, before)


def test_in_another_thread_nothing_is_changed() -> None:
    handlers = []

    def work() -> None:
        with interrupts_held():
            handlers.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert handlers == [signal.default_int_handler]
