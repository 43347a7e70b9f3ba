"""The columns of a source of streams.

Spark imports this in every session: nothing heavy here.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql.types import (
    BinaryType,
    DataType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from leash.errors import ConfigError

PROPERTIES: dict[str, DataType] = {
    "user_id": StringType(),
    "to": StringType(),
    "subject": StringType(),
    "reply_to": StringType(),
    "correlation_id": StringType(),
    "content_type": StringType(),
    "content_encoding": StringType(),
    "absolute_expiry_time": TimestampType(),
    "creation_time": TimestampType(),
    "group_id": StringType(),
    "group_sequence": LongType(),
    "reply_to_group_id": StringType(),
}
"""As AMQP 1.0 names them: a stream keeps its messages in that format."""

_COLUMNS: dict[str, DataType] = {
    "value": BinaryType(),
    "stream": StringType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
}
_TEXTS = MapType(StringType(), StringType())
_ON_DEMAND: dict[str, dict[str, DataType]] = {
    "includeProperties": {
        "message_id": StringType(),
        "properties": StructType([StructField(name, kind) for name, kind in PROPERTIES.items()]),
    },
    "includeHeaders": {"headers": _TEXTS},
    "includeAnnotations": {"annotations": _TEXTS},
}


def source_schema(given: Mapping[str, str]) -> StructType:
    """By the options as they were given, checked or not."""
    lowered = {name.lower(): str(value).strip().lower() for name, value in given.items()}
    columns = dict(_COLUMNS)
    for option, more in _ON_DEMAND.items():
        if lowered.get(option.lower()) == "true":
            columns |= more
    return StructType([StructField(name, kind) for name, kind in columns.items()])


def check_schema(asked: StructType, given: Mapping[str, str]) -> None:
    """A schema that the user gave may leave columns out, but neither invent nor change any."""
    known = source_schema(given)
    for field in asked.fields:
        if field.name not in known.names:
            needs = next((option for option, more in _ON_DEMAND.items() if field.name in more), None)
            hint = "" if needs is None else f"; {field.name} needs {needs}=true"
            raise ConfigError("schema", field.name, f"a column of {', '.join(known.names)}{hint}")
        kind = known[field.name].dataType
        if field.dataType != kind:
            raise ConfigError(
                "schema", f"{field.name} {field.dataType.simpleString()}", f"is {kind.simpleString()}"
            )
