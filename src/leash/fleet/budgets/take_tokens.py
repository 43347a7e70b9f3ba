"""One budget on one channel: tokens are asked for, taken, and returned.

The law: a take counts once the broker has answered a request that was sent after it, and only if the wheel
was not deleted before. Its permits are valid for half a lease from the moment before it was sent, by this
process's clock. So a process that was stopped in between wakes up with void permits, and a crash in between
costs permits but never adds any.

Tokens are asked for only while work waits for them. Tokens that are not needed are returned at once.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from pamqp import commands

from leash.amqp import Channel, Connection, Deliveries, wire
from leash.fleet.budgets.lifecycle import terms_of
from leash.fleet.budgets.settings import Terms
from leash.fleet.budgets.state_at_broker import Card, turn_queue, wheel_queue
from leash.policies.permits import Permits
from leash.units import MS, nanoseconds

GRACE = 50 * MS
"""Tokens that were not wanted for this long are returned."""

ANSWER = 10.0
"""Seconds to wait for an answer before the connection is closed."""

_FEW = 64
"""The most tokens that one process holds, unless a single message needs more."""

_TURN = 20 * MS
"""How often to ask for the turn to gather several tokens."""


class Token(NamedTuple):
    tag: int
    number: int
    worth: int


class Gone(Exception):
    """The wheel was deleted, or its channel is lost: look at the card again."""


class Wheel:
    """Driven by one thread. `permits` is shared with their users, under `lock`."""

    def __init__(
        self,
        budget: Terms,
        permits: Permits,
        lock: threading.Lock,
        clock: Callable[[], int],
        changed: Callable[[], object],
        nudge: threading.Event,
    ) -> None:
        self.budget = budget
        self.permits = permits
        self.card: Card | None = None
        self._lock = lock
        self._clock = clock
        self._changed = changed
        """Called under the lock when permits came."""
        self._nudge = nudge
        self._channel: Channel | None = None
        self._arrived: deque[Token] = deque()
        self._held: deque[Token] = deque()
        self._lent: deque[Token] = deque()
        self._consumer = ""
        self._prefetch = 0
        self._gone = False
        self._turn: int | None = None
        self._wanted = self._asked_turn = 0
        self._numbers = budget
        self.seen: dict[int, None] = {}
        """The tokens that came since the last census."""

    @property
    def in_hand(self) -> int:
        """Tokens that the broker has delivered to us."""
        return len(self._arrived) + len(self._held) + len(self._lent)

    @property
    def numbers(self) -> Terms:
        """The budget with the numbers in force."""
        return self._numbers

    def attach(self, connection: Connection, card: Card) -> None:
        """Begin on a new channel. Work that began with permits of a lost one gets new permits first."""
        self._channel = channel = connection.channel()
        self.card, self._numbers = card, terms_of(self.budget.name, card.numbers)
        for tokens in (self._arrived, self._held, self._lent):
            tokens.clear()
        self._consumer, self._turn, self._gone = "", None, False

        def lost(_: object) -> None:
            self._gone = True
            self._nudge.set()

        channel.on_lost = lost
        with self._lock:
            self.permits.withdraw(self._clock())
            self.permits.spent = 0

    def detach(self) -> None:
        """Close the channel, which returns all tokens."""
        if self._channel is not None and not self._channel.closed:
            self._channel.close()
        self._channel = None

    def turn(self) -> int | None:
        """Do what is due. Returns after how many ns to call it again, if nothing happens before."""
        if self._gone or self._channel is None:
            raise Gone
        permits = self.permits
        with self._lock:
            now = self._clock()
            permits.available(now)
            short, least, permits.spent = permits.short, permits.least, 0
            in_use = permits.at_work + permits.available(now) if permits.held else 0
        self._absorb()
        self._return(in_use)
        owed = self._lend(in_use)
        if short + owed <= 0:
            return self._rest(now)
        self._wanted = now
        return self._serve(now, short, min(least, short), in_use)

    def _serve(self, now: int, short: int, least: int, in_use: int) -> int | None:
        if least > self._numbers.shape.worth and not self._our_turn(now):
            return _TURN
        self._consume(short + self._lend(in_use), least)
        self._absorb()
        if self._lend(in_use) or not short:
            return None
        chosen: list[Token] = []
        total = 0
        while self._held and total < short:
            chosen.append(self._held.popleft())
            total += chosen[-1].worth
        if total < least:
            self._held.extendleft(reversed(chosen))
            return None
        self._take(chosen, total)
        return 0 if self._held or self._arrived else None

    def _take(self, tokens: list[Token], total: int) -> None:
        channel = self._live()
        card = self.card
        assert card is not None
        began = self._clock()
        if card.form != "held":
            requeue = card.form == "delayed"
            channel.write(b"".join([wire.reject(channel.number, each.tag, requeue) for each in tokens]))
        answer = channel.ask(commands.Basic.Qos(0, self._prefetch, False), commands.Basic.QosOk)
        self._give_up_turn()
        answer(ANSWER)
        if self._gone:
            raise Gone
        if card.form == "held":
            self._lent.extend(tokens)
        with self._lock:
            self.permits.grant(self._clock(), total, began + nanoseconds("lease", self._numbers.lease) // 2)
            self._changed()

    # --- several tokens for one message ---

    def _our_turn(self, now: int) -> bool:
        """True if we have the turn: two processes with a part of the tokens each would wait forever."""
        if self._turn is not None:
            return True
        self._drop()
        if now - self._asked_turn < _TURN:
            return False
        self._asked_turn = now
        assert self.card is not None
        came = self._live().get(turn_queue(self.budget.name, self.card.generation))
        if came is not None:
            method: Any = came.method
            self._turn = method.delivery_tag
        return came is not None

    def _give_up_turn(self) -> None:
        if self._turn is not None:
            self._live().nack(self._turn)
            self._turn = None

    # --- asking, and returning ---

    def _consume(self, short: int, least: int) -> None:
        shape = self._numbers.shape
        small = min(shape.worths)
        wanted = min(-(-short // small), _FEW)
        if self.permits.held:
            wanted = min(len(self._lent) + wanted, 65535)
        wanted = max(wanted, -(-least // small), 1)
        enough = self._prefetch if self.permits.held or least > small else 2 * self._prefetch
        if self._consumer and wanted <= enough:
            return
        channel = self._live()
        assert self.card is not None
        if self._consumer:
            channel.cancel(self._consumer)
        self._prefetch = wanted
        channel.qos(wanted)
        self._consumer = channel.consume(
            wheel_queue(self.budget.name, self.card.generation),
            deliver=self._deliver,
            on_cancel=self._cancelled,
        )

    def _rest(self, now: int) -> int | None:
        """No permits are wanted: return the tokens after `GRACE`."""
        if not (self._consumer or self._held or self._turn is not None):
            return None
        left = self._wanted + GRACE - now
        if left > 0:
            return left
        self._drop()
        self._give_up_turn()
        return None

    def _drop(self) -> None:
        channel = self._live()
        if self._consumer:
            channel.cancel(self._consumer)
            self._consumer = ""
        self._absorb()
        while self._held:
            channel.nack(self._held.popleft().tag)

    def _return(self, in_use: int) -> None:
        """Return permits whose work ended, or that expired before any began."""
        channel = self._live()
        while len(self._lent) > in_use:
            channel.nack(self._lent.popleft().tag)

    def _lend(self, in_use: int) -> int:
        """Give tokens to work that began on a lost connection; returns how many are missing for it."""
        while self._held and len(self._lent) < in_use:
            self._lent.append(self._held.popleft())
        return max(0, in_use - len(self._lent))

    def _live(self) -> Channel:
        if self._channel is None or self._gone:
            raise Gone
        return self._channel

    def _absorb(self) -> None:
        while self._arrived:
            token = self._arrived.popleft()
            self._held.append(token)
            self.seen[token.number] = None

    # --- the reader's thread ---

    def _deliver(self, batch: Deliveries) -> None:
        for tag, body in zip(batch.tags, batch.bodies, strict=True):
            number, worth = bytes(body).split()
            self._arrived.append(Token(tag, int(number), int(worth)))
        self._nudge.set()

    def _cancelled(self, _: str) -> None:
        self._gone = True
        self._nudge.set()
