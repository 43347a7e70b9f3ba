"""Checks the queues: whether they exist, whether their order is safe, and who else reads them."""

from __future__ import annotations

import secrets
import time
from collections.abc import Container
from contextlib import suppress

from leash.amqp import Connection, Outgoing, Publisher, QueueState, connect, topology
from leash.amqp.delivery_limit import LIMIT, danger, declare_limbo, limbo_queue, limit_of
from leash.amqp.queue_traits import Traits, traits
from leash.errors import AccessRefused, ConfigError, NotFound, PublishError, QueueMissing, ResourceLocked
from leash.logfmt import logger
from leash.spark.settings import SourceSettings
from leash.spark.task.ordered import lock, lock_queue, unlock

log = logger(__name__)

_OTHERS_LEAVE = 5.0  # seconds for the tasks of an earlier run to end
_SHORT = 5.0  # seconds for a confirm


def refuse_stream(option: str, queue: str, found: Traits | None) -> None:
    """Refuse a stream: reading does not remove its messages, so none can be taken or returned."""
    if found is not None and found.kind == "stream":
        raise ConfigError(option, queue, "is a stream: read it by the option stream")


class Guard:
    """Checks the queues of one query. Warns once per queue and reason."""

    def __init__(self, settings: SourceSettings) -> None:
        self._settings = settings
        self._warned: set[tuple[str, str]] = set()
        self._may_publish: bool | None = None
        self._absent: set[str] = set()
        self.exclusive: tuple[str, ...] = ()
        self.limbo: tuple[str, ...] = ()
        self.quorum: frozenset[str] = frozenset()

    def check(self, link: Connection) -> None:
        """Check all queues before the first plan."""
        exclusive, limbo, quorum = [], [], []
        for queue in self._settings.queues:
            name = queue.name
            try:
                with link.channel() as channel:
                    topology.state(channel, name)
            except NotFound as error:
                self.missing(name, error)
                continue
            found = traits(link, name)
            refuse_stream("queue" if len(self._settings.queues) == 1 else "queues", name, found)
            if found is None:
                self._uninspected(name)
                continue
            if found.kind == "quorum":
                quorum.append(name)
            limit = limit_of(found, link.version)
            if found.kind == "quorum" and limit is not None:
                self._check_limit(link, name, found, limit)
            if self._settings.ordered:
                self._check_order(link, name, found)
                if found.kind == "classic" and not found.single_active:
                    exclusive.append(name)
                else:
                    self._check_helpers(link, name, found)
                if found.kind == "quorum":
                    limbo.append(name)
            elif found.kind == "quorum":
                self._look_for_limbo(link, name)
        self.exclusive, self.limbo = tuple(exclusive), tuple(limbo)
        self.quorum = frozenset(quorum)

    def _uninspected(self, queue: str) -> None:
        if self._settings.ordered:
            raise ConfigError(
                "ordered",
                True,
                f"queue {queue!r} cannot be inspected, so its order cannot be guaranteed: grant this user "
                "the configure permission for it",
            )
        self._warn(queue, "traits", "could not be inspected; may this user configure it?")

    def _check_limit(self, link: Connection, queue: str, found: Traits, limit: int) -> None:
        """Tasks rescue messages that were redelivered too often. Warn if that is not enough."""
        if "x-dead-letter-exchange" in found.arguments:
            return
        default = "" if "x-delivery-limit" in found.arguments else ", the default,"
        has = f"has a delivery limit of {limit}{default} and no dead-letter exchange: "
        if not self._may_write(link):
            self._warn(
                queue,
                "limit",
                f"{has}this user may not write to the default exchange, so messages redelivered too often "
                "cannot be rescued, and the broker drops them. Grant write for 'amq.default', or give the "
                "queue a dead-letter exchange",
            )
        elif limit < LIMIT:
            rescued = f"messages are rescued after {danger(limit)} redeliveries, which may be too late"
            risk = rescued if limit else "the broker drops them the first time that a task fails"
            self._warn(queue, "limit", f"{has}{risk}. Give it a higher limit, or a dead-letter exchange")

    def _check_helpers(self, link: Connection, queue: str, found: Traits) -> None:
        """Check the queues that tasks need beside an ordered one: its lock, and its limbo if it counts
        deliveries.
        """
        needed, quorum = [lock_queue(queue)], found.kind == "quorum"
        try:
            if lock(link, queue):
                unlock(link, queue)
            if quorum:
                needed.append(limbo_queue(queue))
                declare_limbo(link, queue)
        except AccessRefused as error:
            raise ConfigError(
                "ordered",
                True,
                f"queue {queue!r} needs {needed[-1]!r} beside it: grant this user configure, read and write "
                f"for it ({error.text})",
            ) from None
        if quorum and not self._may_write(link):
            raise ConfigError(
                "ordered",
                True,
                f"messages of quorum queue {queue!r} redelivered too often are copied to {needed[-1]!r}: "
                "grant this user write for 'amq.default'",
            )

    def _may_write(self, link: Connection) -> bool:
        if self._may_publish is None:
            self._may_publish = _may_publish(link)
        return self._may_publish

    def _look_for_limbo(self, link: Connection, queue: str) -> None:
        """An ordered query may have left messages in limbo, which only an ordered query reads."""
        with suppress(NotFound, AccessRefused, ResourceLocked), link.channel() as channel:
            if waiting := topology.state(channel, limbo_queue(queue)).ready:
                self._warn(
                    queue,
                    "limbo",
                    f"has {waiting} messages in {limbo_queue(queue)!r} that were redelivered too often: this "
                    "query will not see them. Read them with ordered=true first, or with a live consumer",
                )

    def _check_order(self, link: Connection, queue: str, found: Traits) -> None:
        refuse_disorder(queue, found)
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
                    f"queue {queue!r} has {consumers} other consumers, which would break its order",
                )
            time.sleep(0.1)

    def found(self, link: Connection, queue: str) -> None:
        """Check a queue that was missing before."""
        if queue in self._absent:
            self._absent.clear()
            self.check(link)

    def look_again(self, link: Connection, came_back: Container[str]) -> None:
        """Inspect ordered queues whose messages were redelivered: as new quorum queues they need a limbo."""
        for name in (queue.name for queue in self._settings.queues):
            if name not in came_back or name in self.limbo:
                continue
            with suppress(NotFound):
                found = traits(link, name)
                if found is not None and found.kind == "quorum":
                    refuse_disorder(name, found)
                    self.limbo += (name,)
                    self.exclusive = tuple(queue for queue in self.exclusive if queue != name)

    def missing(self, queue: str, error: NotFound) -> None:
        if self._settings.fail_on_data_loss:
            raise QueueMissing(
                f"queue {queue!r} does not exist ({error.text}): declare it, or set failOnDataLoss=false "
                "to go on without it"
            ) from None
        self._absent.add(queue)
        self._warn(queue, "missing", "does not exist; going on without it")

    def in_limbo(self, link: Connection, queue: str) -> int:
        """How many of a queue's messages wait in its limbo, to be read first."""
        if queue not in self.limbo:
            return 0
        try:
            with link.channel() as channel:
                return topology.state(channel, limbo_queue(queue)).ready
        except NotFound:
            return 0  # the next task declares it again

    def watch(self, state: QueueState) -> None:
        """Warn of consumers between batches, when none is ours."""
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
            log.warning("event=queue_warning queue=%r reason=%r", queue, text)


def refuse_disorder(queue: str, found: Traits) -> None:
    if found.kind == "quorum" and not found.single_active:
        raise ConfigError(
            "ordered",
            True,
            f"quorum queue {queue!r} keeps no order across consumers unless it was declared "
            "with x-single-active-consumer",
        )
    if found.overtakes:
        raise ConfigError(
            "ordered",
            True,
            f"queue {queue!r} has x-delayed-retry-type: its messages overtake one that comes back",
        )


def _may_publish(link: Connection) -> bool:
    """True if copies can be published: tried with a message for a queue that does not exist.

    On a connection of its own, since an alarm blocks those that publish.
    """
    nobody = Outgoing(b"", "", f"leash.nobody.{secrets.token_hex(8)}", mandatory=True)
    own = connect(link.uri, name="leash spark publish")
    try:
        Publisher(own, timeout=_SHORT).publish([nobody])
    except AccessRefused:
        return False
    except PublishError:
        pass  # unroutable, as expected; or unknown, since the broker takes no messages now
    finally:
        own.abort()
    return True
