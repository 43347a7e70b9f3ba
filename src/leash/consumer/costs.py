"""What a message costs its lane, where that is known as it arrives."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from leash.amqp.properties import decode_properties
from leash.amqp.wire import Deliveries
from leash.consumer.message import Message, Raw
from leash.errors import ConfigError, ProtocolError
from leash.flow.flow import Cost

if TYPE_CHECKING:
    from leash.consumer.settle import Outcome

Asked = str | Callable[[Message], int]
Costs = Callable[[Deliveries, list[Raw]], list[int]]

_ALLOWED = "count, bytes, time, header:<name>, or a function of the message that returns a whole number"


def costs_of(asked: Asked) -> tuple[Cost, Costs | None]:
    """Flow's kind of cost, and the function that finds it, if one is needed."""
    if callable(asked):
        return "given", _called(asked)
    if asked == "bytes":
        return "given", lambda batch, _: [len(body) or 1 for body in batch.bodies]
    if isinstance(asked, str) and asked.startswith("header:") and len(asked) > len("header:"):
        return "given", _header(asked.removeprefix("header:"))
    if asked in ("count", "time"):
        return asked, None  # type: ignore[return-value]
    raise ConfigError("cost", asked, _ALLOWED)


def _header(name: str) -> Costs:
    return lambda batch, _: [_header_cost(raw, name) for raw in batch.properties]


def _header_cost(raw: bytes, name: str) -> int:
    """A message without the header, or with one that is no number, costs 1: somebody else published it."""
    try:
        value = (decode_properties(raw).headers or {}).get(name)
    except ProtocolError:
        return 1
    return max(0, value) if isinstance(value, int) and not isinstance(value, bool) else 1


def _called(function: Callable[[Message], int]) -> Costs:
    def costs(_: Deliveries, raws: list[Raw]) -> list[int]:
        found = []
        for raw in raws:
            cost = function(Message(raw, _not_yet))
            if not isinstance(cost, int) or isinstance(cost, bool) or cost < 0:
                raise ConfigError("cost", cost, "a whole number from 0 on, for every message")
            found.append(cost)
        return found

    return costs


def _not_yet(_: Message, __: Outcome) -> bool:
    return False
