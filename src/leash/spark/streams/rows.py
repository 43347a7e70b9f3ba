"""What a reader gives, as the rows that Spark sees."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

import pyarrow as pa

from leash.spark.streams.columns import PROPERTIES
from leash.streams.amqp10 import Message, decode

_PLAIN = ("value", "offset", "timestamp")


def needed(wanted: pa.Schema) -> tuple[str, ...]:
    """The columns that a reader must give for these."""
    plain = tuple(name for name in _PLAIN if name in wanted.names)
    decoded = any(name not in (*_PLAIN, "stream") for name in wanted.names)
    return (*plain, "message") if decoded else plain or ("offset",)


def project(batch: pa.RecordBatch, stream: str, wanted: pa.Schema) -> pa.RecordBatch:
    """The wanted columns, of the wanted types. Messages are taken apart only if that is asked for."""
    messages: list[Message] | None = None
    arrays = []
    for field in wanted:
        if field.name in _PLAIN:
            array = batch.column(field.name)
        elif field.name == "stream":
            array = pa.repeat(pa.scalar(stream, field.type), len(batch))
        else:
            if messages is None:
                messages = [_decode(raw) for raw in batch.column("message").to_pylist()]
            array = pa.array([_GETTERS[field.name](each) for each in messages], field.type)
        arrays.append(array if array.type == field.type else array.cast(field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=wanted)


def _decode(raw: bytes) -> Message:
    """A message whose sections are broken is still a message: its body counts."""
    try:
        return decode(raw)
    except ValueError:
        return Message(raw, {}, {}, {}, {})


def _text(value: Any) -> str | None:
    """A string as it is; anything else as JSON, as far as JSON can say it."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    return json.dumps(value, default=_text)


def _struct(message: Message) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, kind in PROPERTIES.items():
        value = message.properties.get(name)
        if kind.typeName() == "string":
            found[name] = _text(value)
        else:
            fits = int if kind.typeName() == "long" else datetime
            found[name] = value if isinstance(value, fits) else None
    return found


def _texts(values: dict[str, Any]) -> list[tuple[str, str | None]] | None:
    return [(name, _text(value)) for name, value in values.items()] or None


_GETTERS: dict[str, Any] = {
    "message_id": lambda message: _text(message.properties.get("message_id")),
    "properties": _struct,
    "headers": lambda message: _texts(message.application_properties),
    "annotations": lambda message: _texts(message.annotations),
}
