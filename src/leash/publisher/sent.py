"""A message on its way, and what became of it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from leash.publisher.unconfirmed import Line

NEW, QUEUED, WRITTEN, OVER = range(4)
"""A new one still waits for room."""

Message = tuple[bytes, str, str, bytes, bool]
"""As `leash.amqp.Outgoing`; the garbage collector looks at a plain tuple only once."""

Callback = Callable[[], object] | tuple[asyncio.AbstractEventLoop, "asyncio.Future[None]"]
"""Called, or a task to be woken, when a message is confirmed or has failed."""


class Receipt(NamedTuple):
    """The broker has it."""

    message_id: str
    """What it carries as its message id: the one that was given, or else a new one."""
    resent: bool
    """True if it was sent more than once: then it may be there more than once, with the same message id."""


class Sent:
    """What `send` returns: a message whose confirm comes later. Wait for `result()`, or `await` it."""

    __slots__ = ("_line", "callbacks", "error", "message", "message_id", "resent", "seen", "size", "state")

    def __init__(self, line: Line, message: Message, message_id: str) -> None:
        self._line = line
        self.message = message
        self.message_id = message_id
        self.size = len(message[0])
        self.state = NEW
        self.error: Exception | None = None
        self.resent = False
        self.callbacks: list[Callback] | None = None
        self.seen = True  # somebody asks, or will, what became of it

    def __repr__(self) -> str:
        state = "failed" if self.error else ("waiting", "waiting", "sent", "confirmed")[self.state]
        return f"<Sent {self.message_id}: {state}>"

    def done(self) -> bool:
        """True once it was confirmed, or failed."""
        return self.state == OVER

    def result(self, timeout: float | None = None) -> Receipt:
        """Wait until it is confirmed. Raises what went wrong; TimeoutError says only that it is still on its
        way.
        """
        self.seen = True
        if self.state != OVER and not self.wait(timeout):
            raise TimeoutError(f"{self!r} was not confirmed within {timeout:g} s")
        return self.receipt()

    def exception(self, timeout: float | None = None) -> Exception | None:
        """Wait, and return what went wrong; None: it is confirmed."""
        self.seen = True
        if self.state != OVER and not self.wait(timeout):
            raise TimeoutError(f"{self!r} was not confirmed within {timeout:g} s")
        return self.error

    def add_done_callback(self, function: Callable[[Sent], object]) -> None:
        """Call it when the message is confirmed or has failed: soon, in a thread of the publisher's, where it
        must not wait for anything; at once if that is so already.
        """
        self.seen = True
        if not self._line.when_over(self, lambda: function(self)):
            function(self)

    def __await__(self) -> Generator[Any, None, Receipt]:
        self.seen = True
        if self.state != OVER:
            loop = asyncio.get_running_loop()
            told = loop.create_future()
            if self._line.when_over(self, (loop, told)):
                yield from told.__await__()
        return self.receipt()

    def wait(self, timeout: float | None) -> bool:
        """Wait for its end, for that time at most; True if it is over."""
        gate = threading.Lock()
        gate.acquire()
        if not self._line.when_over(self, gate.release):
            return True
        return gate.acquire(timeout=-1 if timeout is None else max(0.0, timeout))

    def receipt(self) -> Receipt:
        """Of one that is over."""
        if self.error is not None:
            raise self.error
        return Receipt(self.message_id, self.resent)
