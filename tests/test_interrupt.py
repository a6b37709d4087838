"""Ctrl-C during a fit."""

import os
import signal
import threading

import pytest

from dmvi._interrupt import Interrupt


def ctrl_c():
    os.kill(os.getpid(), signal.SIGINT)


def test_the_first_asks_and_the_second_raises():
    before = signal.getsignal(signal.SIGINT)
    with Interrupt() as stop:
        assert not stop.asked
        ctrl_c()
        assert (stop.asked, stop.twice) == (True, False)
        with pytest.raises(KeyboardInterrupt):
            ctrl_c()
        assert stop.twice
    assert signal.getsignal(signal.SIGINT) is before


def test_the_first_raises_where_nothing_asks():
    with Interrupt() as stop:
        with pytest.raises(KeyboardInterrupt), stop.at_once():
            ctrl_c()
        assert (stop.asked, stop.twice) == (True, False)


def test_after_its_end_ctrl_c_is_what_it_was():
    with Interrupt() as stop:
        pass
    with pytest.raises(KeyboardInterrupt):
        ctrl_c()
    assert not stop.asked


def test_other_threads_and_ignored_signals_are_left_alone():
    found = []

    def work():
        before = signal.getsignal(signal.SIGINT)
        with Interrupt() as stop:
            found.append(signal.getsignal(signal.SIGINT) is before and not stop.asked)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [True]
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with Interrupt() as stop:
            ctrl_c()
        assert not stop.asked
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_second_one_within_a_host_function_is_an_interruption_all_the_same():
    """A program that calls back turns what is raised there into an error of its own."""

    def pressed_twice():
        with Interrupt():
            ctrl_c()
            try:
                ctrl_c()
            except KeyboardInterrupt as pressed:
                raise RuntimeError("the callback failed") from pressed

    with pytest.raises(KeyboardInterrupt):
        pressed_twice()
