"""Connections of a planning process to the streams' leaders, and what they say about a stream."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import TypeVar

from leash.amqp import Uri
from leash.errors import AmqpError, ConfigError, ConnectError, ReplyTimeout, StreamMissing, StreamUnavailable
from leash.spark import connections
from leash.spark.streams.settings import Place
from leash.streams import (
    Bounds,
    Chunk,
    Connection,
    chunk_at,
    connect,
    first_and_end,
    first_kept,
    metadata,
    open_leader,
    parse,
    partitions,
)
from leash.streams.offsets import last_chunk_id
from leash.streams.wire import Key, at_time

T = TypeVar("T")

_NAME = "leash spark plan"
_FRESH = 10.0  # seconds; a stream that was deleted and made again may be as long as it was


def uri_of(place: Place) -> Uri:
    """The stream port, with what the other options say instead."""
    return connections.uri_of(place.broker, parse(place.broker.url, place.stream_port))


def patiently(do: Callable[[], T], place: Place) -> T:
    """Try again while the broker is away or elects a leader. The AMQP port is named as such, at once."""
    return connections.patiently(lambda: at_port(do, place), StreamUnavailable, ReplyTimeout)


def at_port(do: Callable[[], T], place: Place) -> T:
    """What `do` returns. ConfigError if it found the AMQP port."""
    try:
        return do()
    except ConnectError as error:
        if "is an AMQP port" in str(error):
            option = "url" if place.broker.url.startswith("rabbitmq-stream") else "streamPort"
            raise ConfigError(option, place.stream_port, str(error)) from None
        raise


class Links:
    """One connection for each node that leads a stream."""

    def __init__(self, place: Place, name: str = _NAME) -> None:
        self._place = place
        self._uri = uri_of(place)
        self._name = name
        self._open: dict[str, Connection] = {}
        self._known: dict[str, tuple[int, float, Bounds]] = {}

    def close(self) -> None:
        for link in self._open.values():
            with contextlib.suppress(AmqpError):
                link.close()
        self._open.clear()

    def partitions(self, super_stream: str) -> tuple[str, ...]:
        """Of a super stream, in their order. ConfigError if there is none."""

        def ask() -> list[str]:
            return partitions(self._any(), super_stream)

        try:
            names = patiently(ask, self._place)
        except StreamMissing:
            names = []
        if not names:
            raise ConfigError("superStream", super_stream, "there is no super stream of that name") from None
        return tuple(names)

    def bounds(self, stream: str) -> Bounds:
        """What it has now. StreamMissing if it is not there."""

        def ask() -> Bounds:
            link = self.leader(stream)
            chunk = last_chunk_id(link, stream)
            known, now = self._known.get(stream), time.monotonic()
            if known is not None and known[0] == chunk and now - known[1] < _FRESH:
                return known[2]  # Spark asks often, and first and last chunk come whole
            found = first_and_end(link, stream)
            self._known[stream] = (chunk, now, found)
            return found

        return patiently(ask, self._place)

    def chunk_at(self, stream: str, offset: int) -> Chunk | None:
        return patiently(lambda: chunk_at(self.leader(stream), stream, offset), self._place)

    def since(self, stream: str, milliseconds: int, bounds: Bounds) -> int:
        """The offset of the first chunk that was written then or later, or the end."""
        at = at_time(milliseconds)
        chunk = patiently(lambda: chunk_at(self.leader(stream), stream, at), self._place)
        if chunk is None:
            return bounds.end
        return chunk.first if chunk.timestamp >= milliseconds else chunk.end

    def first_kept(self, stream: str) -> int:
        return patiently(lambda: first_kept(self.leader(stream), stream), self._place)

    def require_filters(self, option: str, value: object) -> None:
        """ConfigError if the broker has none."""
        link = patiently(self._any, self._place)
        if not link.can(Key.PUBLISH, 2):
            said = link.server.get("version", "of unknown version")
            raise ConfigError(option, value, f"filters need RabbitMQ 3.13, and {link.where} is {said}")

    def leader(self, stream: str) -> Connection:
        """A connection to the node that leads it; kept until it is lost."""
        link = self._open.get(stream)
        if link is not None and not link.closed:
            return link
        for other in set(self._open.values()):
            if not other.closed and self._leads(other, stream):
                self._open[stream] = other
                return other
        link = open_leader(self._uri, stream, load_balancer=self._place.load_balancer, name=self._name)
        self._open[stream] = link
        return link

    def forget(self, stream: str) -> None:
        """It may be led by another node now."""
        self._open.pop(stream, None)
        self._known.pop(stream, None)

    def _leads(self, link: Connection, stream: str) -> bool:
        try:
            return link.itself is not None and metadata(link, stream)[stream].leader == link.itself
        except AmqpError:
            return False

    def _any(self) -> Connection:
        for link in self._open.values():
            if not link.closed:
                return link
        link = self._open[""] = connect(self._uri, name=self._name)
        return link
