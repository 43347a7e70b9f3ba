"""Finds out a queue's type and arguments. AMQP has no request for that, but an error message tells.

An existing queue is declared with other arguments, which changes nothing: the broker refuses, and names the
first argument that differs and its value. Asked again with that one corrected, it names the next, until only
an argument is left that no queue can have. That argument also keeps the broker from creating a missing
queue. It hides those that the broker compares after it, so a quorum queue is then asked with another one,
which the broker refuses for a new queue and does not compare for an existing one.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterable
from dataclasses import dataclass, field
from typing import Any

from pamqp import commands

from leash.amqp import topology
from leash.amqp.channel import REPLY_TIMEOUT, Channel, Reply
from leash.amqp.connection import Connection
from leash.errors import AccessRefused, ChannelError, NotFound, PreconditionFailed, ResourceLocked

_IMPOSSIBLE = {"x-queue-leader-locator": "leash"}
_LATER = {"x-max-age": "leash"}
_DIFFERS = re.compile(
    r"inequivalent arg '([^']+)' .* but current is (?:the value '(.*)' of type '(\w+)'|'(\w+)'|none)"
)
_DELAYS_FROM = (4, 3)
_MOST = 30  # arguments a queue can have
_AT_ONCE = 128  # queues asked together, each on a channel


@dataclass(slots=True)
class Traits:
    """The type and arguments of an existing queue."""

    kind: str = "classic"
    durable: bool = True
    auto_delete: bool = False
    arguments: dict[str, Any] = field(default_factory=dict)

    @property
    def single_active(self) -> bool:
        return bool(self.arguments.get("x-single-active-consumer"))

    @property
    def delays(self) -> bool:
        """True if it delays a message that is rejected to it, by itself."""
        return self.arguments.get("x-delayed-retry-type") in ("failed", "all") and self._delay > 0

    @property
    def overtakes(self) -> bool:
        """True if messages overtake one that was returned, which the queue keeps back for a while."""
        kinds = ("failed", "returned", "all")  # a lost connection counts as failed
        return self.arguments.get("x-delayed-retry-type") in kinds and self._delay > 0

    @property
    def _delay(self) -> int:
        least = self.arguments.get("x-delayed-retry-min")
        return least if isinstance(least, int) else 0


def traits(connection: Connection, queue: str) -> Traits | None:
    """The traits of a queue; None if this user may not ask. NotFound if there is no such queue."""
    told = traits_of(connection, [queue])[queue]
    if isinstance(told, NotFound):
        raise told
    return told


def traits_of(connection: Connection, queues: Iterable[str]) -> dict[str, Traits | NotFound | None]:
    """The same for many queues, which are asked together."""
    told: dict[str, Traits | NotFound | None] = {}
    left = list(queues)
    while left:
        count = max(1, min(_AT_ONCE, connection.free // 2))
        now, left = left[:count], left[count:]
        open_ = [_Talk(queue, _inquire(queue, connection.version)) for queue in now]
        spare: list[Channel] = []
        while open_:
            with connection.together():
                asked = [talk.ask(spare.pop() if spare else connection.channel(wait=False)) for talk in open_]
            for talk, reply in zip(open_, asked, strict=True):
                if not talk.hear(reply):
                    spare.append(reply.channel)
            told |= {talk.queue: talk.told for talk in open_ if talk.done}
            open_ = [talk for talk in open_ if not talk.done]
        for channel in spare:
            channel.close()
    return told


_Inquiry = Generator[commands.Queue.Declare, ChannelError | None, Traits | None]


class _Talk:
    """The questions to one queue, one after the other."""

    def __init__(self, queue: str, inquiry: _Inquiry) -> None:
        self.queue = queue
        self.told: Traits | NotFound | None = None
        self.done = False
        self._inquiry = inquiry
        self._next = next(inquiry)

    def ask(self, channel: Channel) -> Reply:
        return channel.ask(self._next, commands.Queue.DeclareOk)

    def hear(self, reply: Reply) -> bool:
        """Take the answer; True if it ended the channel."""
        error: ChannelError | None = None
        try:
            reply(REPLY_TIMEOUT)
        except ChannelError as caught:
            error = caught
        try:
            self._next = self._inquiry.send(error)
        except StopIteration as stop:
            self.told, self.done = stop.value, True
        except NotFound as missing:
            self.told, self.done = missing, True
        return error is not None


def _inquire(queue: str, version: tuple[int, ...]) -> _Inquiry:
    """What to ask about a queue, answer by answer: an error, or None for a declare-ok."""
    guess = Traits()
    unclear = False
    impossible = _IMPOSSIBLE
    for _ in range(_MOST):
        arguments = {**guess.arguments, **impossible}
        error = yield topology.declaration(
            queue, guess.kind, arguments, guess.durable, auto_delete=guess.auto_delete
        )
        if error is None:
            return (
                guess  # none is left; or 3.10, which does not compare the impossible one for classic queues
            )
        if isinstance(error, PreconditionFailed):
            differs = _DIFFERS.search(error.text)
            if differs is None:
                yield from _look(queue)
                if unclear:
                    return None
                unclear = True  # once is not enough: the queue may have been declared just now
            elif not _correct(guess, *differs.groups()):
                if guess.kind != "quorum" or version < _DELAYS_FROM:
                    return guess
                impossible = _LATER
        elif isinstance(error, AccessRefused | ResourceLocked):
            yield from _look(queue)
            return None
        else:
            raise error
    return None


def _correct(guess: Traits, name: str, value: str | None, kind: str | None, word: str | None) -> bool:
    """Correct one trait as the broker says. False: all are right."""
    if name in _IMPOSSIBLE:
        if value is not None and kind is not None:
            guess.arguments[name] = _value(value, kind)
        return False
    if name == "x-queue-type":
        guess.kind = word or value or "classic"
    elif name == "durable":
        guess.durable = word == "true"
    elif name == "auto_delete":
        guess.auto_delete = word == "true"
    elif value is None or kind is None:
        guess.arguments.pop(name, None)
    else:
        guess.arguments[name] = _value(value, kind)
    return True


def _look(queue: str) -> Generator[commands.Queue.Declare, ChannelError | None, None]:
    """Raises NotFound if that is why nothing was learnt."""
    error = yield topology.passive(queue)
    if error is not None and not isinstance(error, AccessRefused | ResourceLocked):
        raise error


def _value(text: str, kind: str) -> Any:
    if kind == "bool":
        return text == "true"
    return text if kind == "longstr" else int(text)
