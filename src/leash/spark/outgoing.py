"""One row, one message: which columns mean what.

They mirror the source's, so that a source can feed a sink.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.types import StructType

from leash.amqp import Outgoing, Properties
from leash.errors import ConfigError

from .columns import PROPERTIES
from .settings import SinkSettings

_TYPES = {
    "value": ("binary", "string"),
    "exchange": ("string",),
    "routing_key": ("string",),
    "message_id": ("string",),
    "timestamp": ("timestamp",),
    "properties": ("struct",),
    "headers": ("map",),
    # The source's own columns: nothing to publish, but no reason to make everybody drop them.
    "queue": ("string",),
    "redelivered": ("boolean",),
}
_PERSISTENT = 2


def check_schema(schema: StructType, settings: SinkSettings) -> None:
    """Before anything is published: known columns of usable types, and somewhere to send each row."""
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
            for inner in field.dataType.names:
                if inner not in PROPERTIES:
                    raise ConfigError("column properties", inner, f"only {', '.join(PROPERTIES)}")
    if "value" not in schema.names:
        raise ConfigError("column", "value", "is required: the message's body, binary or string")
    if "routing_key" not in schema.names and settings.routing_key is None and settings.exchange is None:
        raise ConfigError("routingKey", None, "set routingKey or exchange, or add a routing_key column")


class RowEncoder:
    """`prefix` starts the message ids of this task; the row's number ends them."""

    def __init__(self, settings: SinkSettings, prefix: str) -> None:
        self._settings = settings
        self._prefix = prefix
        self._row = 0

    def messages(self, batch: pa.RecordBatch) -> Iterator[Outgoing]:
        columns = {name: batch.column(name).to_pylist() for name in batch.schema.names}
        for i in range(len(batch)):
            yield self._message({name: values[i] for name, values in columns.items()})

    def _message(self, row: dict[str, Any]) -> Outgoing:
        number, self._row = self._row, self._row + 1
        value = row["value"]
        if value is None:
            raise ConfigError(
                "column value", None, "a message has a body; filter out nulls, or use an empty string"
            )
        message_id = row.get("message_id")
        if not message_id and self._settings.message_id == "auto":
            message_id = f"{self._prefix}-{number}"
        return Outgoing(
            body=value.encode() if isinstance(value, str) else value,
            exchange=_first(row.get("exchange"), self._settings.exchange),
            routing_key=_first(row.get("routing_key"), self._settings.routing_key),
            properties=_properties(row, message_id),
            mandatory=self._settings.mandatory,
        )


def _first(column: str | None, option: str | None) -> str:
    return column if column is not None else option or ""


def _properties(row: dict[str, Any], message_id: str | None) -> Properties:
    told = {name: value for name, value in (row.get("properties") or {}).items() if value is not None}
    told.setdefault("delivery_mode", _PERSISTENT)
    if "type" in told:
        told["message_type"] = told.pop("type")
    headers = {name: value for name, value in row.get("headers") or [] if value is not None}
    return Properties(
        message_id=message_id or None, timestamp=row.get("timestamp"), headers=headers or None, **told
    )
