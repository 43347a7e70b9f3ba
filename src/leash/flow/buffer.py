"""How much may be here at once: the messages and bytes of all lanes, divided among their windows.

A window is a promise to take that many messages, so windows are counted, not only what has arrived. The size
of a lane's messages is known when the first one arrives: until then its window is 1.

A lane that starves below a higher tier keeps next to nothing. Its messages would only grow old here, take
bandwidth from the tier that is served, and count as delivered once more whenever the connection breaks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from leash.flow.lane import Lane, LaneState
from leash.flow.windows import set_window
from leash.policies.exact_numbers import whole
from leash.policies.window.credit import MOST
from leash.policies.window.sharing import AT_FIRST, FIRST, equal_part, share_out
from leash.units import MS

if TYPE_CHECKING:
    from leash.flow.flow import Flow

USED, OF = 3, 4
"""Windows are planned for this part of the budget, so that a window slightly above its share can stay, and
one that grows may get messages for both the old and the new window.
"""

UNSEEN = 256 * 1024
"""The assumed bytes of a message if a window cannot be changed once its size is known."""

WORK = 100 * MS
"""The work of all first windows, if it is more messages than `AT_FIRST` and known to be fast."""

FAST = 8
"""Work is fast if a worker takes this many messages at a time."""

STARVES = 1_000 * MS
"""A lane starves when a higher tier has had work for this long."""

STARVING = 16
"""The most messages that it keeps: one for each worker, up to this many."""


class BufferBudget:
    """The budget of all lanes; None is no limit. A batch handler's workers want `batch` messages at once."""

    def __init__(
        self,
        lanes: list[Lane],
        workers: int,
        messages: int | None = None,
        size: int | None = None,
        batch: int = 1,
    ) -> None:
        self.messages = None if messages is None else whole("buffer_messages", messages, 1)
        self.size = None if size is None else whole("buffer_bytes", size, 1)
        self.batch = whole("batch", batch, 1)
        self._lanes = max(1, len(lanes))
        self._quanta = sum(lane.quantum for lane in lanes)
        self._starving = min(workers, STARVING)
        self._higher: dict[int, int] = {}  # since when a higher tier than this one has had work

    def add(self, lane: Lane) -> None:
        """One more lane shares it."""
        self._lanes += 1
        self._quanta += lane.quantum

    # --- first windows ---

    def wish(self, quantum: int, active: int | None = None, at_first: int = AT_FIRST) -> int:
        """The first window of a lane if there were room for it, with `active` lanes that have work."""
        usual = max(1, min(FIRST, at_first // (active or self._lanes)))
        return min(MOST, max(usual, -(-self.batch * quantum // max(1, self._quanta))))

    def fixed(self, quantum: int) -> int:
        """The window of a lane that keeps its first one."""
        return self._limited(self.wish(quantum), UNSEEN)

    def unseen(self, wish: int) -> int:
        """The window of a lane before its first message."""
        return self._limited(wish, 1) if self.size is None else 1

    def arrived(self, flow: Flow, lane: LaneState, count: int, size: int) -> None:
        """Learn the size of a lane's messages: fast if they get larger, slowly if they get smaller."""
        mean = max(1, size // count)
        if not lane.size:
            lane.size = mean
            self._begin(flow, lane)
        else:
            lane.size += (mean - lane.size) * count // (count + (4 if mean > lane.size else 64))
            if self.size is not None and lane.window is not None and lane.credit * lane.size > self.size:
                self.share(flow, flow.now)  # one lane alone has too much, and more is in flight: act now

    def _begin(self, flow: Flow, lane: LaneState) -> None:
        """Set the first useful window, unless a higher tier has work."""
        window = lane.window
        unseen = self.size is not None and not lane.size
        if lane.begun or window is None or unseen or flow.starves(lane):
            return
        lane.begun = True
        wish = max(lane.wish, self._fast(flow, lane))
        first = self._limited(wish, max(1, lane.size))
        window.most = max(window.most, first)
        if first > lane.credit:
            why = f"its messages have about {lane.size} bytes" if lane.size else "no higher tier has work"
            set_window(flow, lane, window.change(first, why))
            lane.settling = 0  # the old window was next to nothing

    def _fast(self, flow: Flow, lane: LaneState) -> int:
        """The first window if work is known to be fast: then many lanes may have one."""
        known = flow.batch >= FAST
        at_first = max(AT_FIRST, flow.workers * WORK // max(1, flow.service)) if known else AT_FIRST
        return self.wish(lane.quantum, max(1, flow.active), at_first)

    def _limited(self, wish: int, size: int) -> int:
        if self.messages is not None:
            wish = min(wish, equal_part(_planned(self.messages), self._lanes))
        if self.size is not None:
            wish = min(wish, equal_part(_planned(self.size), self._lanes, size))
        return wish

    # --- from time to time ---

    def share(self, flow: Flow, now: int) -> None:
        """Set how far the windows may grow, and shrink those that are too large."""
        starving = self._starving_tiers(flow, now)
        lanes = [lane for lane in flow.lanes.values() if lane.window is not None]
        fixed = [lane for lane in flow.lanes.values() if lane.window is None]
        growing = sum([lane.waiting for lane in lanes])
        most = [MOST] * len(lanes)
        for total, sizes in ((self.messages, None), (self.size, _sizes(flow))):
            if total is not None:
                weights = [1 if sizes is None else sizes[lane.name] for lane in lanes]
                taken = sum([lane.credit * (1 if sizes is None else sizes[lane.name]) for lane in fixed])
                claims = [_claim(lane) * weight for lane, weight in zip(lanes, weights, strict=True)]
                shares = share_out(_planned(total) - taken, claims, growing)
                for index, lane in enumerate(lanes):
                    part = shares.of(claims[index], lane.waiting) // weights[index]
                    most[index] = min(most[index], part + (not lane.waiting))
        for lane, limit in zip(lanes, most, strict=True):
            self._keep_within(flow, lane, max(1, limit), lane.tier in starving)

    def _starving_tiers(self, flow: Flow, now: int) -> list[int]:
        starving = []
        for tier in {lane.tier: None for lane in flow.lanes.values()}:
            if flow.top >= tier:
                self._higher.pop(tier, None)
            elif now - self._higher.setdefault(tier, now) >= STARVES and tier not in flow.guaranteed:
                starving.append(tier)
        return starving

    def _keep_within(self, flow: Flow, lane: LaneState, most: int, starving: bool) -> None:
        window = lane.window
        assert window is not None
        if starving:
            most = min(most, self._starving)
            lane.begun = False
        elif not lane.begun:
            self._begin(flow, lane)
            return
        window.most = most
        if (starving and lane.credit > most) or USED * lane.credit > OF * most:
            why = (
                "a higher tier has work"
                if starving
                else f"more messages of {lane.size} bytes exceed the budget"
            )
            set_window(flow, lane, window.change(most, why))
        elif lane.waiting and lane.credit < min(lane.least, most):
            set_window(flow, lane, window.change(min(lane.least, most), "for batches"))
        elif 2 * lane.credit <= FIRST and lane.waiting and window.service is None:
            first = min(self._fast(flow, lane), most)
            if first >= 2 * lane.credit:  # it began when nothing was known about the work
                set_window(flow, lane, window.change(first, "the work is fast"))


def _planned(total: int) -> int:
    return total * USED // OF


def _claim(lane: LaneState) -> int:
    """A lane with work may double its window before the next look. One without may get a message at any
    moment, but reserving room for a hundred of those would be a waste: one message of each comes on top.
    """
    return max(2 * lane.credit, lane.least) if lane.waiting else lane.credit - 1


def _sizes(flow: Flow) -> dict[str, int]:
    """The size of each lane's messages; unknown sizes are assumed to be like the others."""
    known = [lane.size for lane in flow.lanes.values() if lane.size]
    usual = sum(known) // len(known) if known else 1
    return {name: max(1, lane.size or usual) for name, lane in flow.lanes.items()}
