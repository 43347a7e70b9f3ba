"""Decides what becomes of every message that was not simply done.

    it failed, and tries are left       a copy for later; on an ordered lane or of a stream, again in place;
                                        back into a queue that delays what is rejected to it
    it failed for the last time         `on_exhausted`: parked, rejected or discarded
    it was redelivered too often        rescued into limbo (see `leash.amqp.delivery_limit`)
    its handler never returned          parked, whatever `on_exhausted` says
    it was requeued out of limbo        a copy for its own queue

`copies` makes the copies, `copy_courier` publishes them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from zlib import crc32

from leash.amqp import Connection, Outgoing, delivery_limit
from leash.amqp.delivery_limit import limbo_queue
from leash.consumer import copies, failure_log
from leash.consumer.copy_courier import Republisher
from leash.consumer.engine import Engine
from leash.consumer.inspection import inspect
from leash.consumer.message import Message
from leash.consumer.raw_delivery import LINK
from leash.consumer.retry import Retry
from leash.consumer.settings import OnExhausted, Queue
from leash.consumer.settle import Outcome
from leash.errors import AccessRefused, Nacked, NeverSettled, Rejected
from leash.logfmt import logger

log = logger("leash.consumer")

_KINDS = 50  # of errors that are counted each by itself
_LATER = 1000  # ms
AT_START = 100
"""Beyond this many queues, the queues for their copies are declared when they are needed."""


class Failures:
    """The failures of one running consumer."""

    republisher: Republisher
    """Publishes the copies. Set after construction, since it needs this object."""

    def __init__(
        self,
        engine: Engine,
        queues: list[Queue],
        retry_of: Callable[[str], Retry],
        on_exhausted: OnExhausted,
    ) -> None:
        self._engine = engine
        self._queues = queues
        self._retry_of = retry_of
        self._on_exhausted = on_exhausted
        self._extra: set[str] = set()  # queues for copies that not every consumer needs
        self._declared: set[str] = set()
        self._late: dict[str, copies.Wanted] = {}

    # --- the queues that copies go to ---

    def prepare(self, connection: Connection, target: str | None = None) -> None:
        """Inspect the queues and declare those for copies: at the start, and again if one is missing.

        Of many queues, those of the first `AT_START` are declared, which shows whether this user may; those
        of the others when one is needed, as `target`.
        """
        engine = self._engine
        if not engine.traits:
            engine.traits = inspect(connection, self._queues)
            if any(self._wanted(queue, "") for queue in self._queues):
                self.republisher.check()
        if target in self._late:
            wanted = [self._late[target]]
        else:
            at_start, others = self._queues[:AT_START], self._queues[AT_START:]
            wanted = [copy for queue in at_start for copy in self._targets(queue, connection.version)]
            late = [copy for queue in others for copy in self._targets(queue, connection.version, True)]
            self._late = {copy.name: copy for copy in late}
            wanted += [copy for copy in late if copy.name in self._declared]
        limbos = {limbo_queue(queue.name): queue.name for queue in self._queues}
        missing = copies.declare(connection, wanted, limbos)
        self._declared |= {copy.name for copy in wanted} - missing
        if engine.limbo is not None:
            for name in limbos.keys() & (self._late.keys() | self._declared | missing):
                engine.limbo.made(limbos[name], name not in missing)
        if target is not None and target in missing:
            raise AccessRefused(403, f"{target!r} does not exist and cannot be declared")

    def late(self, target: str) -> bool:
        """True if a queue for copies was not declared yet, because it was not needed."""
        return target in self._late and target not in self._declared

    def _targets(
        self, queue: Queue, version: tuple[int, ...], with_dead: bool = False
    ) -> list[copies.Wanted]:
        queue_traits = self._engine.traits.get(queue.name)
        kind = "classic" if queue_traits is None else queue_traits.kind
        wanted = self._wanted(queue, kind)
        if kind == "quorum" and not queue.ordered:
            limbo = copies.limbo(queue, version)
            if len(limbo.name.encode()) <= 255:
                wanted.append(limbo)
        dead = copies.dead(queue, kind)
        if (with_dead or dead.name in self._extra) and dead not in wanted:
            wanted.append(dead)
        return wanted

    def _wanted(self, queue: Queue, kind: str) -> list[copies.Wanted]:
        return copies.wanted(queue, kind, self._retry_of(queue.name), self._on_exhausted)

    # --- a handler raised ---

    def failed(self, messages: list[Message], error: BaseException) -> None:
        """Decide for each message that the handler did not settle itself."""
        engine = self._engine
        for message in messages:
            if engine.settler.claim(message):
                try:
                    self.fail(message, error)
                except Exception:  # the worker goes on in any case, and the message is not lost
                    log.exception("event=failing_failed queue=%r", message.queue)
                    if message.link.stream:
                        self.again_in_place(message, _LATER)
                    else:
                        engine.settler.settle(message, Outcome.REQUEUED, claimed=True)
            elif message.link.alive:
                failure_log.after_settling(message, error)

    def tells(self, queue: str, error: BaseException) -> bool:
        """True if an error may be that of what the handler calls: another try may help."""
        return self._retry_of(queue).wants(error)

    def fail(self, message: Message, error: BaseException) -> None:
        """Record one more failure of a claimed message."""
        engine, queue, failures = self._engine, message.queue, message.tries + 1
        retry = self._retry_of(queue)
        if engine.gate is not None and engine.gate.excuses(queue) and self.tells(queue, error):
            self._excuse(message, error)
            return
        # A draw that is the same in every rehearsal, and another one for the next message.
        wait = retry.wait(failures, crc32(b"%d %d" % (message.tag, failures))) if retry.wants(error) else None
        in_place = message.link.spec.in_place
        delayed = wait is not None and not in_place and _delayed_by_queue(message)
        copy = None if wait is None or in_place or delayed else copies.later(message, wait)
        if wait is None or not (in_place or delayed or copy):
            self._give_up(message, error, failures)
            return
        then = failure_log.retried(None if delayed else wait)
        failure_log.failed(message, error, failures, retry.tries, then)
        self._count(message, error, failures, "failed", "retried")
        if copy is not None:
            self._send(message, copy)
        elif in_place:
            self.again_in_place(message, wait)
        else:
            engine.settler.settle(message, Outcome.DELAYED, claimed=True)

    def _give_up(self, message: Message, error: BaseException, failures: int) -> None:
        """It failed for the last time."""
        then, most = failure_log.given_up(self._on_exhausted), self._retry_of(message.queue).tries
        failure_log.failed(message, error, failures, most, then)
        self._count(message, error, failures, "failed")
        if self._on_exhausted == "park":
            self._park(message, error)
        else:
            rejected = self._on_exhausted == "reject"
            self._settle(message, Outcome.REJECTED if rejected else Outcome.DISCARDED)

    def _excuse(self, message: Message, error: BaseException) -> None:
        """It failed because nothing works now: once more, in place or from the end of its queue, with as many
        tries as before.
        """
        failure_log.excused(message, error)
        self._count(message, error, message.tries, "failed", "excused")
        self._once_more(message, 0)

    def put_off(self, message: Message) -> bool:
        """The retry budget is used up: wait for one more delay, without a call. False: it has no delay."""
        retry = self._retry_of(message.queue)
        wait = retry.wait(min(message.tries, retry.tries - 1), message.tag) if retry.tries > 1 else None
        if wait is None or not self._engine.settler.claim(message):
            return False
        with self._engine.lock:
            self._engine.counts[message.queue]["put off"] += 1
        self._once_more(message, wait)
        return True

    def _once_more(self, message: Message, wait: int) -> None:
        """Offer a claimed message again, without counting a failure."""
        engine = self._engine
        if message.link.spec.in_place:
            with engine.lock:
                now = engine.clock.now()
                if not message.link.alive:
                    engine.arrivals.remember(message.link)
                elif not engine.stopping:
                    engine.flow.retry_in_place(now, message.queue, message.raw, now + wait * 1_000_000)
        elif (copy := copies.later(message, wait, failed=False)) is not None:
            self._send(message, copy)
        else:
            engine.settler.settle(message, Outcome.REQUEUED, claimed=True)

    def _count(self, message: Message, error: BaseException, failures: int, *events: str) -> None:
        """By event and, for whoever looks, by kind of error; of too many kinds, the one not seen for longest
        is forgotten.
        """
        errors, key = self._engine.errors, (message.queue, type(error).__name__)
        with self._engine.lock:
            self._engine.counts[message.queue].update(events)
            _, before, _, _, _ = errors.pop(key, ("", 0, None, 0, 0.0))
            wall, name = self._engine.clock.wall(), failure_log.message_id(message)
            errors[key] = (copies.shown(error), before + 1, name, failures, wall)
            if len(errors) > _KINDS:
                del errors[next(iter(errors))]

    def _settle(self, message: Message, outcome: Outcome) -> None:
        if outcome is Outcome.REJECTED and message.link.limbo:
            self.out_of_limbo(message, outcome)
        else:
            self._engine.settler.settle(message, outcome, claimed=True)

    def again_in_place(self, message: Message, wait: int) -> None:
        """Try it again after `wait` ms; its lane waits."""
        engine = self._engine
        with engine.lock:
            raw = message.raw_again()
            link = raw[LINK]
            if not link.alive:
                engine.arrivals.remember(link)
            elif not engine.stopping and not link.ending:
                now = engine.clock.now()
                engine.flow.retry_in_place(now, message.queue, raw, now + wait * 1_000_000)

    def _park(self, message: Message, error: BaseException) -> None:
        with self._engine.lock:
            self._engine.counts[message.queue]["parked"] += 1
            if message.link.spec.ordered and message.link.alive:  # otherwise nobody would end that wait
                self._engine.flow.park(message.queue)
        self._send(message, copies.parked(message, error))

    # --- it was redelivered without a known failure ---

    def exempt(self, properties: bytes) -> bool:  # noqa: ARG002
        """True if a message must neither be moved nor parked, however often it is redelivered."""
        return False

    def rescue(self, message: Message) -> None:
        """Move a message that was redelivered too often into limbo, or to the end of its queue if there is no
        limbo. In the reader's thread.
        """
        limbo, queue = self._engine.limbo, message.queue
        there = limbo is not None and limbo.exists(queue)
        message.outcome = Outcome.RESCUED
        self._send(message, copies.rescued(message, limbo_queue(queue) if there else queue))

    def barred(self, message: Message, copy: Outgoing, error: Exception) -> bool:
        """Deal with a copy that cannot be published, for lack of permission, of its exchange or of a limbo: a
        message to be rescued goes to the end of its queue, or is handled instead, and a dead letter is
        parked. One that its own queue has no room for is given back: waiting for room, it would keep a place
        in the window, and nobody would make any. True if one of these was done.
        """
        rescued = message.outcome is Outcome.RESCUED
        if isinstance(error, Nacked):
            own = not copy.exchange and copy.routing_key == message.queue
            if not own or rescued or message.link.limbo:
                return False
            self._engine.settler.settle(message, Outcome.GIVEN_BACK, claimed=True)
            self._engine.nudge.set()
            return True
        limbo, queue = self._engine.limbo, message.queue
        if rescued and limbo is not None and copy.routing_key != queue and not limbo.exists(queue):
            self.rescue(message)
        elif rescued and limbo is not None:
            limbo.cannot_rescue(message)
        elif copy.exchange:
            self._park(message, Rejected(f"rejected; it cannot be dead-lettered: {error}"))
        return rescued or bool(copy.exchange)

    def never_settled(self, message: Message, error: NeverSettled) -> None:
        """Park a message that takes processes down."""
        if self._engine.settler.claim(message):
            self._engine.note(logging.ERROR, "never_settled", queue=message.queue, reason=str(error))
            self._park(message, error)

    def out_of_limbo(self, message: Message, outcome: Outcome) -> None:
        """Requeue or reject a claimed message by a copy: from limbo the broker would send it elsewhere."""
        if outcome is Outcome.REQUEUED:
            self._send(message, copies.rescued(message, message.queue))
            return
        queue_traits = self._engine.traits.get(message.queue)
        exchange = None if queue_traits is None else queue_traits.arguments.get("x-dead-letter-exchange")
        if queue_traits is None or exchange is None:
            self._park(
                message, Rejected("rejected; no dead-letter exchange of its queue is visible to clients")
            )
            return
        key = queue_traits.arguments.get("x-dead-letter-routing-key", message.routing_key)
        self._send(message, copies.dead_lettered(message, str(exchange), str(key)))

    # --- copies ---

    def _send(self, message: Message, copy: Outgoing) -> None:
        if not copy.exchange:
            self._extra.add(copy.routing_key)
        self.republisher.put(message, copy)

    def confirmed(self, message: Message) -> None:
        """Ack a message whose copy is confirmed, and let an ordered lane go on."""
        engine, link = self._engine, message.link
        rescued = message.outcome is Outcome.RESCUED
        engine.settler.settle(message, Outcome.RESCUED if rescued else Outcome.REPUBLISHED, claimed=True)
        if rescued or link.limbo:
            with engine.lock:
                link.flush()
            engine.drain(link.outbox)  # the ack must be out before anybody begins with what may end us
        with engine.lock:
            if rescued and engine.limbo is not None:
                engine.limbo.rescued(link)
                if engine.limbo.exists(message.queue):
                    engine.limbo.added(message.queue)
            if engine.links.get(message.queue) is link:
                engine.flow.parked(message.queue)
                engine.wake()
        engine.nudge.set()


def _delayed_by_queue(message: Message) -> bool:
    """True if its queue can keep it until the next try, and is not near dropping it for that."""
    link, count = message.link, delivery_limit.delivery_count(message.raw_properties)
    return link.delays and count + 1 < delivery_limit.danger(link.limit)
