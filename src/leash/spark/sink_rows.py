"""Rows to messages: what each column of the sink means.

The columns mirror the source's, so that a source can feed a sink.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import MapType, StructType

from leash.amqp import Outgoing, Properties
from leash.amqp.properties import encode_properties
from leash.errors import ConfigError
from leash.spark.columns import PROPERTIES
from leash.spark.settings import SinkSettings

_TYPES = {
    "value": ("binary", "string"),
    "exchange": ("string",),
    "routing_key": ("string",),
    "message_id": ("string",),
    "timestamp": ("timestamp",),
    "properties": ("struct",),
    "headers": ("map",),
    # The source's own columns are accepted and not published, so that nobody has to drop them.
    "queue": ("string",),
    "redelivered": ("boolean",),
}
_INTEGERS = ("byte", "short", "integer", "long")
_PERSISTENT = 2
_SHORT = 255  # bytes: the length is one octet
_LAST_MICROSECOND = 253_402_300_799_999_999  # of the year 9999, the last in Python and Spark
_LONGEST_EXPIRATION = 2**32 - 1  # milliseconds; RabbitMQ closes the channel above
_FITS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "delivery_mode": (lambda mode: mode in (1, 2), "must be 1 (transient) or 2 (persistent)"),
    "priority": (lambda priority: 0 <= priority <= 255, "must be from 0 to 255"),
    "expiration": (
        lambda text: text.isascii() and text.isdecimal() and int(text) <= _LONGEST_EXPIRATION,
        f"must be a whole number of milliseconds, from 0 to {_LONGEST_EXPIRATION}",
    ),
}


def check_schema(schema: StructType, settings: SinkSettings) -> None:
    """Check, before anything is published, the columns, their types, and that each row has a destination."""
    for field in schema.fields:
        allowed = _TYPES.get(field.name)
        if allowed is None:
            raise ConfigError(
                "column", field.name, f"the sink takes {', '.join(_TYPES)}; drop or rename the others"
            )
        if field.dataType.typeName() not in allowed:
            raise ConfigError(
                f"column {field.name}", field.dataType.simpleString(), f"must be {' or '.join(allowed)}"
            )
        if isinstance(field.dataType, StructType):
            _check_properties(field.dataType)
        if isinstance(field.dataType, MapType) and field.dataType.keyType.typeName() != "string":
            raise ConfigError(
                "column headers", field.dataType.simpleString(), "must be a map whose keys are strings"
            )
    if "value" not in schema.names:
        raise ConfigError("column", "value", "is required: the message's body, binary or string")
    if "routing_key" not in schema.names and settings.routing_key is None and settings.exchange is None:
        raise ConfigError("routingKey", None, "set routingKey or exchange, or add a routing_key column")


def _check_properties(struct: StructType) -> None:
    for field in struct.fields:
        if field.name not in PROPERTIES:
            raise ConfigError("column properties", field.name, f"only {', '.join(PROPERTIES)}")
        allowed = _INTEGERS if PROPERTIES[field.name].typeName() == "integer" else ("string",)
        if field.dataType.typeName() not in allowed:
            raise ConfigError(
                f"column properties.{field.name}",
                field.dataType.simpleString(),
                f"must be {PROPERTIES[field.name].simpleString()}",
            )


class RowEncoder:
    """Encodes rows as messages. A message id is `prefix` and the row's number.

    `by` says what the target partitions are keyed by, if there are any.
    """

    def __init__(self, settings: SinkSettings, prefix: str, by: str | None = None) -> None:
        self._settings = settings
        self._prefix = prefix
        self._by = by
        self._row = 0

    def messages(self, batch: pa.RecordBatch) -> list[Outgoing]:
        """The messages of all rows; raises before any is published if one cannot be."""
        columns = {name: _values(name, batch.column(name)) for name in batch.schema.names}
        return [
            self._message({name: values[i] for name, values in columns.items()}) for i in range(len(batch))
        ]

    def _message(self, row: dict[str, Any]) -> Outgoing:
        number, self._row = self._row, self._row + 1
        value = row["value"]
        if value is None:
            raise ConfigError(
                "column value", None, "a message has a body; filter out nulls, or use an empty string"
            )
        if not row.get("message_id") and self._settings.message_id == "auto":
            row["message_id"] = f"{self._prefix}-{number}"
        if self._by is None:
            exchange = _first(row.get("exchange"), self._settings.exchange)
        else:
            exchange = self._settings.exchange or ""
            self._check_key(row)
        return Outgoing(
            body=value.encode() if isinstance(value, str) else value,
            exchange=_short("exchange", exchange),
            routing_key=_short("routing_key", _first(row.get("routing_key"), self._settings.routing_key)),
            properties=_properties(row),
            mandatory=self._settings.mandatory,
        )

    def _check_key(self, row: dict[str, Any]) -> None:
        """Refuse rows without a key: the broker would silently send them all to one queue."""
        assert self._by is not None
        kind, _, name = self._by.partition(":")
        if kind == "header":
            there = any(key == name and value is not None for key, value in row.get("headers") or ())
            needs = f"{name!r} in its headers column"
        elif kind == "property":
            inside = name in PROPERTIES
            there = bool(((row.get("properties") or {}) if inside else row).get(name))
            needs = f"a value in its column {'properties.' if inside else ''}{name}"
        else:
            there = _first(row.get("routing_key"), self._settings.routing_key, None) is not None
            needs = "a value in its column routing_key, or the option routingKey"
        if not there:
            raise ConfigError(
                "partitions", self._settings.partitions, f"are by {self._by}: every row needs {needs}"
            )


def _values(name: str, column: pa.Array) -> list[Any]:
    if name == "timestamp":
        column = column.cast(pa.timestamp("us", "UTC"))
        micros = column.cast(pa.int64())
        for odd in micros.filter(pc.or_(pc.less(micros, 0), pc.greater(micros, _LAST_MICROSECOND))):
            raise ConfigError(
                "column timestamp", str(np.datetime64(odd.as_py(), "us")), "must be from 1970 to 9999"
            )
    return list(column.to_pylist())


def _first(column: str | None, option: str | None, other: Any = "") -> Any:
    if column is not None:
        return column
    return option if option is not None else other


def _short(column: str, value: str) -> str:
    size = len(value.encode())
    if size > _SHORT:
        raise ConfigError(f"column {column}", value[:40] + "...", f"at most {_SHORT} bytes; this has {size}")
    return value


def _properties(row: dict[str, Any]) -> bytes:
    """Encode the properties here, so that an error can name the column."""
    told = {name: value for name, value in (row.get("properties") or {}).items() if value is not None}
    told.setdefault("delivery_mode", _PERSISTENT)
    for name, value in told.items():
        fits, allowed = _FITS.get(name, (None, ""))
        if fits is not None and not fits(value):
            raise ConfigError(f"column properties.{name}", value, allowed)
        if isinstance(value, str):
            _short(f"properties.{name}", value)
    if "type" in told:
        told["message_type"] = told.pop("type")
    headers = {name: value for name, value in row.get("headers") or [] if value is not None}
    for name in headers:
        _short("headers", name)
    return encode_properties(
        Properties(
            message_id=_short("message_id", row.get("message_id") or "") or None,
            timestamp=row.get("timestamp"),
            headers=headers or None,
            **told,
        )
    )
