"""What is not confirmed, by counting."""

from __future__ import annotations

import sys
import threading

import numpy as np

from leash.streams.backlog import Backlog
from leash.streams.encoding import Rows, rows


def some(count: int) -> Rows:
    return rows([b"x"] * count, np.arange(1, count + 1, dtype=np.uint64))


def test_what_is_left_is_what_was_given_less_what_was_answered() -> None:
    backlog = Backlog()
    for count in (10, 20):
        backlog.append(some(count))
    for batch in backlog.batches():
        backlog.write(batch, len(batch.rows.ids))
    backlog.answer(12)
    assert (backlog.left, backlog.unanswered) == (18, 18)
    backlog.resume()
    assert (backlog.left, backlog.unanswered) == (18, 0)
    assert [batch.written for batch in backlog.batches()] == [2]
    backlog.answer(18)
    assert (backlog.left, backlog.batches()) == (0, [])


def test_it_is_looked_at_while_the_reader_answers() -> None:
    """`wait` looks without the lock that the reader's thread holds."""
    backlog = Backlog()
    one = some(1)
    done = threading.Event()

    def reader() -> None:
        for _ in range(3000):
            for _ in range(30):
                backlog.append(one)
            backlog.answer(30)
        done.set()

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threading.Thread(target=reader).start()
        while not done.is_set():
            assert backlog.left >= 0
    finally:
        sys.setswitchinterval(before)
