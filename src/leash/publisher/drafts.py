"""From what a user gives to a message: body, address, properties. What is wrong with it is said here."""

from __future__ import annotations

import copy
import itertools
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypedDict

from leash import bodies
from leash.amqp import Properties, encode_properties
from leash.amqp.properties import short_string
from leash.errors import ConfigError
from leash.publisher.sent import Message

if TYPE_CHECKING:
    from leash.partitions import Partitions

Headers = Mapping[str, Any]

_MODE = 0x1000
_TYPE, _ID = 0x8000, 0x0080
_WHERE = "a queue, an exchange with a routing key, or partitions with a key: one of them"


@dataclass(frozen=True, slots=True)
class Address:
    """Where messages go: the exchange, the routing key, and what a key of partitions becomes."""

    exchange: str
    routing_key: str
    header: str = ""
    attribute: str = ""
    key: object = None

    @property
    def plain(self) -> bool:
        """True if it needs no property."""
        return not (self.header or self.attribute)


class Options(TypedDict, total=False):
    """What `publish` and its kin take besides body and queue."""

    exchange: str
    """Instead of a queue, the exchange to publish to,"""
    routing_key: str
    """and the routing key for it."""
    partitions: str | Partitions
    """Instead of a queue, the partitions to publish to,"""
    key: object
    """and the key for them: what they are made by gets it."""
    headers: Headers
    message_id: str
    """Default: a new one."""
    properties: Properties
    """All others of AMQP's: `leash.amqp.Properties(priority=5)`."""


_KNOWN = frozenset(Options.__annotations__)


def address(queue: str, options: Options, by: Callable[[str | Partitions], str]) -> Address:
    """Check it; `by` finds out what partitions are made by."""
    if unknown := options.keys() - _KNOWN:
        known = ", ".join(sorted(_KNOWN))
        raise TypeError(f"{', '.join(sorted(unknown))}: there is no such option; there are {known}")
    exchange, routing_key = options.get("exchange", ""), options.get("routing_key", "")
    partitions, key = options.get("partitions"), options.get("key")
    if (partitions is not None) + bool(queue) + bool(exchange) != 1 or (queue and routing_key):
        raise ConfigError("queue", queue, _WHERE)
    if partitions is None:
        if key is not None:
            raise ConfigError("key", key, "only with partitions; an exchange has a routing_key")
        for name, value in (("queue", queue), ("exchange", exchange), ("routing_key", routing_key)):
            short_string(name, value)
        return Address(exchange, queue or routing_key)
    if key is None:
        raise ConfigError("key", None, "a value: without one, all messages would go to one queue")
    if routing_key:
        raise ConfigError("routing_key", routing_key, "a key, with partitions")
    kind, _, field = by(partitions).partition(":")
    name = name_of(partitions)
    if kind == "header":
        return Address(name, "", header=field, key=key)
    if kind == "property":
        return Address(name, "", attribute=field, key=key)
    if not isinstance(key, str):
        raise ConfigError("key", key, "text: these partitions are by routing key")
    short_string("key", key)
    return Address(name, key)


def name_of(partitions: str | Partitions) -> str:
    return partitions if isinstance(partitions, str) else partitions.name


class Drafts:
    """Makes messages, with ids of their own where none is given."""

    def __init__(self, persistent: bool, mandatory: bool) -> None:
        self._mode = 2 if persistent else 1
        self._mandatory = mandatory
        self._ids = map(f"{secrets.token_hex(8)}-{{}}".format, itertools.count(1))
        self._heads: dict[str, bytes] = {}

    def draft(self, body: object, to: Address, options: Options) -> tuple[Message, str]:
        """The message, and its id."""
        raw, content_type = (body, "") if type(body) is bytes else bodies.encode(body)
        message_id = options.get("message_id", "")
        if to.plain and "headers" not in options and "properties" not in options:
            head = self._heads.get(content_type) or self._head(content_type)
            if message_id:
                number, last = message_id, short_string("message_id", message_id)
            else:
                number = next(self._ids)
                last = b"%c%b" % (len(number), number.encode())
            properties = head + last
        else:
            told = self._told(to, options)
            told.content_type = told.content_type or content_type
            number = told.message_id = message_id or told.message_id or next(self._ids)
            properties = encode_properties(told)
        return (raw, to.exchange, to.routing_key, properties, self._mandatory), number

    def _told(self, to: Address, options: Options) -> Properties:
        told = copy.copy(options.get("properties") or Properties())
        headers = {**(told.headers or {}), **(options.get("headers") or {})}
        if to.header:
            headers[to.header] = to.key
        told.headers = headers or None
        if to.attribute:
            given = options.get("message_id", "") if to.attribute == "message_id" else ""
            if given not in ("", to.key):
                raise ConfigError("message_id", given, "left out: the key is it for these partitions")
            setattr(told, to.attribute, _property(to))
        if told.delivery_mode is None:
            told.delivery_mode = self._mode
        return told

    def _head(self, content_type: str) -> bytes:
        """All properties but for the message id, which comes last."""
        flags = _MODE | _ID | (_TYPE if content_type else 0)
        kind = short_string("content_type", content_type) if content_type else b""
        head = self._heads[content_type] = flags.to_bytes(2, "big") + kind + bytes((self._mode,))
        return head


def _property(to: Address) -> object:
    if to.attribute == "timestamp":
        if isinstance(to.key, datetime):
            return to.key
        if isinstance(to.key, int) and not isinstance(to.key, bool):
            return datetime.fromtimestamp(to.key, UTC)
        raise ConfigError("key", to.key, "whole seconds or a datetime: these partitions are by timestamp")
    if not isinstance(to.key, str) or not to.key:
        raise ConfigError("key", to.key, f"text that is not empty: these partitions are by {to.attribute}")
    return to.key
