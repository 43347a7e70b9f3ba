"""The copies of failed messages: for a later try, the dead queue, limbo or a dead-letter exchange.

A message waits for its next try as a copy in `leash.retry.<queue>.<ms>`, whose time to live sends it back to
its queue. The copy is confirmed before the original is acked, so a crash between the two repeats a message
and never loses it. Only the copy's header says how often the message failed.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Container
from typing import NamedTuple

from leash.amqp import Outgoing, Properties, encode_properties, with_headers
from leash.amqp.connection import Connection
from leash.amqp.delivery_limit import COUNTS, RESCUED, limbo_arguments, limbo_queue, rescues
from leash.amqp.topology import declare_queue, declare_queues, state
from leash.consumer.message import EXCHANGE, ROUTING_KEY, TRIES, Message
from leash.consumer.retry import Retry
from leash.consumer.settings import OnExhausted, Queue
from leash.errors import (
    AccessRefused,
    AmqpError,
    ChannelError,
    ConfigError,
    PreconditionFailed,
    ProtocolError,
)
from leash.logfmt import logger

log = logger("leash.consumer")

ERROR, TRACE, FROM = "x-leash-error", "x-leash-traceback", "x-leash-queue"
_TRACE_MOST = 4000
_DEATHS = dict.fromkeys(
    ["x-death"]
    + [f"x-{which}-death-{what}" for which in ("first", "last") for what in ("reason", "queue", "exchange")]
)
"""Removed from a copy that waits for its next try: the broker drops messages that seem to go in circles."""
_AROUND = 20  # bytes of a frame that are not properties
_SPARE = 1000  # bytes of a frame, for that and for what the broker adds


def retry_queue(name: str, wait: int) -> str:
    return f"leash.retry.{name}.{wait}"


def dead_queue(name: str) -> str:
    return f"leash.dead.{name}"


class Wanted(NamedTuple):
    """A queue that copies go to."""

    name: str
    kind: str
    arguments: dict[str, object]


def declare(connection: Connection, wanted: list[Wanted], spare: Container[str] = ()) -> set[str]:
    """Declare the queues that copies go to. Existing ones are used as they are. Returns those of the `spare`
    ones that cannot be declared; any other failure is an error.
    """
    missing = set()
    try:
        with connection.channel() as channel:
            declare_queues(channel, wanted)
    except ChannelError:  # one was refused, and those after it were not tried
        for queue in wanted:
            try:
                _declare(connection, queue)
            except ConfigError as error:
                if queue.name not in spare:
                    raise
                log.warning("event=no_limbo queue=%r reason=%r", queue.name, str(error))
                missing.add(queue.name)
    return missing


def wanted(spec: Queue, kind: str, retry: Retry, on_exhausted: OnExhausted) -> list[Wanted]:
    """The queues for failed messages of a queue of this kind."""
    queues = []
    if not spec.in_place:
        queues += [Wanted(*_waiting(spec.name, wait)) for wait in retry.waits() if wait]
    if on_exhausted == "park":
        queues.append(dead(spec, kind))
    for queue in queues:
        if len(queue.name.encode()) > 255:
            raise ConfigError("queue", spec.name, f"shorter: {queue.name!r} would have more than 255 bytes")
    return queues


def dead(spec: Queue, kind: str) -> Wanted:
    return Wanted(dead_queue(spec.name), kind if spec.kind == "auto" else spec.kind, {})


def limbo(spec: Queue, version: tuple[int, ...]) -> Wanted:
    return Wanted(limbo_queue(spec.name), "quorum", limbo_arguments(version))


def _waiting(name: str, wait: int) -> tuple[str, str, dict[str, object]]:
    """A retry queue is always a quorum queue: a classic one loses what expires while its target is full or
    unavailable."""
    return (
        retry_queue(name, wait),
        "quorum",
        {
            "x-message-ttl": wait,
            "x-dead-letter-exchange": "",
            "x-dead-letter-routing-key": name,
            "x-dead-letter-strategy": "at-least-once",
            "x-overflow": "reject-publish",
        },
    )


def _declare(connection: Connection, queue: Wanted) -> None:
    name = queue.name
    try:
        with connection.channel() as channel:
            declare_queue(channel, name, kind=queue.kind, arguments=queue.arguments)
        return
    except PreconditionFailed as error:
        if (
            "inequivalent" not in error.text
        ):  # for example a limit of the virtual host: then the queue does not exist
            raise ConfigError("retry", name, f"a queue that can be declared ({error.text})") from error
        lossy = queue.arguments and "x-queue-type" in error.text
        why = "it exists with other arguments"
        if lossy:
            why += "; as a classic queue it loses messages while its target is full or unavailable"
        log.log(logging.WARNING if lossy else logging.INFO, "event=queue_kept queue=%r reason=%r", name, why)
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


def later(message: Message, wait: int, failed: bool = True) -> Outgoing | None:
    """The copy that is redelivered after `wait` ms; None: ours do not fit into the frame of its headers.
    `failed`: that is one more try.
    """
    target = retry_queue(message.queue, wait) if wait else message.queue
    headers = {**_address(message), **_DEATHS, TRIES: message.tries + failed}
    properties = _properties(message.raw_properties, headers)
    if len(properties) > _room(message):
        return None
    return Outgoing(message.body, "", target, properties, mandatory=True)


def rescued(message: Message, target: str) -> Outgoing:
    """The copy of a message that was redelivered too often, or requeued from limbo: it has not failed."""
    raw = message.raw_properties
    headers = {**_address(message), TRIES: message.tries, RESCUED: rescues(raw) + 1}
    bare = {**dict.fromkeys(headers), **_DEATHS}  # as it was published, without the broker's additions
    flag = {TRIES: headers[TRIES], RESCUED: headers[RESCUED]}
    for changes, spare in ((headers, _SPARE), ({**bare, **flag}, _AROUND), (bare, 0)):
        properties = _properties(raw, changes)
        if len(properties) <= _room(message, spare):
            break
    return Outgoing(message.body, "", target, properties, mandatory=True)


def dead_lettered(message: Message, exchange: str, key: str) -> Outgoing:
    """The copy for a queue's own dead-letter exchange, which may have no queue for it, as usual."""
    headers = {**dict.fromkeys(_address(message)), RESCUED: None}
    properties = _properties(message.raw_properties, headers)
    return Outgoing(message.body, exchange, key, properties, mandatory=False)


