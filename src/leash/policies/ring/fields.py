"""A message header's value: an AMQP field, and the Erlang term that RabbitMQ parses it into.

A Python value stands for the field that Leash, pika and the Java client send for it: str as longstr, bytes as
binary, int as signedint or long, float as double, dict as table, list as array, bool and None as themselves.
Any other type needs a `Field`.
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

from leash.errors import ConfigError
from leash.policies.ring.phash import UNDEFINED, Atom, binary

INTEGERS = {
    "byte": (-(1 << 7), (1 << 7) - 1),
    "unsignedbyte": (0, (1 << 8) - 1),
    "short": (-(1 << 15), (1 << 15) - 1),
    "unsignedshort": (0, (1 << 16) - 1),
    "signedint": (-(1 << 31), (1 << 31) - 1),
    "unsignedint": (0, (1 << 32) - 1),
    "long": (-(1 << 63), (1 << 63) - 1),
    "timestamp": (0, (1 << 64) - 1),
}
_LARGEST_FLOAT = struct.unpack(">f", b"\x7f\x7f\xff\xff")[0]
FIELDS = (*INTEGERS, "longstr", "binary", "bool", "double", "float", "decimal", "void", "table", "array")
"""AMQP 0-9-1 field types, by the names that RabbitMQ gives them."""


_SENT_AS: tuple[tuple[type, str], ...] = (
    (bool, "bool"),
    (str, "longstr"),
    (bytes, "binary"),
    (float, "double"),
    (dict, "table"),
    (list, "array"),
    (type(None), "void"),
)


class Field(NamedTuple):
    """A header's value with its AMQP type.

    timestamp takes seconds, decimal a pair (scale, unscaled value), table a dict in the order on the wire.
    """

    type: str
    value: Any = None


def as_field(value: object) -> Field:
    """The field that a Python value becomes on the wire."""
    if isinstance(value, Field):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        low, high = INTEGERS["signedint"]
        return Field("signedint" if low <= value <= high else "long", value)
    for kind, name in _SENT_AS:
        if isinstance(value, kind):
            return Field(name, value)
    raise ConfigError("key", value, "str, bytes, bool, int, float, dict, list, None, or a Field")


def erlang(field: Field) -> Any:
    """A field's value as an Erlang term, like RabbitMQ's parser."""
    kind, value = field
    whole = isinstance(value, int) and not isinstance(value, bool)
    if kind in INTEGERS:
        low, high = INTEGERS[kind]
        if whole and low <= value <= high:
            return value
        raise ConfigError("key", field, f"a whole number from {low} to {high}")
    if kind in ("longstr", "binary") and isinstance(value, str | bytes):
        return binary(value)
    if kind == "bool" and isinstance(value, bool):
        return value
    if kind == "double" and isinstance(value, float):
        return value
    if kind == "float" and isinstance(value, float) and abs(value) <= _LARGEST_FLOAT:
        return struct.unpack(">f", struct.pack(">f", value))[0]
    if kind == "decimal" and isinstance(value, tuple) and len(value) == 2:
        return (erlang(Field("unsignedbyte", value[0])), erlang(Field("unsignedint", value[1])))
    if kind == "void" and value is None:
        return UNDEFINED
    if kind == "table" and isinstance(value, dict):
        return [_entry(name, as_field(item)) for name, item in value.items()]
    if kind == "array" and isinstance(value, list | tuple):
        return [(Atom(item.type), erlang(item)) for item in map(as_field, value)]
    if kind not in FIELDS:
        raise ConfigError("type", kind, "one of " + ", ".join(FIELDS))
    raise ConfigError("key", field, f"a value of type {kind}")


def _entry(name: object, field: Field) -> tuple[bytes, Atom, Any]:
    if not isinstance(name, str | bytes):
        raise ConfigError("key", name, "str or bytes, as a table's name")
    return binary(name), Atom(field.type), erlang(field)
