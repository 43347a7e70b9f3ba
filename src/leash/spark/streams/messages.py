"""Rows to messages of a stream: which columns mean what.

They mirror the source's, so that a source can feed a sink.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import pyarrow as pa
from pyspark.sql.types import MapType, StructType

from leash.errors import ConfigError
from leash.spark.streams.columns import PROPERTIES
from leash.spark.streams.settings import StreamSinkSettings
from leash.streams.amqp10 import sections

_TYPES = {
    "value": ("binary", "string"),
    "routing_key": ("string",),
    "filter_value": ("string",),
    "message_id": ("string",),
    "properties": ("struct",),
    "headers": ("map",),
    "annotations": ("map",),
    # Of the sources: nothing to publish, but no reason to make everybody drop them.
    "stream": ("string",),
    "offset": ("long",),
    "timestamp": ("timestamp",),
    "queue": ("string",),
    "exchange": ("string",),
    "redelivered": ("boolean",),
}
_IN_SECTIONS = ("message_id", "properties", "headers", "annotations")


class Messages(NamedTuple):
    """What is published, one column each; None where there is nothing."""

    values: pa.Array
    sections: pa.Array | None
    filters: pa.Array | None
    keys: pa.Array | None

    def take(self, places: Any) -> Messages:
        return Messages(*(None if column is None else column.take(places) for column in self))

    def slice(self, first: int) -> Messages:
        return Messages(*(None if column is None else column.slice(first) for column in self))

    @property
    def content(self) -> list[pa.Array]:
        """The columns that are there."""
        return [column for column in self if column is not None]


def check_schema(schema: StructType, settings: StreamSinkSettings) -> None:
    """Before anything is published: known columns of usable types, and a key for a super stream."""
    for field in schema.fields:
        allowed = _TYPES.get(field.name)
        if allowed is None:
            raise ConfigError(
                "column", field.name, f"a stream takes {', '.join(_TYPES)}; drop or rename the others"
            )
        kind = field.dataType
        if kind.typeName() not in allowed:
            raise ConfigError(f"column {field.name}", kind.simpleString(), f"must be {' or '.join(allowed)}")
        if isinstance(kind, StructType):
            for inner in kind.fields:
                if inner.name not in PROPERTIES:
                    raise ConfigError("column properties", inner.name, f"only {', '.join(PROPERTIES)}")
        if isinstance(kind, MapType) and kind.keyType.typeName() != "string":
            raise ConfigError(
                f"column {field.name}", kind.simpleString(), "must be a map whose keys are strings"
            )
    if "value" not in schema.names:
        raise ConfigError("column", "value", "is required: the message's body, binary or string")
    if settings.super_stream is not None and "routing_key" not in schema.names:
        raise ConfigError(
            "column", "routing_key", "is required for a super stream: it says which partition a row goes to"
        )


def messages(batch: pa.RecordBatch, settings: StreamSinkSettings) -> Messages:
    names = batch.schema.names
    values = batch.column("value")
    if values.null_count:
        raise ConfigError(
            "column value", None, "a message has a body; filter out nulls, or use an empty string"
        )
    keys = batch.column("routing_key") if settings.super_stream is not None else None
    if keys is not None and keys.null_count:
        raise ConfigError("column routing_key", None, "every row of a super stream needs a key")
    parts = [name for name in _IN_SECTIONS if name in names]
    return Messages(
        values.cast(pa.large_binary()),
        _sections(batch, parts) if parts else None,
        batch.column("filter_value") if "filter_value" in names else None,
        keys,
    )


def _sections(batch: pa.RecordBatch, parts: list[str]) -> pa.Array:
    columns = [batch.column(name).to_pylist() for name in parts]
    made = [_section(dict(zip(parts, row, strict=True))) for row in zip(*columns, strict=True)]
    return pa.array(made, pa.large_binary())


def _section(row: dict[str, Any]) -> bytes:
    properties = {name: value for name, value in (row.get("properties") or {}).items() if value is not None}
    if row.get("message_id") is not None:
        properties["message_id"] = row["message_id"]
    return sections(properties, _pairs(row.get("headers")), _pairs(row.get("annotations")))


def _pairs(entries: Any) -> dict[str, Any]:
    return {name: value for name, value in entries or () if value is not None}
