"""The front door: messages in, confirms out.

The rule: when `publish` returns, the broker has taken responsibility for the message. An error says what is
known: with `in_doubt` False the message is not there; with InDoubt it was sent and may be. What a lost
connection left unconfirmed is sent again, so it may be there twice, with the same message id; its receipt
says `resent`. With `resend=False` nothing is sent twice, and that is InDoubt.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import socket
import threading
import time
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Self, Unpack

from leash.amqp import connect
from leash.amqp.uri import Uri, parse
from leash.errors import ConfigError, NotSent, PartlyPublished
from leash.logfmt import logger
from leash.policies.exact_numbers import whole
from leash.publisher.drafts import Address, Drafts, Options, address, name_of
from leash.publisher.sent import Receipt, Sent
from leash.publisher.tally import Tally
from leash.publisher.unconfirmed import Line
from leash.publisher.writer import Writer
from leash.units import nanoseconds

if TYPE_CHECKING:
    from leash.partitions import Partitions

log = logger("leash.publisher")

IN_FLIGHT_BYTES = 64 * 1024 * 1024
_LOT = 256
_LOT_BYTES = 1 << 18
_AT_EXIT = 5.0


class Publisher:
    """Publishes with confirms, from any number of threads or from an event loop; see docs/publishing.md.

    Threads that publish at the same time share writes and confirms. A lost connection is opened again, and
    what was not confirmed is sent again. Close it, or use it as a context: that waits for the last confirms.
    A process that is forked gets a connection of its own.

    Arguments:
        uri: The broker, `amqp://user:password@host:port/vhost`; several hosts, separated by commas, for a
            cluster.
        persistent: Messages outlive a restart of the broker, in durable queues. Default: True.
        mandatory: A message that no queue is bound for raises Unroutable. False: the broker drops it.
            Default: True.
        resend: Send again what was not confirmed when a connection is lost: it may be there twice, then.
            False: it fails with InDoubt instead. Default: True.
        timeout: Seconds that a message may take, from the call to the confirm; None: for ever. Default: 30.
        in_flight: Messages that may be unconfirmed at a time; whoever sends more waits. So does whoever sends
            more than 64 MiB of bodies. Default: 10,000.
        name: For the broker's list of connections. Default: `leash publisher <host>:<pid>`.
    """

    def __init__(
        self,
        uri: str | Uri,
        *,
        persistent: bool = True,
        mandatory: bool = True,
        resend: bool = True,
        timeout: float | None = 30.0,
        in_flight: int = 10_000,
        name: str = "",
    ) -> None:
        self._uri = parse(uri)
        if timeout is not None:
            nanoseconds("timeout", timeout)
        self._persistent, self._mandatory, self._resend = persistent, mandatory, resend
        self._timeout = timeout
        self._in_flight = whole("in_flight", in_flight, 1)
        self._name = name
        self._by: dict[str, str] = {}
        self._queues: dict[str, Address] = {}
        self._used = False
        self._begin()

    def _begin(self) -> None:
        """All that belongs to this process."""
        self._line = Line(self._in_flight, IN_FLIGHT_BYTES, self._resend)
        name = self._name or f"leash publisher {socket.gethostname()}:{os.getpid()}"
        self._writer = Writer(self._uri, name, self._line)
        self._line.before_wait = self._refuse_in_own_thread
        self._drafts = Drafts(self._persistent, self._mandatory)
        self._closing = threading.Lock()

    def _fork(self) -> None:
        """In the child: the connection, and what is on its way by it, are the parent's."""
        self._writer.disown()
        self._line.disown()
        closed = self._line.closed
        self._begin()
        self._line.closed = closed

    # --- publishing ---

    def publish(self, body: object, queue: str = "", **options: Unpack[Options]) -> Receipt:
        """Publish one message and wait until it is confirmed.

        `body` is bytes, text, a dict or list (as JSON), a dataclass or a pydantic model. It goes to a queue,
        to an `exchange` with a `routing_key`, or to `partitions` by a `key`. Other options are `headers`,
        `message_id` (a new one, unless given) and `properties`.
        """
        began = time.monotonic()
        self._refuse_in_own_thread()
        sent = self._sent(body, self._to(queue, options), options)
        self._put([sent], self._timeout)
        left = None if self._timeout is None else self._timeout - (time.monotonic() - began)
        if not sent.wait(left):
            self._line.give_up(sent, self._timeout)
        return sent.receipt()

    def send(self, body: object, queue: str = "", **options: Unpack[Options]) -> Sent:
        """Send one message and go on; it waits only while too many are unconfirmed.

        Ask what this returns for the confirm, now or later. If nobody does, `flush` and `close` raise what
        went wrong.
        """
        sent = self._sent(body, self._to(queue, options), options)
        sent.seen = False
        self._put([sent], self._timeout)
        return sent

    def publish_many(self, messages: Iterable[object], queue: str = "", **options: Unpack[Options]) -> int:
        """Publish many bodies to one address and wait until all are confirmed; returns how many.

        If some fail, the others are published all the same, and PartlyPublished says which failed and why.
        """
        self._refuse_in_own_thread()
        to = self._to(queue, options)
        if isinstance(messages, str | bytes | bytearray | Mapping):  # one body, most likely
            raise ConfigError("messages", type(messages).__name__, "a list, or any iterable, of bodies")
        if "message_id" in options:
            raise ConfigError("message_id", options["message_id"], "not for many messages: each has its own")
        tally = Tally(self._line, self._timeout)
        lot: list[Sent] = []
        size = 0
        try:
            for body in messages:
                sent = self._sent(body, to, options)
                lot.append(sent)
                size += sent.size
                if len(lot) >= min(_LOT, self._in_flight) or size >= _LOT_BYTES:
                    self._put(lot, self._timeout)
                    tally.add(lot)
                    lot, size = [], 0
            if lot:
                self._put(lot, self._timeout)
                tally.add(lot)
        except BaseException as error:
            tally.abandon()
            error.add_note(f"{tally.taken} messages had been sent before")
            raise
        return tally.finish()

    async def apublish(self, body: object, queue: str = "", **options: Unpack[Options]) -> Receipt:
        """`publish` for an event loop, which it never blocks. Cancelling it takes back a message that was not
        sent yet, and none that was.
        """
        partitions = options.get("partitions")
        if partitions is not None and name_of(partitions) not in self._by:
            await asyncio.to_thread(self._made_by, partitions)
        sent = self._sent(body, self._to(queue, options), options)
        try:
            async with asyncio.timeout(self._timeout):
                if not self._begun().put([sent], 0):
                    await asyncio.to_thread(self._put, [sent], self._timeout)
                return await sent
        except TimeoutError:
            self._line.give_up(sent, self._timeout)
            return sent.receipt()
        except asyncio.CancelledError:
            self._line.give_up(sent, None)
            raise

    def _to(self, queue: str, options: Options) -> Address:
        if options:
            return address(queue, options, self._made_by)
        to = self._queues.get(queue)
        if to is None:
            to = self._queues[queue] = address(queue, options, self._made_by)
        return to

    def _sent(self, body: object, to: Address, options: Options) -> Sent:
        return Sent(self._line, *self._drafts.draft(body, to, options))

    def _put(self, lot: list[Sent], timeout: float | None) -> None:
        if not self._begun().put(lot, timeout):
            why = self._line.trouble or self._line.blocked() or "the broker confirms too slowly"
            raise NotSent(
                f"{len(lot)} messages found no room among {self._line.count} unconfirmed ones: {why}"
            )

    def _begun(self) -> Line:
        """The line, once the writer has begun."""
        if not self._used:
            self._use()
        self._writer.start()
        return self._line

    def _made_by(self, partitions: str | Partitions) -> str:
        """Looked up once, over another connection: an alarm blocks those that publish."""
        name = name_of(partitions)
        if name not in self._by:
            from leash.partitions import layout_store  # and numpy, which nobody else needs here

            with connect(self._uri, name=f"leash partitions {name}") as connection:
                self._by[name] = layout_store.need(connection, name).by
        return self._by[name]

    def _refuse_in_own_thread(self) -> None:
        if self._writer.is_current:
            raise RuntimeError("a callback of the publisher's must not wait for it: use send()")

    # --- the beginning and the end ---

    def _use(self) -> None:
        """From now on a fork, or the end of the process, concerns it, even if nobody has a name for it."""
        self._used = True
        _open.add(self)

    def open(self) -> None:
        """Connect now, and raise what is wrong. Otherwise the first message does."""
        self._use()
        self._writer.open()

    def flush(self, timeout: float | None = None) -> None:
        """Wait until nothing is unconfirmed; raise what went wrong with messages that nobody asked about."""
        self._refuse_in_own_thread()
        waited = self._timeout if timeout is None else timeout
        if not self._line.wait_empty(waited):
            raise TimeoutError(f"{self._line.count} messages were not confirmed within {waited:g} s")
        self._raise_unseen()

    def close(self) -> None:
        """Wait for what is unconfirmed, for `timeout` seconds at most, and close the connection.

        Raises what went wrong with messages that nobody asked about.
        """
        self._refuse_in_own_thread()
        self._end(self._timeout)
        self._raise_unseen()

    def _end(self, timeout: float | None) -> None:
        with self._closing:
            if not self._line.closed:
                self._line.wait_empty(timeout)
                self._line.close()
                self._writer.stop()
                _open.discard(self)

    def _raise_unseen(self) -> None:
        failed = self._line.unseen()
        if len(failed) == 1:
            raise failed[0]
        if failed:
            raise PartlyPublished(self._line.confirmed, dict(enumerate(failed)))

    def _end_quietly(self) -> None:
        """At the end of the process, if nobody has closed it."""
        self._end(_AT_EXIT if self._timeout is None else min(self._timeout, _AT_EXIT))
        failed = self._line.unseen()
        if failed:
            log.error("event=not_published count=%d reason=%r", len(failed), str(failed[0]))

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:  # that error is the one to see
            self._end_quietly()

    async def __aenter__(self) -> Self:
        await asyncio.to_thread(self.open)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.__exit__, kind, error, tb)


_open: set[Publisher] = set()


def _forked() -> None:
    for publisher in list(_open):
        publisher._fork()


def _at_exit() -> None:
    for publisher in list(_open):
        publisher._end_quietly()


os.register_at_fork(after_in_child=_forked)
atexit.register(_at_exit)
