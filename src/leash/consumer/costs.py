"""What a message costs its lane, if that is known on arrival: at least 1.

A message without cost would never end its lane's turn: its publisher would get the whole pool. A cost
without limit would put its lane to sleep for good. Publishers write headers, so a header's cost is clamped;
a function is the consumer's own and may return any amount.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from leash.amqp.properties import decode_properties
from leash.amqp.wire import Deliveries
from leash.consumer.message import Message
from leash.consumer.raw_delivery import PROPERTIES, Raw
from leash.errors import ConfigError, ProtocolError
from leash.flow.flow import Cost

if TYPE_CHECKING:
    from leash.consumer.settle import Outcome

Asked = str | Callable[[Message], int]


class Costed(NamedTuple):
    """What a batch costs, message by message, and what was wrong with one of them, if anything."""

    costs: list[int]
    trouble: str | None = None


Costs = Callable[[Deliveries, list[Raw], int], Costed]
"""The batch, the same messages as raw tuples, and the quantum of their lane."""

MOST, ROUNDS = 1_000, 100
"""A header's cost is at most this, or this many rounds of its lane if that is more."""

_ALLOWED = "count, bytes, time, header:<name>, or a function of the message that returns a whole number"


def costs_of(asked: Asked) -> tuple[Cost, Costs | None]:
    """Flow's kind of cost, and the function that finds it, if one is needed."""
    if callable(asked):
        return "given", _called(asked)
    if asked == "bytes":
        return "given", lambda batch, _, __: Costed([len(body) or 1 for body in batch.bodies])
    if isinstance(asked, str) and asked.startswith("header:") and len(asked) > len("header:"):
        return "given", _header(asked.removeprefix("header:"))
    if asked in ("count", "time"):
        return asked, None  # type: ignore[return-value]
    raise ConfigError("cost", asked, _ALLOWED)


def _header(name: str) -> Costs:
    def costs(batch: Deliveries, _: list[Raw], quantum: int) -> Costed:
        most = max(MOST, ROUNDS * quantum)
        asked = [_asked_for(raw, name) for raw in batch.properties]
        wrong = next((cost for cost in asked if not 1 <= cost <= most), None)
        trouble = None if wrong is None else f"header {name!r} is {wrong}: a message costs from 1 to {most}"
        return Costed([min(most, max(1, cost)) for cost in asked], trouble)

    return costs


def header_cost(name: str) -> Callable[[Raw], int]:
    """The cost of a message for a budget, by a header. It is not capped: that is what the budget is for."""
    return lambda raw: _asked_for(raw[PROPERTIES], name)


def _asked_for(raw: bytes, name: str) -> int:
    """A message without the header, or with one that is not a number, costs 1."""
    try:
        value = (decode_properties(raw).headers or {}).get(name)
    except ProtocolError:
        return 1
    return value if isinstance(value, int) and not isinstance(value, bool) else 1


def _called(function: Callable[[Message], int]) -> Costs:
    def costs(_: Deliveries, raws: list[Raw], __: int) -> Costed:
        charged = []
        trouble = None
        for raw in raws:
            cost = 1
            try:
                cost = function(Message(raw, _not_yet))
                if not isinstance(cost, int) or isinstance(cost, bool) or cost < 0:
                    raise ConfigError("cost", cost, "a whole number for every message")
            except Exception as error:  # the user's function must not end the reader thread
                cost, trouble = 1, repr(error)
            charged.append(max(1, cost))
        return Costed(charged, trouble)

    return costs


def _not_yet(_: Message, __: Outcome) -> bool:
    return False
