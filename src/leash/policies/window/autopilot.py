"""How much credit to ask the broker for: the model of credit.py, corrected by measurements.

The window changes only how long messages wait here, never how long the work takes. So it is measured, not
searched: the least backlog of an epoch is unused credit, and is removed at once; workers without work ask for
what the model says. Only messages sent after the last change count: acting on older ones would correct the
same excess twice.
"""

from __future__ import annotations

from fractions import Fraction
from math import isqrt
from typing import NamedTuple

from leash.policies.exact_numbers import Number, per_second, whole
from leash.policies.window.credit import MOST, lane_window, model, standing_wait
from leash.policies.window.payoff import Pace, Payoff
from leash.policies.window.tally import Tally
from leash.units import SECOND

_ROUND_TRIPS = 4
_SPAN = 100_000_000
_MESSAGES = 10
"""The shortest epoch, in round trips, ns and dequeues; also two rounds of the lanes, so that one is whole.

One begun by a signal is shorter, but has at least `_SPAN`, to see more than one read, and a round trip: by
then the backlog of a stall is gone, since as much is missing in flight.
"""

_UNSTEADY = Fraction(1, 16)
"""Above this squared variation of the service time, an epoch is longer: its extremes say less."""

_NOT_WORTH = 16
"""A change costs the broker a new consumer: less than this part of the window is not worth it."""

_STEP = 8
"""The largest growth at once: with empty handlers the model asks for more than any broker sends."""

_ACK_DELAY = 500_000
"""Ns of work for which an ack may be delayed, in order to ack in batches."""


class Change(NamedTuple):
    """A new window, and why."""

    window: int
    reason: str


