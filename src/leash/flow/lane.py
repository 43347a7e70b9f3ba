"""One lane: its settings and its state."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from leash.flow.hold_states import Hold
from leash.policies.codel import CoDel
from leash.policies.exact_numbers import Number, whole
from leash.policies.shed import Mode, Shedder
from leash.policies.tokens import TokenBucket
from leash.policies.window import Window
from leash.policies.window.credit import MOST
from leash.units import MS

if TYPE_CHECKING:
    from leash.flow.budgets import Purse
    from leash.flow.buffer import BufferBudget


PAUSED, THROTTLED, BUSY, WAITING, PARKING, OPEN = 1, 2, 4, 8, 16, 32
"""Why a lane sits out: it is paused; it has no token; an ordered lane's message is in work, waits for its
next try, or is on its way to the dead queue; or its breaker is open.
"""

MOST_ACKS = 128

Entry = tuple[Any, int, int, int, int]
"""A buffered message, when it arrived, its window's epoch, its cost, and when it was published."""


@dataclass(frozen=True, slots=True)
class Lane:
    """A lane's settings. Times are in ns; `window` None is the autopilot."""

    name: str
    quantum: int = 1
    tier: int = 0
    rate: Number | None = None
    burst: int = 1
    window: int | None = None
    shed: Mode = "shrink"
    target: int = 5 * MS
    interval: int = 100 * MS
    deadline: int | None = None
    delivery_limit: int | None = None
    ordered: bool = False
    """One message at a time, in the order of the queue; its window is fixed."""
    sole: bool = False
    """Single active or exclusive: a returned message comes back to us, and the window is fixed."""
    budgets: tuple[str, ...] = ()
    """The names of the budgets from which its messages need permits."""


class LaneState:
    """A lane's state."""

    __slots__ = (
        "allowed",
        "ask_at",
        "at_once",
        "begun",
        "blocks",
        "bucket",
        "buffer",
        "charged",
        "codel",
        "consumers",
        "credit",
        "depth",
        "dries",
        "evidence",
        "expired",
        "fed",
        "held_since",
        "hold",
        "idled",
        "in_work",
        "least",
        "limited",
        "most",
        "name",
        "ordered",
        "permitless",
        "probe_after",
        "probe_at",
        "probe_gap",
        "probing",
        "promised",
        "purses",
        "quantum",
        "reason",
        "renewing",
        "served",
        "service",
        "settling",
        "shedder",
        "single",
        "size",
        "sole",
        "spec",
        "tier",
        "until",
        "wait",
        "wakes",
        "window",
        "wish",
        "work",
    )

    def __init__(self, spec: Lane, workers: int, budget: BufferBudget) -> None:
        self.spec = spec
        self.name = spec.name
        self.quantum = spec.quantum
        self.tier = spec.tier
        self.ordered = spec.ordered
        self.sole = sole = spec.sole or spec.ordered
        self.buffer: deque[Entry] = deque()
        self.allowed: int | None = None  # messages left within one `Flow.take`
        self.promised = 0  # messages of one `Flow.take` for which permits were used
        self.until: int | None = None  # when these permits expire
        self.purses: tuple[Purse, ...] = ()
        self.single = False  # its breaker is open: one message at a time
        self.probe_at: int | None = None  # and when the next one may go
        self.permitless = False  # it has work, and no permit is in hand
        self.limit(None if spec.rate is None else TokenBucket(spec.rate, spec.burst))
        self.codel = CoDel(spec.target, spec.interval)
        self.shedder = Shedder(
            spec.shed, sole=sole, delivery_limit=spec.delivery_limit, deadline=spec.deadline
        )
        self.window: Window | None = None
        self.size = 0  # bytes of a message, a moving mean; 0: none has arrived yet
        self.wish = 0  # its first window, if the budget has room for it
        if spec.window is not None:
            self.credit = whole("window", spec.window, 1, MOST)
        elif sole:
            self.credit = budget.fixed(spec.quantum)
        else:
            self.window = Window(
                None if spec.rate is not None else budget.wish(spec.quantum),
                workers=workers,
                ack_batch=MOST_ACKS,
                rate=spec.rate,
                burst=spec.burst,
                quantum=spec.quantum,
            )
            self.wish = self.window.window
            self.window.window = self.window.most = self.credit = budget.unseen(self.wish)
        self.begun = budget.size is None  # has, or had, a useful window
        self.least = 1  # messages that a batch handler wants of it
        self.settling = 0  # messages under a new window until those of the old one no longer matter
        self.renewing = False  # consuming again with another window: its first message has not arrived yet
        self.reason = "as configured" if spec.window else "the initial window"
        self.blocks = 0
        self.wakes: int | None = None  # when an ordered lane's next try is due
        self.in_work = 0
        self.idled = 0  # ns that workers waited for its messages, not reported to its window yet
        self.evidence = 0  # messages at the broker or in flight, at most
        self.fed: int | None = None  # the last arrival while the broker was known to have more
        self.depth: int | None = None
        self.consumers = 1
        self.hold = Hold.NONE
        self.held_since: int | None = None
        self.ask_at = 0  # when to probe its queue, if a round waits for it until then
        self.probe_after: int | None = None
        self.probe_gap = 0
        self.probing = False  # a probe is in flight
        self.service = 0  # ns, a moving mean
        self.most = 1  # messages in one dispatch
        self.charged = self.served = self.work = self.wait = 0
        self.dries = self.expired = 0

    def share(self, purses: tuple[Purse, ...]) -> None:
        """Make its messages need permits of these."""
        self.purses = purses
        self.limit(self.bucket)

    def limit(self, bucket: TokenBucket | None) -> None:
        self.bucket = bucket
        self.at_once = at_once(bucket)
        self.limited = bucket is not None or self.ordered or self.single or bool(self.purses)

    @property
    def coming(self) -> bool:
        """True if messages that are known of can arrive: not while all its credit is in slow work."""
        return self.in_work < self.credit or self.most > 1

    @property
    def waiting(self) -> bool:
        """True if it competes for workers: it has messages, or is known to get some."""
        return not self.blocks and not self.permitless and bool(self.buffer or self.evidence)


def at_once(bucket: TokenBucket | None) -> int:
    """How many messages of a batch may wait behind each other with their tokens already taken."""
    return 0 if bucket is None else max(1, int(bucket.rate / 1000))


def changed(
    now: int, bucket: TokenBucket | None, rate: Number | None, burst: int | None
) -> TokenBucket | None:
    """The bucket for another rate, with the tokens that it has."""
    if rate is None:
        return None
    if bucket is None:
        return TokenBucket(rate, 1 if burst is None else burst)
    bucket.set_rate(now, rate, burst)
    return bucket
