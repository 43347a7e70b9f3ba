"""Declares, inspects and deletes queues, exchanges and bindings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from pamqp import commands

from leash.amqp.channel import REPLY_TIMEOUT, Channel
from leash.amqp.wire import unchecked
from leash.errors import AccessRefused, ConfigError, NotFound, ResourceLocked

if TYPE_CHECKING:
    from leash.amqp.connection import Connection

_DeclareQueue, _DeleteQueue = unchecked(commands.Queue.Declare), unchecked(commands.Queue.Delete)
_PurgeQueue = unchecked(commands.Queue.Purge)
_BindQueue, _UnbindQueue = unchecked(commands.Queue.Bind), unchecked(commands.Queue.Unbind)
_DeclareExchange, _DeleteExchange = unchecked(commands.Exchange.Declare), unchecked(commands.Exchange.Delete)
_BindExchange, _UnbindExchange = unchecked(commands.Exchange.Bind), unchecked(commands.Exchange.Unbind)

_AT_ONCE = 16  # queues asked together, each on a channel

KINDS = ("classic", "quorum", "stream")


class QueueState(NamedTuple):
    """The answer to a declare: messages ready for delivery, and consumers of all clients."""

    name: str
    ready: int
    consumers: int


def declare_queue(
    channel: Channel,
    name: str,
    *,
    kind: str = "classic",
    durable: bool = True,
    exclusive: bool = False,
    auto_delete: bool = False,
    arguments: Mapping[str, Any] | None = None,
) -> QueueState:
    """Create a queue, or check that it exists with these arguments."""
    request = declaration(name, kind, arguments, durable, exclusive, auto_delete)
    ok = channel.call(request, commands.Queue.DeclareOk)
    return QueueState(ok.queue, ok.message_count, ok.consumer_count)


def declare_default(channel: Channel, name: str) -> None:
    """A durable queue of the virtual host's default type."""
    channel.call(_DeclareQueue(0, name, False, True, False, False, False, {}), commands.Queue.DeclareOk)


def declare_queues(channel: Channel, wanted: Iterable[tuple[str, str, Mapping[str, Any]]]) -> None:
    """Declare durable queues, each a name, a kind and arguments, together; the first failure ends it."""
    requests = [declaration(*queue) for queue in wanted]
    with channel.connection.together():
        answers = [channel.ask(request, commands.Queue.DeclareOk) for request in requests]
    for answer in answers:
        answer(REPLY_TIMEOUT)


def declaration(
    name: str,
    kind: str,
    arguments: Mapping[str, Any] | None,
    durable: bool = True,
    exclusive: bool = False,
    auto_delete: bool = False,
) -> commands.Queue.Declare:
    """The request for a queue of a kind."""
    if kind not in KINDS:
        raise ConfigError("kind", kind, f"one of {', '.join(KINDS)}")
    args = dict(arguments or {})
    args["x-queue-type"] = kind  # always: a virtual host may have another default
    return _DeclareQueue(0, name, False, durable, exclusive, auto_delete, False, args)


def passive(name: str) -> commands.Queue.Declare:
    """The request for a queue's depth and consumer count."""
    return _DeclareQueue(0, name, True)


def state(channel: Channel, name: str) -> QueueState:
    """Depth and consumer count, in about a millisecond. NotFound closes the channel, as AMQP requires."""
    ok = channel.call(passive(name), commands.Queue.DeclareOk)
    return QueueState(ok.queue, ok.message_count, ok.consumer_count)


def ready_of(connection: Connection, names: list[str]) -> list[int | None]:
    """How many messages each queue has; None for one that is missing, or that this user may not see."""
    found: list[int | None] = []
    spare: list[Channel] = []
    while len(found) < len(names):
        some = names[len(found) : len(found) + max(1, min(_AT_ONCE, connection.free + len(spare)))]
        with connection.together():
            channels = [spare.pop() if spare else connection.channel(wait=False) for _ in some]
            asked = [
                channel.ask(passive(name), commands.Queue.DeclareOk)
                for channel, name in zip(channels, some, strict=True)
            ]
        for answer in asked:
            try:
                found.append(int(answer(REPLY_TIMEOUT).message_count))
                spare.append(answer.channel)
            except (NotFound, AccessRefused, ResourceLocked):
                found.append(None)
    for channel in spare:
        channel.close()
    return found


def delete_queue(channel: Channel, name: str, *, if_unused: bool = False, if_empty: bool = False) -> int:
    """Delete a queue; returns how many messages it had. A missing one is no error."""
    return int(
        channel.call(_DeleteQueue(0, name, if_unused, if_empty), commands.Queue.DeleteOk).message_count
    )


def purge_queue(channel: Channel, name: str) -> int:
    """Drop the ready messages; returns how many."""
    return int(channel.call(_PurgeQueue(0, name), commands.Queue.PurgeOk).message_count)


def declare_exchange(
    channel: Channel,
    name: str,
    *,
    kind: str = "direct",
    durable: bool = True,
    auto_delete: bool = False,
    internal: bool = False,
    arguments: Mapping[str, Any] | None = None,
) -> None:
    """Create an exchange, or check that it exists with these arguments."""
    request = _DeclareExchange(
        0, name, kind, False, durable, auto_delete, internal, False, dict(arguments or {})
    )
    channel.call(request, commands.Exchange.DeclareOk)


def check_exchange(channel: Channel, name: str) -> None:
    """Raises NotFound if it does not exist."""
    channel.call(_DeclareExchange(0, name, passive=True), commands.Exchange.DeclareOk)


def delete_exchange(channel: Channel, name: str, *, if_unused: bool = False) -> None:
    """Delete an exchange. A missing one is no error."""
    channel.call(_DeleteExchange(0, name, if_unused), commands.Exchange.DeleteOk)


def bind_queue(
    channel: Channel,
    queue: str,
    exchange: str,
    routing_key: str = "",
    arguments: Mapping[str, Any] | None = None,
) -> None:
    """Bind a queue to an exchange."""
    channel.call(
        _BindQueue(0, queue, exchange, routing_key, False, dict(arguments or {})), commands.Queue.BindOk
    )


def unbind_queue(
    channel: Channel,
    queue: str,
    exchange: str,
    routing_key: str = "",
    arguments: Mapping[str, Any] | None = None,
) -> None:
    """Remove a queue's binding."""
    channel.call(
        _UnbindQueue(0, queue, exchange, routing_key, dict(arguments or {})), commands.Queue.UnbindOk
    )


def bind_exchange(
    channel: Channel,
    destination: str,
    source: str,
    routing_key: str = "",
    arguments: Mapping[str, Any] | None = None,
) -> None:
    """Bind an exchange to another."""
    channel.call(
        _BindExchange(0, destination, source, routing_key, False, dict(arguments or {})),
        commands.Exchange.BindOk,
    )


def unbind_exchange(
    channel: Channel,
    destination: str,
    source: str,
    routing_key: str = "",
    arguments: Mapping[str, Any] | None = None,
) -> None:
    """Remove an exchange's binding."""
    request = _UnbindExchange(0, destination, source, routing_key, False, dict(arguments or {}))
    channel.call(request, commands.Exchange.UnbindOk)
