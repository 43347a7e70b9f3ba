"""The planning side of a source of streams: one per query, in the driver's planner process."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from leash.spark.driver.clock import forward_clock
from leash.spark.driver.planner import Planner, cut
from leash.spark.queue_options import QueueSpec
from leash.spark.staging.seals import Seal
from leash.spark.streams.links import Links
from leash.spark.streams.offsets import Mark, Range, StreamPlan
from leash.spark.streams.positions import Positions
from leash.spark.streams.settings import StreamSettings

_PROBE_EVERY = 0.075  # seconds; Spark asks about 76 times a second when idle
_PARTITIONS_EVERY = 5.0  # seconds between two looks at a super stream's partitions


class StreamDriver:
    """Everything here may be lost at any moment: what matters is in the offset."""

    def __init__(self, settings: StreamSettings) -> None:
        self._settings = settings
        self._clock = forward_clock()
        self._links = Links(settings.place)
        self._positions = Positions(settings, self._links)
        self._names: tuple[str, ...] = ()
        self._named = 0.0
        self._first: StreamPlan | None = None
        self._planner: tuple[StreamPlan, Planner] | None = None
        self._targets: dict[str, int] | None = None
        self._probed = 0.0
        self._marks: dict[str, Mark] = {}
        self._throttled = False
        self._report: dict[str, Any] | None = None

    # --- Spark's calls ---

    def initial(self) -> StreamPlan:
        """Spark may ask twice, and must get the same."""
        if self._first is None:
            starts = {}
            for name in self._streams():
                bounds = self._positions.bounds(name)
                if bounds is not None:
                    starts[name] = self._positions.start(name, bounds)
                    if bounds.last is not None:
                        self._marks[name] = Mark.of(bounds.last)
            self._first = StreamPlan(0, next=starts, marks=dict(self._marks))
        return self._first

    def latest(self, start: StreamPlan, all_available: bool) -> StreamPlan:
        """The plan of the next batch, or `start` itself when there is nothing to grant."""
        if self._targets is None and self._idle(start):
            return start
        begins, ends = self._look(start)
        planner = self._planner_of(start)
        ready = {name: max(0, end - begins[name]) for name, end in ends.items()}
        grants = self._grants(planner, ready, all_available)
        if not grants:
            return start
        plan = self._cut(start, planner, begins, grants)
        self._tell(start, plan, planner, ready, ends)
        # Spark has taken the plan, or it will ask again from `start`: either way this planner is spent.
        self._planner = None
        self._probed = 0.0
        return plan

    def prepare_available_now(self) -> None:
        found = {name: self._positions.bounds(name) for name in self._streams()}
        self._targets = {name: bounds.end for name, bounds in found.items() if bounds is not None}

    def report(self) -> dict[str, Any] | None:
        """For the query's progress. Spark asks right after planning."""
        return self._report

    def stop(self) -> None:
        self._links.close()

    # --- the streams ---

    def _streams(self) -> tuple[str, ...]:
        """Which ones; those of a super stream as of a few seconds ago."""
        if not self._names or (
            self._settings.super_stream is not None and time.monotonic() - self._named > _PARTITIONS_EVERY
        ):
            first = not self._names
            names = self._positions.names()
            self._named = time.monotonic()
            if names != self._names:
                self._names = names
                self._planner = None
                if self._settings.super_stream is not None:
                    queues = tuple(QueueSpec(name) for name in names)
                    self._settings = replace(self._settings, queues=queues)
            if first:
                self._positions.check(names)
        return self._names

    def _look(self, start: StreamPlan) -> tuple[dict[str, int], dict[str, int]]:
        """Where each stream goes on, and where it ends."""
        self._probed = time.monotonic()
        begins, ends, self._marks = {}, {}, dict(start.marks)
        for name in self._streams():
            bounds = self._positions.bounds(name)
            if bounds is None:
                continue
            if name in start.next:
                begin = self._positions.go_on(name, start.next[name], start.marks.get(name), bounds)
            elif self._settings.super_stream is not None:
                begin = bounds.first  # a partition that was added: nothing of it was read
            else:
                begin = self._positions.start(name, bounds)
            if begin is None:
                continue
            begins[name] = begin
            ends[name] = min(bounds.end, (self._targets or {}).get(name, bounds.end))
            if bounds.last is not None:
                self._marks[name] = Mark.of(bounds.last)
        return begins, ends

    # --- the policies ---

    def _planner_of(self, start: StreamPlan) -> Planner:
        """Cached: while idle, Spark asks many times a second from the same start."""
        if self._planner is not None and self._planner[0] == start:
            return self._planner[1]
        now = self._clock()
        sizes = self._positions.sizes
        state = {**start.state, "means": {**start.state.get("means", {}), **sizes}}
        # What bounds an ordered task of queues, a prefetch window, bounds no task of a stream.
        planner = Planner(replace(self._settings, ordered=False), state, now)
        if start.seq > 0:
            took = None if planner.planned_at is None else now - planner.planned_at
            results = [
                ((name, count), Seal("", name, rows=count, size=count * sizes.get(name, 1)))
                for name, count in start.granted.items()
            ]
            planner.settle(results, now, took)
        self._planner = (start, planner)
        return planner

    def _idle(self, start: StreamPlan) -> bool:
        if time.monotonic() - self._probed < _PROBE_EVERY:
            return True
        if self._planner is None or self._planner[0] != start:
            return False
        self._throttled = self._planner[1].wait(self._streams(), self._clock()) > 0
        return self._throttled

    def _grants(self, planner: Planner, ready: dict[str, int], all_available: bool) -> dict[str, int]:
        waiting = [name for name, count in ready.items() if count]
        if not waiting:
            return {}
        if self._targets is None:
            self._throttled = planner.wait(waiting, self._clock()) > 0
            return planner.grants(ready, self._clock(), all_available=all_available)
        while pause := planner.wait(waiting, self._clock()):  # to return nothing would end the query
            time.sleep(pause / 1e9)
        return planner.grants(ready, self._clock(), all_available=all_available, hurry=True)

    def _cut(
        self, start: StreamPlan, planner: Planner, begins: Mapping[str, int], grants: Mapping[str, int]
    ) -> StreamPlan:
        ranges = cut_ranges(begins, grants, self._settings)
        streams = tuple(dict.fromkeys(piece.stream for piece in ranges))
        index = {name: number for number, name in enumerate(streams)}
        moved = {name: begin + grants.get(name, 0) for name, begin in begins.items()}
        return StreamPlan(
            start.seq + 1,
            streams,
            tuple((index[piece.stream], piece.start, piece.end) for piece in ranges),
            start.next | moved,
            dict(self._marks),
            planner.state(),
        )

    def _tell(
        self,
        start: StreamPlan,
        plan: StreamPlan,
        planner: Planner,
        ready: Mapping[str, int],
        ends: Mapping[str, int],
    ) -> None:
        granted = start.granted
        total = sum(granted.values())
        self._report = {
            "batch": start.seq,
            "streams": {
                name: {"granted": count, "share": round(count / total, 4)} for name, count in granted.items()
            },
            "next": plan.granted,
            "ready": dict(ready),
            "lag": {name: end - plan.next[name] for name, end in ends.items()},
            "throttled": self._throttled,
            "tokens": planner.tokens(self._clock()),
            "balances": planner.balances(),
        }


def cut_ranges(
    begins: Mapping[str, int],
    grants: Mapping[str, int],
    settings: StreamSettings,
    marks: Mapping[str, Mark] | None = None,
) -> list[Range]:
    """Grants as ranges of offsets, each stream's one after the other."""
    at = dict(begins)
    found = []
    for name, count in cut(grants, settings):
        found.append(Range(name, at[name], at[name] + count, (marks or {}).get(name)))
        at[name] += count
    return found
