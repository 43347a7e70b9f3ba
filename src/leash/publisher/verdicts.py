"""What an answer of the broker means for the messages that are on their way."""

from __future__ import annotations

import re

from leash.amqp import Outgoing
from leash.errors import AmqpError, ChannelError, ConnectionLost, Nacked, Unroutable
from leash.publisher.sent import Sent

_FORCED = 320  # an operator closed the connection, or the node is stopping: nobody's message did it


def is_somebodys_fault(error: AmqpError) -> bool:
    """True if a channel or a connection was closed because of a message."""
    if isinstance(error, ConnectionLost):
        code = re.search(r"the broker closed: .*\((\d+)\)$", str(error), re.DOTALL)
        return code is not None and int(code[1]) != _FORCED
    return isinstance(error, ChannelError)


def culprits(pending: list[Sent], error: AmqpError) -> list[Sent]:
    """Of the unconfirmed ones, those that it was closed for, if that can be told."""
    if not is_somebodys_fault(error):
        return []
    if len(pending) == 1:
        return pending
    if isinstance(error, ChannelError) and error.code in (403, 404) and " topic " not in error.text:
        return [each for each in pending if f"exchange '{each.message[1] or 'amq.default'}'" in error.text]
    return []


def nacked(sent: Sent) -> Nacked:
    why = "a queue is full, or cannot store it"
    text = f"the broker refused message {sent.message_id} for {_address(sent)}: {why}"
    error = Nacked(text, [Outgoing(*sent.message)])
    error.in_doubt = sent.resent  # it may have been taken the first time
    return error


def unroutable(sent: Sent, text: str) -> Unroutable:
    why = f"no queue for message {sent.message_id}: {_address(sent)} ({text})"
    error = Unroutable(why, [Outgoing(*sent.message)])
    error.in_doubt = sent.resent
    return error


def _address(sent: Sent) -> str:
    _, exchange, key, *_ = sent.message
    return f"routing key {key!r} on exchange {exchange!r}" if exchange else f"queue {key!r}"
