"""Control messages, and how to tell them from a user's messages.

A gate in the target queue says: stop here until these queues have finished the messages from before the move.
A marker in each of those queues says: all messages from before the move are ahead of me. Both carry the
move's number, so that a second copy of either, after a crash, means the same and does no harm. A probe only
shows where it is routed.
"""

from __future__ import annotations

from typing import NamedTuple

from leash.amqp import Outgoing, Properties, read_header

CONTROL = "x-leash-control"
_NAME, _MOVE, _SOURCES = "x-leash-partitions", "x-leash-move", "x-leash-sources"
_HINT = CONTROL.encode()
_PERSISTENT = 2


class Gate(NamedTuple):
    """Closed until every source has passed its marker of this move."""

    partitions: str
    move: int
    sources: tuple[str, ...]


class Marker(NamedTuple):
    """The end of the messages from before a move."""

    partitions: str
    move: int


class Probe(NamedTuple):
    """Ignored by consumers."""


def gate(name: str, move: int, sources: tuple[str, ...], queue: str) -> Outgoing:
    """A gate for the end of a queue."""
    return _message("gate", queue, {_NAME: name, _MOVE: move, _SOURCES: list(sources)})


def marker(name: str, move: int, queue: str) -> Outgoing:
    """A marker for the end of a queue."""
    return _message("marker", queue, {_NAME: name, _MOVE: move})


def is_control(raw_properties: bytes) -> bool:
    """True if it may be a control message; quick, for every message."""
    return _HINT in raw_properties


def read(raw_properties: bytes) -> Gate | Marker | Probe | None:
    """The control message that these properties describe; None for a user's message."""
    if not is_control(raw_properties):
        return None
    what = read_header(raw_properties, CONTROL)
    if what == "probe":
        return Probe()
    name, number = read_header(raw_properties, _NAME), read_header(raw_properties, _MOVE)
    if not isinstance(name, str) or not isinstance(number, int):
        return None
    if what == "marker":
        return Marker(name, number)
    sources = read_header(raw_properties, _SOURCES)
    if what == "gate" and isinstance(sources, list) and all(isinstance(each, str) for each in sources):
        return Gate(name, number, tuple(sources))
    return None


def _message(what: str, queue: str, headers: dict[str, object]) -> Outgoing:
    properties = Properties(headers={CONTROL: what, **headers}, delivery_mode=_PERSISTENT)  # type: ignore[dict-item]
    return Outgoing(b"", "", queue, properties, mandatory=True)
