"""Routing as Spark column functions: the bucket or the queue of every key, a column at a time.

They compute what the broker's hash exchange would, on Arrow buffers, without sending a message.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from leash.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import Column

    from leash.partitions.layout import Layout
    from leash.policies.ring import HashRing


def bucket(col: Column | str, n: int) -> Column:
    """The bucket, out of n, of every routing key in a string or binary column."""
    from leash.policies.ring import buckets

    buckets([], n)  # report a bad n now, not on an executor

    def compute(keys: pa.Array) -> pa.Array:
        return pa.array(buckets(keys, n))

    return _column(compute, "int", col)


def route(col: Column | str, ring: HashRing | Layout) -> Column:
    """The queue of every key in a column, by a ring or by a layout from `leash.partitions.read`.

    Keys by routing key, message id or correlation id are strings or binaries; by header, the header's
    values; by timestamp, timestamps or whole seconds. Null is a missing header or property.
    """
    from pyspark.sql.functions import array, get, lit

    hashing, queues = _taken_apart(ring)
    names = list(dict.fromkeys(queues))
    places = np.array(
        [names.index(queue) for queue in queues], np.int16 if len(names) < 1 << 15 else np.int32
    )

    def compute(keys: pa.Array) -> pa.Array:
        if pa.types.is_timestamp(keys.type):
            keys = keys.cast(pa.timestamp("s", keys.type.tz), safe=False).cast(pa.int64())
        return pa.array(places.take(hashing.indices(keys)))

    # Python returns numbers, and Spark maps them to names: returning strings would take twice as long.
    kind = "smallint" if places.dtype == np.int16 else "int"
    return get(array(*map(lit, names)), _column(compute, kind, col))


def _column(compute: Any, kind: str, col: Column | str) -> Column:
    from pyspark.sql import functions

    # PySpark's type stubs lack this function.
    result: Column = functions.arrow_udf(compute, kind)(col)  # type: ignore[attr-defined]
    return result


def _taken_apart(ring: Any) -> tuple[HashRing, list[str]]:
    """A ring, and the queue behind each of its bindings."""
    from leash.partitions.layout import Layout
    from leash.policies.ring import HashRing

    if isinstance(ring, HashRing):
        return ring, list(ring.queues)
    if isinstance(ring, Layout):
        return ring.ring, ring.places
    raise ConfigError("ring", ring, "a HashRing, or a layout from leash.partitions.read")
