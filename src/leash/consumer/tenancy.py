"""What a consumer of tenants does beside its work: counts who is noisy, and moves messages of adopted queues.

It consumes all lanes like any other queues, with one flow, so that shares, rates and pauses apply to lanes.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

from leash.amqp import connect
from leash.amqp.uri import Uri
from leash.consumer.settings import Queue
from leash.consumer.tenant_tally import Tally
from leash.errors import ConfigError
from leash.fleet.tenants.move_messages import Feed
from leash.fleet.tenants.tenants import Tenants, adopted, need
from leash.logfmt import logger
from leash.partitions.follow import Follow

log = logger("leash.tenants")

_LOOK = 0.25  # seconds between two looks at what is adopted


def lanes_of(tenants: Tenants, queues: Sequence[Queue], partitions: object) -> list[Queue]:
    """The queues of a consumer of tenants."""
    if not isinstance(tenants, Tenants):
        raise ConfigError("tenants", tenants, "Tenants, like Tenants('jobs', by='header:tenant')")
    if queues or partitions is not None:
        raise ConfigError("tenants", tenants.name, "queues, partitions or tenants: one of them")
    return [Queue(lane, kind="quorum" if tenants.kind == "quorum" else "classic") for lane in tenants.queues]


class Tenancy:
    """Of one consumer, from `open` to `stop`."""

    def __init__(self, uri: Uri, tenants: Tenants) -> None:
        self.tally = Tally(tenants)
        self._uri = uri
        self._tenants = tenants
        self._follow: Follow | None = None
        self._feeds: dict[str, Feed] = {}
        self._left = threading.Event()
        self._keeper: threading.Thread | None = None

    def open(self) -> None:
        """Raises if the tenants do not exist, or are not those that were asked for."""
        with connect(self._uri, name=f"leash tenants {self._tenants.name}") as connection:
            self._tenants.check(need(connection, self._tenants.name))
        self._left = threading.Event()
        self._follow = Follow(self._uri, self._tenants.ring)
        self._follow.start()

    def begin(self) -> None:
        """Move what is adopted, now and later."""
        self._keeper = threading.Thread(target=self._keep, name="leash-tenants", daemon=True)
        self._keeper.start()

    def leave(self) -> None:
        """Stop, without waiting for it."""
        self._left.set()
        threading.Thread(target=self.stop, name="leash-leaving", daemon=True).start()

    def stop(self) -> None:
        self._left.set()
        if self._keeper is not None:
            self._keeper.join(15.0)
        for feed in self._feeds.values():
            feed.leave()
        for feed in self._feeds.values():
            feed.stop()
        if self._follow is not None:
            self._follow.stop()
            self._follow = None

    @property
    def feeds(self) -> dict[str, Feed]:
        """By queue; for tests and tools."""
        return dict(self._feeds)

    def _keep(self) -> None:
        while not self._left.is_set():
            try:
                self._look()
            except Exception:
                log.exception("event=tenants_failed tenants=%r", self._tenants.name)
            self._left.wait(_LOOK)

    def _look(self) -> None:
        follow = self._follow
        wanted = () if follow is None else adopted(follow.layout)
        for queue in wanted:
            if queue not in self._feeds:
                log.info("event=feed_started queue=%r tenants=%r", queue, self._tenants.name)
                self._feeds[queue] = feed = Feed(self._uri, queue, self._tenants.name)
                feed.start()
        for queue in [queue for queue in self._feeds if queue not in wanted]:
            self._feeds.pop(queue).stop()
            log.info("event=feed_stopped queue=%r tenants=%r", queue, self._tenants.name)
