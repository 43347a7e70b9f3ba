"""The line by itself: no broker, and no thread but one that waits for room."""

from __future__ import annotations

import threading

import pytest

from leash.amqp import Outgoing, Properties, encode_properties
from leash.errors import ConnectionLost, LeashError, NotSent, PreconditionFailed, Rejected
from leash.publisher.sent import OVER, Message, Sent
from leash.publisher.unconfirmed import Line
from leash.publisher.verdicts import nacked, unroutable
from tests.waiting import until

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


def written(line: Line, *sent: Sent) -> int:
    """They were written on a new channel; returns its number."""
    epoch = line.opened()
    line.put(list(sent), 0)
    assert line.number(line.take(), epoch)
    return epoch


def written_again(line: Line) -> int:
    epoch = line.opened()
    assert line.number(line.take(), epoch)
    return epoch


def test_a_message_that_was_given_up_takes_the_blame_for_what_it_does(line: Line) -> None:
    bad, good = Sent(line, MESSAGE, "1"), Sent(line, MESSAGE, "2")
    epoch = written(line, bad, good)
    line.give_up(bad, None)
    line.lost(epoch, PreconditionFailed(406, "invalid expiration"))
    assert not good.done()
    line.confirm(written_again(line), 1, False, True)
    assert good.receipt().resent


@pytest.mark.parametrize("answer", ["nack", "return"])
def test_a_message_that_is_refused_when_it_is_sent_again_may_be_there_from_the_first_time(
    line: Line, answer: str
) -> None:
    properties = encode_properties(Properties(message_id="1"))
    sent = Sent(line, (b"x", "", "q", properties, True), "1")
    line.lost(written(line, sent), ConnectionLost("cut"))
    epoch = written_again(line)
    if answer == "return":
        line.returned(epoch, Outgoing(b"x", "", "q"), properties, "NO_ROUTE")
    else:
        line.confirm(epoch, 1, False, False)
    assert isinstance(sent.error, Rejected)
    assert sent.error.in_doubt


def test_a_message_that_found_no_room_was_never_one_of_those_on_their_way() -> None:
    line = Line(1, 1000, True)
    first, late, waiting = (Sent(line, MESSAGE, str(number)) for number in range(3))
    line.put([first], 0)
    assert not line.put([late], 0)
    line.give_up(late, 1.0)
    assert line.count == 1
    thread = threading.Thread(target=line.put, args=([waiting], None))
    thread.start()
    until(lambda: line._short)
    line.give_up(waiting, 1.0)
    thread.join()
    assert line.count == 1
    line.give_up(first, 1.0)
    assert line.count == 0
    assert line.idle()


def test_what_is_about_to_be_written_when_the_line_is_closed_is_given_up(line: Line) -> None:
    sent = Sent(line, MESSAGE, "1")
    epoch = line.opened()
    line.put([sent], 0)
    lot = line.take()
    line.close()
    assert not line.number(lot, epoch)
    assert isinstance(sent.error, NotSent)
    assert line.count == 0
