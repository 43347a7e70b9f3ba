"""Checks on the queues themselves: do they exist, is their order safe, who else reads them."""

from __future__ import annotations

import logging
import time

from leash.amqp import Connection, QueueState, topology
from leash.errors import ConfigError, LeashError, NotFound

from .settings import SourceSettings
from .traits import traits

log = logging.getLogger(__name__)

_OTHERS_LEAVE = 5.0  # seconds for the tasks of an earlier life to go away


class QueueMissing(LeashError):
    """A queue to read does not exist, or no longer."""


class Guard:
    """Warns once per queue and reason."""

    def __init__(self, settings: SourceSettings) -> None:
        self._settings = settings
        self._warned: set[tuple[str, str]] = set()
        self.exclusive: tuple[str, ...] = ()

    def check(self, link: Connection) -> None:
        """Before the first plan."""
        exclusive = []
        for queue in self._settings.queues:
            try:
                with link.channel() as channel:
                    topology.state(channel, queue.name)
            except NotFound as error:
                self.missing(queue.name, error)
                continue
            found = traits(link, queue.name)
            if found is None:
                self._warn(queue.name, "traits", "could not be inspected; may this user configure it?")
                found = {}
            if self._settings.ordered:
                self._check_order(link, queue.name, found)
                if not found.get("x-single-active-consumer"):
                    exclusive.append(queue.name)
            if "x-delivery-limit" in found and "x-dead-letter-exchange" not in found:
                self._warn(
                    queue.name,
                    "limit",
                    f"has a delivery limit of {found['x-delivery-limit']} and no dead-letter exchange: "
                    "when tasks fail that often, the broker drops messages. Give it a dead-letter exchange",
                )
        self.exclusive = tuple(exclusive)

    def _check_order(self, link: Connection, queue: str, found: dict[str, object]) -> None:
        if found.get("x-queue-type") == "quorum" and not found.get("x-single-active-consumer"):
            raise ConfigError(
                "ordered",
                True,
                f"quorum queue {queue!r} keeps no order among consumers unless it was declared "
                "with x-single-active-consumer",
            )
        deadline = time.monotonic() + _OTHERS_LEAVE
        while True:
            with link.channel() as channel:
                consumers = topology.state(channel, queue).consumers
            if not consumers:
                return
            if time.monotonic() > deadline:
                raise ConfigError(
                    "ordered",
                    True,
                    f"queue {queue!r} has {consumers} other consumers; its order is theirs too",
                )
            time.sleep(0.1)

    def missing(self, queue: str, error: NotFound) -> None:
        if self._settings.fail_on_data_loss:
            raise QueueMissing(
                f"queue {queue!r} does not exist ({error.text}): declare it, or set failOnDataLoss=false "
                "to go on without it"
            ) from None
        self._warn(queue, "missing", "does not exist; going on without it")

    def watch(self, state: QueueState) -> None:
        """Between batches nobody of ours consumes, so a consumer now is somebody else's."""
        if state.consumers:
            self._warn(
                state.name,
                "competitor",
                f"has {state.consumers} other consumers: they take messages that this query will not see. A "
                "self-join, or a second query on the same queue, does that too",
            )

    def _warn(self, queue: str, reason: str, text: str) -> None:
        if (queue, reason) not in self._warned:
            self._warned.add((queue, reason))
            log.warning("queue %r %s", queue, text)
