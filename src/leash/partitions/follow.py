"""Follows partitions: their newest layout, and which queues have passed which markers.

One thread reads the stream `<name>.layout` from its beginning and then follows its end. A lost connection is
opened again; then the same records are read again.
"""

from __future__ import annotations

import json
import logging
import threading
from contextlib import suppress

from leash.amqp import Connection, Publisher, connect
from leash.amqp.uri import Uri
from leash.backoff import Backoff
from leash.errors import AmqpError, LeashError
from leash.partitions import layout_store
from leash.partitions.gates import Gate
from leash.partitions.layout import Layout

log = logging.getLogger("leash.partitions")

_BACKOFF = (0.1, 5.0)


class Follow:
    """The state of the partitions `name`, kept up to date from `start` to `stop`."""

    def __init__(self, uri: str | Uri, name: str) -> None:
        self.name = name
        self._uri = uri
        self._layout: Layout | None = None
        self._passes: dict[layout_store.Pass, None] = {}
        self._left = threading.Event()
        self._writing = threading.Lock()
        self._publishing: tuple[Connection, Publisher] | None = None
        self._thread = threading.Thread(target=self._run, name=f"leash-watch {name}", daemon=True)

    @property
    def layout(self) -> Layout:
        assert self._layout is not None
        return self._layout

    def start(self) -> None:
        """Returns when the layout is known; raises if there is none."""
        with connect(self._uri, name=f"leash watch {self.name}") as connection:
            known = layout_store.recall(connection, self.name)
            self._layout = known.layout or layout_store.need(connection, self.name)
        self._passes = dict.fromkeys(known.passed)
        self._thread.start()

    def stop(self) -> None:
        self._left.set()
        self._thread.join(5.0)
        with self._writing:
            if self._publishing is not None:
                self._publishing[0].close()

    def is_open(self, gate: Gate) -> bool:
        """True if all queues for which a gate waits have passed their markers."""
        return all((gate.move, source) in self._passes for source in gate.sources)

    def passed(self, move: int, queue: str) -> None:
        """Record for all processes that a queue has passed its marker; confirmed when this returns."""
        with self._writing:
            if self._publishing is None or self._publishing[0].closed:
                connection = connect(self._uri, name=f"leash passes {self.name}")
                self._publishing = (connection, Publisher(connection))
            layout_store.passed(self._publishing[1], self.name, move, queue)

    # --- its thread ---

    def _run(self) -> None:
        backoff = Backoff(*_BACKOFF)
        while not self._left.is_set():
            try:
                with connect(self._uri, name=f"leash watch {self.name}") as connection:
                    backoff.reset()
                    self._follow(connection)
            except AmqpError as error:
                log.warning("event=watch_interrupted partitions=%r reason=%r", self.name, str(error))
            except Exception:
                log.exception("event=watch_failed partitions=%r", self.name)
            self._left.wait(backoff.next())

    def _follow(self, connection: Connection) -> None:
        channel = connection.channel()
        layout_store.tail(channel, self.name, None, "first")
        newest: Layout | None = None
        while not self._left.is_set():
            batch = channel.deliveries(0.2)
            if batch is None:
                if newest is not None:
                    self._layout, newest = newest, None  # only now: earlier records may be outdated
                continue
            channel.ack(batch.tags[-1], multiple=True)
            for body in batch.bodies:
                record = layout_store.read_pass(body)
                if record is not None:
                    self._passes[record[0]] = None
                    continue
                with suppress(LeashError):  # a newer Leash's record: ignore it
                    newest = Layout.from_json(json.loads(body), connection.version)
