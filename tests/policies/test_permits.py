"""Permits in hand: what expires, what is asked for, what is owed. Time is 0, 1, 2."""

from __future__ import annotations

from leash.policies.permits import AHEAD, NEVER, Permits


def test_permits_are_void_when_their_time_is_over() -> None:
    permits = Permits()
    permits.grant(0, 3, until=2)
    assert permits.available(1) == 3
    assert permits.take(1, 2) == 2
    assert permits.available(2) == 0
    assert (permits.taken, permits.void) == (2, 1)


def test_permits_that_come_too_late_are_never_there() -> None:
    permits = Permits()
    permits.grant(5, 3, until=5)
    assert permits.available(5) == 0
    assert permits.void == 3


def test_the_first_to_expire_are_used_first_and_bind_all() -> None:
    permits = Permits()
    permits.grant(0, 1, until=5)
    permits.grant(0, 2, until=9)
    assert permits.take(1, 2) == 5
    assert permits.take(1, 1) == 9


def test_what_was_not_used_is_there_again_but_not_for_longer() -> None:
    permits = Permits()
    permits.grant(0, 2, until=5)
    permits.untake(1, 1, permits.take(1, 2))
    assert permits.available(4) == 1
    permits.untake(6, 1, 5)
    assert permits.available(6) == 0
    assert permits.taken == 0


def test_what_is_missing_is_asked_for_and_no_more() -> None:
    permits = Permits()
    assert permits.wants(0, 5) == 5
    permits.grant(1, 3, until=9)
    assert permits.wants(1, 5) == 2
    assert permits.wants(2, 0) == 0
    assert permits.waited == 2


def test_a_fast_user_gets_as_many_at_a_time_as_it_used_lately() -> None:
    permits = Permits()
    permits.grant(0, 40, until=NEVER)
    permits.take(0, 40)
    assert permits.wants(1, 1) == 40
    assert permits.wants(3 * AHEAD, 1) == 1


def test_a_debt_is_paid_before_anything_is_used() -> None:
    permits = Permits()
    permits.debt = 4
    assert permits.wants(0, 1) == 5
    permits.grant(0, 3, until=9)
    assert permits.available(0) == 0
    permits.grant(0, 3, until=9)
    assert permits.debt == 0
    assert permits.available(0) == 2


def test_leave_to_be_at_work_comes_back_once_however_the_work_ends() -> None:
    permits = Permits(held=True)
    permits.grant(0, 3, until=5)
    permits.take(0, 2)
    assert permits.at_work == 2
    permits.release(1)
    permits.untake(1, 1, until=5)
    assert (permits.at_work, permits.spent) == (0, 1)
    assert permits.available(5) == 0  # not begun in time: they go back, too
    assert permits.spent == 3
