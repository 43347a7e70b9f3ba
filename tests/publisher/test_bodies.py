"""Values to bodies and back: what goes in comes out, and what does not fit is said."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum
from typing import Any, Literal
from uuid import UUID

import pydantic
import pytest

from leash.bodies import decoder, encode
from leash.errors import ConfigError, Undecodable


class Colour(Enum):
    RED = "red"


@dataclass
class Item:
    name: str
    price: Decimal


@dataclass
class Order:
    number: int
    items: list[Item]
    at: datetime
    id: UUID
    colour: Colour = Colour.RED
    paid: date | None = None
    tags: set[str] = field(default_factory=set)
    pair: tuple[int, str] = (1, "a")
    more: dict[str, Any] = field(default_factory=dict)
    kind: Literal["new", "old"] = "new"
    parent: Order | None = None
    weight: float = 1.0


class Model(pydantic.BaseModel):
    number: int
    at: datetime


NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
ORDER = Order(
    7,
    [Item("a", Decimal("1.10"))],
    NOW,
    UUID(int=5),
    paid=date(2026, 1, 1),
    tags={"x"},
    more={"n": [1, None]},
    parent=Order(6, [], NOW, UUID(int=4), kind="old"),
)


@pytest.mark.parametrize(
    ("value", "kind", "content_type"),
    [
        (b"\xff\x00", bytes, ""),
        ("grüße", str, "text/plain"),
        ({"a": [1, "x", None]}, dict, "application/json"),
        ([1, 2], list, "application/json"),
        ([1, 2], list[int], "application/json"),
        ({"1": 2.5}, dict[str, float], "application/json"),
        (ORDER, Order, "application/json"),
        (Model(number=1, at=NOW), Model, "application/json"),
    ],
)
def test_what_goes_in_comes_out(value: object, kind: Any, content_type: str) -> None:
    body, told = encode(value)
    assert told == content_type
    assert decoder(kind)(body) == value


def test_a_view_of_bytes_is_bytes() -> None:
    assert encode(memoryview(b"ab")) == encode(bytearray(b"ab")) == (b"ab", "")


@pytest.mark.parametrize(
    "value", [None, 1, object(), {"a": object()}, {"a": float("nan")}, "\ud800", Order, {b"k": 1}, (1, 2)]
)
def test_what_cannot_be_a_body_is_refused(value: object) -> None:
    with pytest.raises(ConfigError, match="body="):
        encode(value)


@pytest.mark.parametrize(
    ("kind", "body", "says"),
    [
        (str, b"\xff", "not str"),
        (dict, b"[]", "dict is needed, not list"),
        (dict, b"{", "not dict"),
        (list, b"", "not list"),
        (list[int], b'["a"]', "int is needed, not str"),
        (list[int], b"[true]", "int is needed, not bool"),
        (Item, b'{"name": "a"}', "not Item: price is missing$"),
        (Item, b"{}", "name, price are missing$"),
        (Item, b'{"name": 1, "price": "1"}', "name: str is needed"),
        (Item, b'{"name": "a", "price": "x"}', "price"),
        (Model, b'{"number": "x"}', "number"),
        (dict[str, Literal["a"]], b'{"k": "b"}', "not one of 'a'"),
        (dict, b"[" * 100_000, "not dict"),
    ],
)
def test_what_does_not_fit_says_why(kind: Any, body: bytes, says: str) -> None:
    with pytest.raises(Undecodable, match=says):
        decoder(kind)(body)


def test_fields_that_a_dataclass_does_not_have_are_ignored() -> None:
    assert decoder(Item)(b'{"name": "a", "price": "1", "new": true}') == Item("a", Decimal(1))


@pytest.mark.parametrize("kind", [type, object(), list[type], "Item", complex])
def test_a_type_that_nothing_can_be_decoded_to_is_refused(kind: Any) -> None:
    with pytest.raises(ConfigError, match="argument of type Message"):
        decoder(kind)
