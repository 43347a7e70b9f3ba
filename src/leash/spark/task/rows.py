"""Raw columns to the rows that Spark sees."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NamedTuple

import pyarrow as pa

from leash.amqp.properties import Properties, decode_properties, readable, salvage_properties
from leash.errors import ProtocolError
from leash.spark.columns import PROPERTIES

_RAW = {"value": "body", "exchange": "exchange", "routing_key": "routing_key", "redelivered": "redelivered"}


def project(raw: pa.RecordBatch, queue: str, wanted: pa.Schema) -> pa.RecordBatch:
    """The wanted columns, of the wanted types. Properties are decoded only if asked for, equal ones once."""
    decoded = _Decoded(raw.column("properties"))
    arrays = []
    for field in wanted:
        if field.name in _RAW:
            array = raw.column(_RAW[field.name])
        elif field.name == "queue":
            array = pa.repeat(pa.scalar(queue, pa.string()), len(raw))
        else:
            array = decoded.column(field)
        arrays.append(array if array.type == field.type else array.cast(field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=wanted)


class _Decoded:
    def __init__(self, raw: pa.Array) -> None:
        self._raw = raw
        self._index: pa.Array | None = None
        self._distinct: list[Properties] = []

    def column(self, field: pa.Field) -> pa.Array:
        if self._index is None:
            encoded = self._raw.dictionary_encode()
            self._index = encoded.indices
            self._distinct = [_decode(value) for value in encoded.dictionary.to_pylist()]
        return pa.array([_GETTERS[field.name](found) for found in self._distinct], field.type).take(
            self._index
        )


def _decode(raw: bytes) -> Properties:
    """A message with broken properties is still a message: its body counts, and so does what can be read."""
    try:
        return decode_properties(raw)
    except ProtocolError:
        return salvage_properties(raw)


def _clean(value: Any) -> Any:
    return readable(value) if isinstance(value, str) else value


def _struct(found: Properties) -> dict[str, Any]:
    return {name: _clean(getattr(found, "message_type" if name == "type" else name)) for name in PROPERTIES}


def _headers(found: Properties) -> list[tuple[str, str | None]] | None:
    if not found.headers:
        return None
    return list({readable(name): _text(value) for name, value in found.headers.items()}.items())


def _text(value: Any) -> str | None:
    """A string as it is; anything else as JSON, as far as JSON can express it."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bytes | bytearray):
        return value.decode("utf-8", "backslashreplace")
    return _json(value)


class _Written(NamedTuple):
    text: str


def _json(value: Any) -> str:
    """As `json.dumps` writes it, but without recursion: a header may be nested deeper than the stack."""
    out: list[str] = []
    todo = [value]
    while todo:
        item = todo.pop()
        if isinstance(item, _Written):
            out.append(item.text)
        elif isinstance(item, dict):
            todo.append(_Written("}"))
            for count, (name, inner) in enumerate(reversed(item.items()), 1 - len(item)):
                comma = ", " if count else ""
                todo += [inner, _Written(f"{comma}{json.dumps(readable(name))}: ")]
            out.append("{")
        elif isinstance(item, list):
            todo.append(_Written("]"))
            for count, inner in enumerate(reversed(item), 1 - len(item)):
                todo += [inner, _Written(", " if count else "")]
            out.append("[")
        elif isinstance(item, bytes | bytearray):
            out.append(json.dumps(item.decode("utf-8", "backslashreplace")))
        else:
            out.append(json.dumps(item, default=str))
    return "".join(out)


_GETTERS: dict[str, Callable[[Properties], Any]] = {
    "message_id": lambda found: _clean(found.message_id),
    "timestamp": lambda found: found.timestamp,
    "properties": _struct,
    "headers": _headers,
}