class Window:
    """The autopilot of one lane.

    The driver keeps these up to date: `round_trip` (None: not measured yet), `round_time` (of all lanes; 0
    for a single one), `workers`, `quantum` of `quanta`, `percent`, `least` and `most`. It reports each
    dequeue and each service time, and carries out a `Change` by consuming again: messages sent from then on
    belong to the new `epoch`.
    """

    __slots__ = (
        "_cv2",
        "_cv2_before",
        "_designed",
        "_hurry",
        "_most_acks",
        "_opens",
        "_payoff",
        "_rate",
        "_tally",
        "ack_batch",
        "burst",
        "epoch",
        "least",
        "most",
        "percent",
        "quanta",
        "quantum",
        "round_time",
        "round_trip",
        "service",
        "window",
        "workers",
    )

    def __init__(
        self,
        start: int | None = None,
        *,
        workers: int = 1,
        ack_batch: int = 1,
        least: int = 1,
        most: int = MOST,
        round_trip: int | None = None,
        quantum: int = 1,
        quanta: int | None = None,
        rate: Number | None = None,
        burst: int = 1,
    ) -> None:
        self.workers = whole("workers", workers, 1)
        self._most_acks = whole("ack_batch", ack_batch, 1)
        self.ack_batch = 1
        """Messages per ack, in force: 1 until the work is known to be fast."""
        self.least = whole("least", least, 1, MOST)
        """The minimum, unless `most` is less: a batch handler's batch must fit."""
        self.most = whole("most", most, 1, MOST)
        """The maximum: the lane's share of the common budget."""
        self.round_trip = None if round_trip is None else whole("round_trip", round_trip, 0)
        self.round_time = 0
        self.quantum = whole("quantum", quantum, 1)
        self.quanta = self.quantum if quanta is None else whole("quanta", quanta, quantum)
        self.percent = 100
        """The percentage of the pool that the lane's tier gets while other tiers have work."""
        self._designed: tuple[object, int] = None, 0
        self.set_rate(rate, burst)
        self.service: int | None = None
        """Mean service time of the last epoch that measured any, in ns."""
        self._cv2 = self._cv2_before = Fraction(0)
        self.epoch = 0
        self._tally = Tally(self.workers)
        self._payoff = Payoff()
        self._hurry = False
        self._opens = 0
        if start is None:
            start = 16 if self._rate is None else self._model(self.round_trip or 0)
        self.window = self._clamp(whole("start", start, 1, MOST))

    def set_rate(self, rate: Number | None, burst: int = 1) -> None:
        """The lane's token bucket, or None."""
        self._rate = None if rate is None else per_second("rate", rate)
        self.burst = whole("burst", burst, 1)
        self._designed = None, 0

    def observe(
        self,
        now: int,
        backlog: int,
        count: int = 1,
        starved: int = 0,
        idle: int = 0,
        epoch: int | None = None,
    ) -> Change | None:
        """`count` messages, sent under `epoch`, went to workers; `backlog` is the least that they left here.

        `starved` of them found a worker waiting, for `idle` ns in all, although the broker had messages.
        Waiting on an empty queue, for a token or for the lane's turn is not starving.
        """
        if now < self._opens or (epoch is not None and epoch != self.epoch):
            return None
        tally = self._tally
        before = tally.dequeues
        if not before:
            tally.start = now
            self._set_bar()
        if starved and before >= tally.grace:
            tally.starved += starved
            tally.idle += idle
        tally.dequeues = before + count
        tally.backlogs += backlog * count
        if backlog < tally.least:
            tally.least = backlog
        if now < tally.due or before + count < tally.enough:
            return None
        return self._close(now)

    def served(self, service: int, count: int = 1) -> None:
        """`count` messages took `service` ns each."""
        tally = self._tally
        work = service * count
        tally.works += count
        tally.work += work
        tally.squares += service * work

    def signal(self, now: int) -> None:
        """CoDel sees a standing delay: begin a short epoch that ignores earlier measurements.

        It begins a round trip later: by then, the excess has arrived. Ignored until messages sent after the
        last change are seen.
        """
        tally = self._tally
        if not self._hurry and (tally.dequeues or not tally.grace):
            self._hurry = True
            self._tally = Tally(0)
            self._opens = now + (self.round_trip or 0)

    def designed_wait(self) -> int:
        """How long a message waits here, in ns, if the window is what the model asks for."""
        if self.service is None or self.round_trip is None:
            return 0
        given = (self.epoch, self.service, self.round_trip, self.quanta, self.percent)
        if given != self._designed[0]:  # it is asked for at every tick, and takes a while
            self._designed = given, self._designed_wait(self.service, self.round_trip)
        return self._designed[1]

    def _designed_wait(self, service: int, round_trip: int) -> int:
        ideal = self._model(round_trip) - self.ack_batch + 1
        if self._rate is not None and SECOND / self._rate > Fraction(service, self.workers):
            return standing_wait(ideal, round_trip, int(SECOND / self._rate))
        return standing_wait(ideal, round_trip, service, self.workers)

    def _set_bar(self) -> None:
        tally = self._tally
        if self._hurry:
            tally.enough = self.workers + 1
            span = max(_SPAN, self.round_trip or 0)
        else:
            tally.enough = max(_MESSAGES, 2 * self.workers)
            span = max(_SPAN, _ROUND_TRIPS * (self.round_trip or 0))
            if self.round_trip is None:  # every credit is used at least once
                tally.enough = max(tally.enough, 2 * self.window + 1)
            if min(self._cv2, self._cv2_before) >= _UNSTEADY:  # twice in a row, so not just a jump
                tally.enough *= 4
                span *= 2
        tally.due = tally.start + max(span, 2 * self.round_time)

    def _close(self, now: int) -> Change | None:
        tally, old, batch = self._tally, self.window, self.ack_batch
        self._learn(tally)
        base = old + self.ack_batch - batch
        if (
            self.ack_batch < batch and old < batch
        ):  # it had no room for so many unacked messages, so none to lose
            base = old
        if not self._hurry and tally.starving(now, self.workers):
            new, why = self._grow(base, old - batch, tally, now)
        else:
            new, why = self._trim(base, tally)
        new = self._clamp(new)
        if new == old:
            self._hurry = False
            self._tally = Tally(0)
            return None
        if why:
            why += f" in the last {spell(tally.span(now))}"
        else:
            why = f"one ack for {self.ack_batch} messages instead of {batch}"
        return self.change(new, why)

    def change(self, window: int, why: str) -> Change:
        """Go to another window for a reason that is not the lane's own."""
        old, self.window = self.window, window
        self.epoch += 1
        self._hurry = False
        self._tally = Tally(self.workers)
        return Change(window, f"{why}; window {old} -> {window}")

    def _learn(self, tally: Tally) -> None:
        """Adopt the epoch's service time, and with it the number of messages per ack."""
        service = tally.service()
        if service is None:
            return
        self.service = service
        self._cv2_before, self._cv2 = self._cv2, tally.cv2()
        # Up with a margin, and only by doubling or halving: the window must not follow every change of S.
        up = min(self._most_acks, _ACK_DELAY * 4 // max(1, service * 5))
        down = max(1, min(self._most_acks, _ACK_DELAY // max(1, service)))
        if up >= 2 * self.ack_batch:
            self.ack_batch = up
        elif 2 * down <= self.ack_batch:
            self.ack_batch = down

    def _trim(self, base: int, tally: Tally) -> tuple[int, str]:
        away = max(0, self.window - self.workers - tally.least)
        # One standard deviation of the work in a round trip is kept: an epoch is too short for the worst
        # case.
        useless = tally.least - isqrt(away * self._cv2.numerator // self._cv2.denominator)
        useless = min(useless, base - self._share())
        if useless <= self.window // _NOT_WORTH:
            return base, ""
        self._payoff = Payoff()
        return base - useless, f"{useless} credit{'s'[: useless > 1]} never used"

    def _grow(self, base: int, usable: int, tally: Tally, now: int) -> tuple[int, str]:
        """From `base`; in this epoch `usable` + 1 credits never waited for others to be acked with."""
        share = self._share()  # with less, a round would wait for this lane, whatever the others have
        if base >= share and self._payoff.sits_out():
            return base, ""
        back = self._payoff.refuse(Pace(usable + 1, tally.dequeues - 1, tally.span(now)))
        if back is not None and back + self.ack_batch - 1 >= share:
            return back + self.ack_batch - 1, "more credit did not bring more messages"
        fit = max(share, min(self._fit(tally, now), _STEP * self.window))
        return max(base + 1, fit), f"workers found no message at {tally.starved} of {tally.dequeues} dequeues"

    def _fit(self, tally: Tally, now: int) -> int:
        """The window that the model asks for; 0 if it knows too little."""
        if self.service is None:
            return 0
        fit = 0 if self.round_trip is None else self._model(self.round_trip)
        inferred = tally.round_trip(self.window - self.ack_batch + 1, self.service, self.workers, now)
        if self.round_trip is None or 2 * inferred > 3 * self.round_trip:  # outdated
            fit = max(fit, self.window * 9 // 8, min(2 * self.window, self._model(inferred)))
        return fit

    def _model(self, round_trip: int) -> int:
        service, workers, batch = self.service or 0, self.workers, self.ack_batch
        fit = model(round_trip, service, workers, batch, self._cv2, self._rate, self.burst)
        if self.quantum == self.quanta and self.percent == 100:
            return fit
        share = lane_window(self.quantum, self.quanta, round_trip, service, workers, batch, self.percent)
        return min(fit, share)

    def _share(self) -> int:
        """What the lane needs beside others: a turn, and as many messages as a round trip's rounds take of
        it.

        Then a backlog here says little: the round may just wait for another lane.
        """
        if not self.round_time or self.service is None or self.round_trip is None:
            return 0
        cycle = self.round_trip + self.service
        turn = min(self.quantum, -(-self.workers * cycle // max(1, self.service)))
        return max(turn, -(-self.quantum * cycle // self.round_time)) + self.ack_batch - 1

    def _clamp(self, window: int) -> int:
        return min(self.most, max(window, self.workers + self.ack_batch - 1, self.least))


def spell(span: int) -> str:
    """Nanoseconds for people: three digits at most."""
    for unit, size in (("s", SECOND), ("ms", 1_000_000), ("us", 1_000)):
        if span >= size:
            return f"{span / size:.3g} {unit}" if span < 1000 * size else f"{span // size} {unit}"
    return f"{span} ns"
