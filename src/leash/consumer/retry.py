"""What becomes of a message that failed: a later try, the dead queue, the dead-letter exchange, or nothing.

A later try is a copy in `leash.retry.<queue>.<ms>`, whose time to live sends it back to its queue. The copy
is confirmed before the original is acked, so a crash between the two repeats a message and never loses it.
How often it failed is in the copy's header, and nowhere else.
"""

from __future__ import annotations

import copy
import logging
import struct
import traceback

from leash.amqp import Outgoing, Properties, decode_properties, encode_properties, with_headers
from leash.amqp.connection import Connection
from leash.amqp.topology import declare_queue, declare_queues, state
from leash.consumer.message import EXCHANGE, ROUTING_KEY, TRIES, Message
from leash.consumer.settings import OnExhausted, Queue, Retry
from leash.errors import (
    AccessRefused,
    AmqpError,
    ChannelError,
    ConfigError,
    PreconditionFailed,
    ProtocolError,
)

log = logging.getLogger("leash.consumer")

ERROR, TRACE, FROM = "x-leash-error", "x-leash-traceback", "x-leash-queue"
_TRACE_MOST = 4000
_SPARE = 1000  # of a frame, for what is around the properties
_EXPIRATION, _USER_ID = 0x0100, 0x10  # the property flags


def retry_queue(name: str, wait: int) -> str:
    return f"leash.retry.{name}.{wait}"


def dead_queue(name: str) -> str:
    return f"leash.dead.{name}"


def declare(connection: Connection, specs: list[Queue], retry: Retry, on_exhausted: OnExhausted) -> None:
    """The queues that failed messages go to. Existing ones are used as they are."""
    wanted = [
        (spec, name, arguments)
        for spec in specs
        for name, arguments in _wanted(spec, retry, on_exhausted).items()
    ]
    try:
        with connection.channel() as channel:
            declare_queues(channel, [(name, spec.kind, arguments) for spec, name, arguments in wanted])
    except ChannelError:  # one was refused, and all after it were not looked at
        for spec, name, arguments in wanted:
            _declare(connection, spec, name, arguments)


def _wanted(spec: Queue, retry: Retry, on_exhausted: OnExhausted) -> dict[str, dict[str, object]]:
    wanted: dict[str, dict[str, object]] = {}
    if not spec.ordered:
        for wait in retry.waits():
            if wait:
                wanted[retry_queue(spec.name, wait)] = _retry_arguments(spec, wait)
    if on_exhausted == "park":
        wanted[dead_queue(spec.name)] = {}
    for name in wanted:
        if len(name.encode()) > 255:
            raise ConfigError("queue", spec.name, f"shorter: {name!r} would have more than 255 bytes")
    return wanted


def _retry_arguments(spec: Queue, wait: int) -> dict[str, object]:
    arguments: dict[str, object] = {
        "x-message-ttl": wait,
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": spec.name,
    }
    if spec.kind == "quorum":  # else a message that expires while its queue cannot take it is lost
        arguments |= {"x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish"}
    return arguments


def _declare(connection: Connection, spec: Queue, name: str, arguments: dict[str, object]) -> None:
    try:
        with connection.channel() as channel:
            declare_queue(channel, name, kind=spec.kind, arguments=arguments)
        return
    except PreconditionFailed:
        log.info("event=queue_kept queue=%r reason=%r", name, "it exists with other arguments")
        return
    except AccessRefused as error:
        refused = error
    try:
        with connection.channel() as channel:
            state(channel, name)
    except AmqpError:
        raise ConfigError(
            "retry",
            name,
            f"a queue that exists, or a user with the configure permission for it ({refused.text})",
        ) from refused


def later(message: Message, wait: int) -> Outgoing | None:
    """The copy that comes again after `wait` ms; None: its headers fill a frame, and ours do not fit in."""
    target = retry_queue(message.queue, wait) if wait else message.queue
    properties = _properties(message._raw_properties, _address(message))
    if len(properties) > _room(message):
        return None
    return Outgoing(message.body, "", target, properties, mandatory=True)


def parked(message: Message, error: BaseException) -> Outgoing:
    """The copy for the dead queue, with what went wrong and where it was published."""
    why = {ERROR: _shown(error), TRACE: _traced(error), FROM: message.queue}
    for kept in (why, {**why, TRACE: None}):
        properties = _properties(message._raw_properties, {**_address(message), **kept})
        if len(properties) <= _room(message):
            break
    else:  # its own headers fill a frame: save the body
        properties = _bare({**_address(message), **why})
    return Outgoing(message.body, "", dead_queue(message.queue), properties, mandatory=True)


def _address(message: Message) -> dict[str, object]:
    return {
        TRIES: message.tries + 1,
        EXCHANGE: message.exchange,
        ROUTING_KEY: message.routing_key,
        "CC": None,  # it would send copies to all those queues again
    }


def _room(message: Message) -> int:
    """AMQP carries all properties in one frame."""
    return message._link.channel.connection.frame_max - _SPARE


def _shown(error: BaseException) -> str:
    try:
        text = f"{type(error).__name__}: {error}"
    except Exception:  # its own __str__ may fail
        text = type(error).__name__
    return _cut(text)


def _traced(error: BaseException) -> str:
    return _cut("".join(traceback.format_exception(error))[-_TRACE_MOST:])


def _cut(text: str) -> str:
    """What any header can hold, and no more of it than is useful."""
    return text.encode("utf-8", "backslashreplace")[:_TRACE_MOST].decode("utf-8", "ignore")


def _properties(raw: bytes, headers: dict[str, object]) -> bytes:
    """The message's own, but for what would make the broker refuse the copy (the publisher's name) or drop it
    from the queue that it is to wait in (a time to live).
    """
    try:
        if raw[0] << 8 & _EXPIRATION or raw[1] & _USER_ID:
            found = copy.copy(decode_properties(raw))
            found.expiration = found.user_id = None
            raw = encode_properties(found)
        return with_headers(raw, headers)
    except (ProtocolError, ValueError, IndexError, struct.error):  # malformed as it came: save the body
        return _bare(headers)


def _bare(headers: dict[str, object]) -> bytes:
    kept = {name: value for name, value in headers.items() if value is not None}
    return encode_properties(Properties(headers=kept, delivery_mode=2))  # type: ignore[arg-type]
