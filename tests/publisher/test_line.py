"""The line by itself: no broker, no threads."""

from __future__ import annotations

import pytest

from leash.amqp import Outgoing
from leash.errors import LeashError, NotSent
from leash.publisher.sent import OVER, Message, Sent
from leash.publisher.unconfirmed import Line
from leash.publisher.verdicts import nacked, unroutable

MESSAGE: Message = (b"x", "", "q", b"\x00\x00", True)


class Watched(Sent):
    """Remembers what a thread would see that looks without the lock."""

    __slots__ = ("_state", "told")

    @property
    def state(self) -> int:
        return self._state

    @state.setter
    def state(self, state: int) -> None:
        self._state = state
        if state == OVER:
            self.told = self.error


@pytest.fixture
def line() -> Line:
    return Line(10, 1000, True)


def test_a_message_that_failed_never_looks_confirmed(line: Line) -> None:
    sent = Watched(line, MESSAGE, "1")
    line.put([sent], 0)
    why = NotSent("no way")
    line.fail([sent], why)
    assert sent.told is why


def test_a_message_of_the_parent_never_looks_confirmed_in_the_child(line: Line) -> None:
    sent = Watched(line, MESSAGE, "1")
    line.put([sent], 0)
    line.disown()
    assert sent.told is not None


def test_errors_carry_messages_as_users_know_them(line: Line) -> None:
    sent = Sent(line, MESSAGE, "1")
    for error in (nacked(sent), unroutable(sent, "NO_ROUTE")):
        assert isinstance(error, LeashError)
        (message,) = error.messages
        assert isinstance(message, Outgoing)
        assert message.routing_key == "q"