def parked(message: Message, error: BaseException) -> Outgoing:
    """The copy for the dead queue, with the error and where the message was published."""
    why = {ERROR: shown(error), TRACE: _traced(error), FROM: message.queue}
    for kept in (why, {**why, TRACE: None}):
        properties = _properties(message.raw_properties, {**_address(message), **kept})
        if len(properties) <= _room(message):
            break
    else:  # its own headers fill a frame: keep only the body
        properties = _bare({**_address(message), **why})
    return Outgoing(message.body, "", dead_queue(message.queue), properties, mandatory=True)


def _address(message: Message) -> dict[str, object]:
    return {
        TRIES: message.tries + 1,
        EXCHANGE: message.exchange,
        ROUTING_KEY: message.routing_key,
        "CC": None,  # it would send copies to all those queues again
        "BCC": None,
        **dict.fromkeys(COUNTS),
    }


def _room(message: Message, spare: int = _SPARE) -> int:
    """The bytes left for headers: AMQP carries all properties in one frame."""
    return message.link.frame_max - spare


def shown(error: BaseException) -> str:
    try:
        text = f"{type(error).__name__}: {error}"
    except Exception:  # its own __str__ may fail
        text = type(error).__name__
    return _cut(text)


def _traced(error: BaseException) -> str:
    return _cut("".join(traceback.format_exception(error))[-_TRACE_MOST:])


def _cut(text: str) -> str:
    """Text that fits into any header, cut to a useful length."""
    return text.encode("utf-8", "backslashreplace")[:_TRACE_MOST].decode("utf-8", "ignore")


def _properties(raw: bytes, headers: dict[str, object]) -> bytes:
    """The message's own properties, without the publisher's name, for which the broker would refuse the copy,
    and without a time to live, for which it would drop the copy while it waits.
    """
    try:
        return with_headers(raw, headers, without=("expiration", "user_id"))
    except ProtocolError:  # the original is malformed: keep only the body
        return _bare(headers)


def _bare(headers: dict[str, object]) -> bytes:
    kept = {name: value for name, value in headers.items() if value is not None}
    return encode_properties(Properties(headers=kept, delivery_mode=2))  # type: ignore[arg-type]
