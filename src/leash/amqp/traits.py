"""Finds out a queue's type and arguments. AMQP has no request for that, but an error message tells.

An existing queue is declared with other arguments, which changes nothing: the broker refuses, and names the
first argument that differs and its value. Asked again with that one corrected, it names the next, until only
an argument is left that no queue can have. That argument also keeps the broker from creating a missing
queue. It hides those that the broker compares after it, so a quorum queue is then asked with another one,
which the broker refuses for a new queue and does not compare for an existing one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from leash.amqp import topology
from leash.amqp.connection import Connection
from leash.errors import AccessRefused, PreconditionFailed, ResourceLocked

_IMPOSSIBLE = {"x-queue-leader-locator": "leash"}
_LATER = {"x-max-age": "leash"}
_DIFFERS = re.compile(
    r"inequivalent arg '([^']+)' .* but current is (?:the value '(.*)' of type '(\w+)'|'(\w+)'|none)"
)
_DELAYS_FROM = (4, 3)
_MOST = 30  # arguments a queue can have


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
    guess = Traits()
    unclear = False
    impossible = _IMPOSSIBLE
    for _ in range(_MOST):
        try:
            with connection.channel() as channel:
                topology.declare_queue(
                    channel,
                    queue,
                    kind=guess.kind,
                    durable=guess.durable,
                    auto_delete=guess.auto_delete,
                    arguments={**guess.arguments, **impossible},
                )
            return (
                guess  # none is left; or 3.10, which does not compare the impossible one for classic queues
            )
        except PreconditionFailed as error:
            differs = _DIFFERS.search(error.text)
            if differs is None:
                _look(connection, queue)
                if unclear:
                    return None
                unclear = True  # once is not enough: the queue may have been declared just now
            elif not _correct(guess, *differs.groups()):
                if guess.kind != "quorum" or connection.version < _DELAYS_FROM:
                    return guess
                impossible = _LATER
        except (AccessRefused, ResourceLocked):
            _look(connection, queue)
            return None
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


def _look(connection: Connection, queue: str) -> None:
    """Raises NotFound if that is why nothing was learnt."""
    try:
        with connection.channel() as channel:
            topology.state(channel, queue)
    except (AccessRefused, ResourceLocked):
        return


def _value(text: str, kind: str) -> Any:
    if kind == "bool":
        return text == "true"
    return text if kind == "longstr" else int(text)
