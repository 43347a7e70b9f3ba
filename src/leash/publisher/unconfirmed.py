"""What is on its way: the backlog, and what was written and not yet confirmed. No I/O, and no clock.

The rule: a message leaves the line when the broker has confirmed, refused or returned it, or when whoever
waits for it gives it up. What was written on a connection that is lost is written again, on the next one,
before anything newer; with `resend=False` it fails with InDoubt instead.

A message that the broker closes the channel for (an exchange that is missing, a body that is too large) takes
the others with it. So these are written again one by one until the culprit is alone, and only it fails.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from leash.amqp.properties import read_property
from leash.errors import AmqpError, InDoubt, NotSent, PublishBlocked
from leash.logfmt import logger
from leash.publisher.sent import NEW, OVER, QUEUED, WRITTEN, Callback, Sent
from leash.publisher.verdicts import culprits, is_somebodys_fault, nacked, unroutable

if TYPE_CHECKING:
    from leash.amqp import Outgoing

log = logger("leash.publisher")

_CHUNK, _CHUNK_BYTES = 512, 1 << 18
"""What is written in one go."""
_UNSEEN = 1000
_CROWD = 64


class Line:
    """Shared by those who send, the writer's thread and the connection's reader."""

    def __init__(self, most: int, most_bytes: int, resend: bool) -> None:
        self._most, self._most_bytes = most, most_bytes
        self._low = most - (most + 3) // 4
        self._resend = resend
        self.lock = threading.Lock()
        self.work = threading.Condition(self.lock)
        """The writer has something to do."""
        self._room = threading.Condition(self.lock)
        self._short = 0  # how many wait for room
        self.writer_waits = False
        self._backlog: deque[Sent] = deque()
        self._pending: dict[int, Sent] = {}
        self._next = 1
        self._acked = 0  # every tag up to here
        self._seek = 1  # the next one that is returned was published from here on
        self._alone = 0  # so many are written one by one
        self._bytes = 0
        self._crowd = 0  # how many messages were unconfirmed at a time, lately
        self.confirmed = 0
        """How many messages, ever."""
        self.count = 0
        """Messages that are neither confirmed nor given up."""
        self.epoch = 0
        """Counts channels: what the reader of an old one says is not about the present one."""
        self.closed = False
        self.trouble: str | None = None
        """Why nothing is written at the moment."""
        self.blocked: Callable[[], str | None] = lambda: None
        self.before_wait: Callable[[], None] = lambda: None
        """Called before anybody waits for room, to refuse that."""
        self._failed: list[Sent] = []  # and nobody has asked yet

    # --- those who send ---

    def put(self, lot: list[Sent], timeout: float | None) -> bool:
        """Take them in, as soon as there is room; not one that is given up meanwhile. False: none in time."""
        count = len(lot)
        size = lot[0].size if count == 1 else sum([each.size for each in lot])
        with self.lock:
            if not self._fits(count, size):
                self.before_wait()
                self._short += 1
                try:
                    if not self._room.wait_for(lambda: self._fits(count, size) or self._vain(lot), timeout):
                        return False
                finally:
                    self._short -= 1
            if self.closed:
                raise NotSent("the publisher is closed")
            if lot[0].state == OVER:
                return True
            for each in lot:
                each.state = QUEUED
            self._backlog.extend(lot)
            self.count += count
            self._bytes += size
            if self.writer_waits:
                self.writer_waits = False
                self.work.notify()
        return True

    def _vain(self, lot: list[Sent]) -> bool:
        """True if there is no point in waiting for room. Only what is put by itself is given up."""
        return self.closed or lot[0].state == OVER

    def _fits(self, count: int, size: int) -> bool:
        if not self.count:
            return True
        return self.count + count <= self._most and self._bytes + size <= self._most_bytes

    def when_over(self, sent: Sent, callback: Callback) -> bool:
        """Have it called once the message is confirmed or has failed. False: that is so already."""
        with self.lock:
            if sent.state == OVER:
                return False
            if sent.callbacks is None:
                sent.callbacks = [callback]
            else:
                sent.callbacks.append(callback)
            return True

    def give_up(self, sent: Sent, waited: float | None) -> None:
        """Nobody waits for it any longer: what is still in the backlog is never written."""
        with self.lock:
            if sent.state != OVER:
                over = [sent]
                self._over(sent, self._why(sent, "" if waited is None else f" within {waited:g} s"))
            else:
                over = []
        self.tell_all(over)

    def _why(self, sent: Sent, when: str) -> Exception:
        blocked = self.blocked()
        trouble = f"the broker blocks publishers ({blocked})" if blocked else self.trouble
        because = f": {trouble}" if trouble else ""
        if sent.state == WRITTEN or sent.resent:
            return InDoubt(f"message {sent.message_id} was sent and not confirmed{when}{because}")
        text = f"message {sent.message_id} was not sent{when}{because}"
        if not blocked:
            return NotSent(text)
        error = PublishBlocked(text)
        error.in_doubt = False
        return error

    def wait_empty(self, timeout: float | None) -> bool:
        with self.lock:
            self._short += 1
            try:
                return self._room.wait_for(lambda: not self.count, timeout)
            finally:
                self._short -= 1

    def close(self) -> None:
        """Take in no more, and give up what is left."""
        with self.lock:
            self.closed = True
            left = [each for each in (*self._pending.values(), *self._backlog) if each.state != OVER]
            for sent in left:
                self._over(sent, self._why(sent, " before the publisher was closed"))
            self._room.notify_all()
            self.work.notify_all()
        self.tell_all(left)

    def disown(self) -> None:
        """In a process that was forked, which has one thread: what is on its way is the parent's."""
        for sent in (*self._pending.values(), *self._backlog):
            sent.error = InDoubt(f"message {sent.message_id} was sent by another process")
            sent.state = OVER

    # --- the writer ---

    def idle(self) -> bool:
        """True if there is nothing to write now. Under the lock."""
        while self._backlog and self._backlog[0].state == OVER:
            self._backlog.popleft()
        return not self._backlog or bool(self._alone and self._pending)

    def crowded(self) -> bool:
        """True if more threads publish one by one than have come by now: a moment later they will have, and
        one write and one confirm do for all. Under the lock.
        """
        return len(self._backlog) + len(self._pending) < self._crowd <= _CROWD

    def take(self) -> list[Sent]:
        """The next lot to write; from now on these count as sent."""
        with self.lock:
            lot: list[Sent] = []
            size = 0
            most = _CHUNK
            if self.idle():
                return lot
            if self._alone:
                most = 1
                self._alone -= 1
            backlog = self._backlog
            while backlog and len(lot) < most and size < _CHUNK_BYTES:
                sent = backlog.popleft()
                if sent.state != OVER:
                    sent.state = WRITTEN
                    size += sent.size
                    lot.append(sent)
            return lot

    def number(self, lot: list[Sent], epoch: int) -> bool:
        """Just before they are written. False: the channel is gone, and they are back; or all is over."""
        with self.lock:
            if epoch == self.epoch and not self.closed:
                first = self._next
                self._next += len(lot)
                self._pending.update(zip(range(first, self._next), lot, strict=True))
                return True
            for sent in lot:
                if sent.state != OVER:
                    sent.state = QUEUED
            self._backlog.extendleft(reversed(lot))
        if self.closed:
            self.close()
        return False

    def opened(self) -> int:
        """There is a new channel: its number for `number`, `confirm`, `returned` and `lost`."""
        with self.lock:
            self.epoch += 1
            self._next, self._acked, self._seek = 1, 0, 1
            self.trouble = None
            return self.epoch

    def fail(self, lot: Iterable[Sent], error: Exception) -> None:
        """They cannot be written at all."""
        with self.lock:
            over = [each for each in lot if each.state != OVER]
            for sent in over:
                self._over(sent, error)
        self.tell_all(over)

    def fail_queued(self, error: Exception) -> None:
        """All that was never written: there is no way to the broker."""
        with self.lock:
            queued = [each for each in self._backlog if not each.resent]
        self.fail(queued, error)

    # --- the connection's reader ---

    def confirm(self, epoch: int, tag: int, multiple: bool, ok: bool) -> None:
        with self.lock:
            if epoch != self.epoch:
                return
            self._crowd = max(self.count, self._crowd * 7 // 8)
            pop, over = self._pending.pop, []
            for each in range(self._acked + 1, tag + 1) if multiple else (tag,):
                sent = pop(each, None)
                if sent is not None and sent.state != OVER:
                    over.append(sent)
                    self._over(sent, None if ok else nacked(sent))
            if multiple:
                self._acked = tag
            if self._alone and self._backlog and not self._pending:
                self.writer_waits = False
                self.work.notify()
        self.tell_all(over)

    def returned(self, epoch: int, came: Outgoing, properties: bytes, text: str) -> None:
        """The broker has no queue for it. They come in their order, and each before its confirm."""
        number = read_property(properties, "message_id")
        over = []
        with self.lock:
            for tag in range(self._seek, self._next if epoch == self.epoch else 0):
                sent = self._pending.get(tag)
                if sent is not None and sent.message_id == number and sent.message[:3] == came[:3]:
                    self._seek = tag + 1
                    if sent.state != OVER:
                        over.append(sent)
                        self._over(sent, unroutable(sent, text))
                    break
        self.tell_all(over)

    def lost(self, epoch: int, error: AmqpError) -> None:
        """The channel is gone, and with it the confirms of what was written on it."""
        with self.lock:
            if epoch != self.epoch:
                return
            self.epoch += 1
            self.trouble = str(error)
            pending = list(self._pending.values())
            self._pending.clear()
            blamed = culprits(pending, error)  # it may be one that was given up
            over = [each for each in blamed if each.state != OVER]
            for sent in over:
                self._over(sent, error)
            left = [each for each in pending if each.state != OVER]
            if self._resend:
                if is_somebodys_fault(error) and not blamed:
                    self._alone = len(left)
                for sent in left:
                    sent.state, sent.resent = QUEUED, True
                self._backlog.extendleft(reversed(left))
            else:
                for sent in left:
                    self._over(
                        sent, InDoubt(f"message {sent.message_id} was sent and not confirmed: {error}")
                    )
                over = [*over, *left]
            self.writer_waits = False
            self.work.notify()
        self.tell_all(over)

    # --- under the lock, and after it ---

    def _over(self, sent: Sent, error: Exception | None) -> None:
        inside = sent.state != NEW
        sent.error = error
        sent.state = OVER  # last: some look at it without the lock
        if inside:
            self.count -= 1
            self._bytes -= sent.size
        if error is None:
            self.confirmed += 1
        elif not sent.seen and len(self._failed) < _UNSEEN:
            self._failed.append(sent)
        if self._short and (self.count <= self._low or not self.count or not inside):
            self._room.notify_all()

    def tell_all(self, over: list[Sent]) -> None:
        """Those who wait; all tasks of one event loop at once. Not under the lock."""
        loops: dict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]] = {}
        for sent in over:
            for callback in sent.callbacks or ():
                if isinstance(callback, tuple):
                    loops.setdefault(callback[0], []).append(callback[1])
                else:
                    try:
                        callback()
                    except Exception:
                        log.exception("event=callback_failed message=%r", sent.message_id)
        for loop, futures in loops.items():
            with contextlib.suppress(RuntimeError):  # the loop has ended, and nobody waits any more
                loop.call_soon_threadsafe(_wake, futures)

    def unseen(self) -> list[Exception]:
        """What went wrong with messages that nobody has asked about; told once."""
        with self.lock:
            failed, self._failed = self._failed, []
        return [each.error for each in failed if each.error is not None and not each.seen]


def _wake(futures: list[asyncio.Future[None]]) -> None:
    for future in futures:
        if not future.done():
            future.set_result(None)
