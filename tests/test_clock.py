"""The seconds of one fit, told by a clock that tests move."""

import math

import pytest

from dmvi._clock import Clock


class Hands:
    """A clock whose hands a test moves."""

    def __init__(self, at=100.0):
        self.at = at

    def __call__(self):
        return self.at


def test_seconds_begin_with_the_clock():
    hands = Hands()
    clock = Clock(10.0, hands)
    hands.at += 4.0
    assert (clock.seconds, clock.left, clock.over) == (4.0, 6.0, False)
    hands.at += 6.0
    assert (clock.seconds, clock.left, clock.over) == (10.0, 0.0, True)
    hands.at += 1.0
    assert clock.left == 0.0


def test_an_interrupted_run_has_used_its_seconds():
    hands = Hands()
    clock = Clock(10.0, hands, used=7.0)
    assert (clock.seconds, clock.left) == (7.0, 3.0)
    assert (clock.after(1.0).seconds, clock.after(1.0).left) == (8.0, 2.0)


def test_without_a_limit_nothing_is_ever_over():
    hands = Hands()
    clock = Clock(None, hands)
    hands.at += 1e9
    assert clock.left == clock.share(0.1) == clock.deadline == math.inf
    assert not clock.over
    assert not clock.limited


def test_a_share_is_of_what_is_left():
    hands = Hands()
    clock = Clock(10.0, hands)
    hands.at += 6.0
    assert clock.share(0.25) == 1.0


def test_a_part_of_the_fit_ends_by_itself_or_at_the_limit():
    hands = Hands()
    clock = Clock(10.0, hands)
    hands.at += 2.0
    assert (clock.within(3.0).left, clock.within(30.0).left) == (3.0, 8.0)
    assert Clock(None, hands).within(3.0).left == 3.0
    assert (clock.reserving(5.0).left, clock.reserving(50.0).left) == (3.0, 0.0)
    assert clock.reserving(5.0).seconds == clock.seconds


def test_the_deadline_is_a_time_of_the_same_clock():
    hands = Hands()
    clock = Clock(10.0, hands)
    hands.at += 3.0
    assert clock.deadline == pytest.approx(hands() + clock.left)
