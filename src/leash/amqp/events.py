"""The events that the decoder returns."""

from __future__ import annotations

from typing import NamedTuple

from pamqp.base import Frame as Method


class Deliveries:
    """Messages of one consumer, as columns of equal length, in the order of arrival."""

    __slots__ = (
        "bodies",
        "channel",
        "consumer_tag",
        "exchanges",
        "properties",
        "redelivered",
        "routing_keys",
        "tags",
    )

    def __init__(self, channel: int, consumer_tag: str) -> None:
        self.channel = channel
        self.consumer_tag = consumer_tag
        self.tags: list[int] = []
        self.redelivered: list[bool] = []
        self.exchanges: list[str] = []
        self.routing_keys: list[str] = []
        self.properties: list[bytes] = []
        self.bodies: list[bytes] = []

    def __len__(self) -> int:
        return len(self.tags)

    def __repr__(self) -> str:
        return f"<Deliveries {len(self)} for {self.consumer_tag!r} on channel {self.channel}>"


class MethodEvent(NamedTuple):
    """A method without content."""

    channel: int
    method: Method


class ContentEvent(NamedTuple):
    """A method with content that is not a delivery: basic.return or basic.get-ok."""

    channel: int
    method: Method
    properties: bytes
    body: bytes


class Confirm(NamedTuple):
    """The broker took (or refused) what we published, up to a delivery tag."""

    channel: int
    tag: int
    multiple: bool
    ok: bool


Event = Deliveries | MethodEvent | ContentEvent | Confirm
