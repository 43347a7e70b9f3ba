"""Without Leash: the consumer that most people write first. It really runs.

One channel, one prefetch for all queues, and what comes first is handled first. Every few hundred messages it
writes a Parquet file, and acks what is in it.
"""

from __future__ import annotations

import queue
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from leash.amqp import connect
from leash.amqp.wire import Deliveries
from leash.errors import LeashError
from leash.lab.demo.load import Load
from leash.lab.demo.observed import Seen

PREFETCH = 100
ROWS = 500
"""Rows in a file: fewer than all windows together, or it would wait for ever."""
_PATIENCE = 60.0


def drain(uri: str, load: Load, folder: Path) -> Seen:
    """Consume as many messages as the pipeline will; returns what came, and when."""
    folder.mkdir(parents=True, exist_ok=True)
    came: queue.SimpleQueue[Deliveries] = queue.SimpleQueue()
    seen = Seen(dict.fromkeys(load.quanta, 0))
    names: list[str] = []
    bodies: list[bytes] = []
    rows = min(ROWS, load.enough)
    with connect(uri, name="leash demo, plain consumer") as connection, connection.channel() as channel:
        channel.qos(PREFETCH)
        for name in load.quanta:
            channel.consume(name, deliver=came.put)
        while seen.total < load.enough:
            try:
                batch = came.get(timeout=_PATIENCE)
            except queue.Empty:
                raise LeashError(f"the plain consumer got nothing for {_PATIENCE:.0f} s") from None
            names += batch.routing_keys
            bodies += batch.bodies
            if len(names) >= rows:
                pq.write_table(pa.table({"queue": names, "value": bodies}), folder / f"{seen.total}.parquet")
                channel.ack(batch.tags[-1], multiple=True)
                seen.add({name: names.count(name) for name in load.quanta}, time.time())
                names, bodies = [], []
    return seen
