"""The columns that the source gives and the sink takes.

Spark imports this in every session, so it imports nothing heavy.
"""

from __future__ import annotations

from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DataType,
    IntegerType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from leash.errors import ConfigError

PROPERTIES: dict[str, DataType] = {
    "content_type": StringType(),
    "content_encoding": StringType(),
    "delivery_mode": IntegerType(),
    "priority": IntegerType(),
    "correlation_id": StringType(),
    "reply_to": StringType(),
    "expiration": StringType(),
    "type": StringType(),
    "user_id": StringType(),
    "app_id": StringType(),
}
_COLUMNS: dict[str, DataType] = {
    "value": BinaryType(),
    "queue": StringType(),
    "exchange": StringType(),
    "routing_key": StringType(),
    "redelivered": BooleanType(),
    "message_id": StringType(),
    "timestamp": TimestampType(),
    "properties": StructType([StructField(name, kind) for name, kind in PROPERTIES.items()]),
}
_HEADERS = {"headers": MapType(StringType(), StringType())}


def source_schema(include_headers: bool) -> StructType:
    columns = _COLUMNS | _HEADERS if include_headers else _COLUMNS
    return StructType([StructField(name, kind) for name, kind in columns.items()])


def check_schema(asked: StructType, include_headers: bool) -> None:
    """A user's schema may omit columns, but neither add nor change any."""
    known = source_schema(include_headers)
    for field in asked.fields:
        if field.name not in known.names:
            hint = "" if include_headers else "; headers needs includeHeaders=true"
            raise ConfigError("schema", field.name, f"a column of {', '.join(known.names)}{hint}")
        kind = known[field.name].dataType
        if field.dataType != kind:
            raise ConfigError(
                "schema", f"{field.name} {field.dataType.simpleString()}", f"is {kind.simpleString()}"
            )
