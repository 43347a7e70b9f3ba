"""The planning side of a source: one per query, in the driver's planner process."""

from __future__ import annotations

import secrets
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from typing import Any

from leash.amqp import Connection, topology
from leash.errors import AmqpError, LeashError, NotFound
from leash.logfmt import logger
from leash.spark import connections
from leash.spark.driver import checkpoint, progress, settling
from leash.spark.driver.budgets import Budgets
from leash.spark.driver.checks import Guard
from leash.spark.driver.clock import forward_clock
from leash.spark.driver.cut_off_node import Lookout
from leash.spark.driver.dedup_memory import adopted, remember, spent
from leash.spark.driver.partitioned import Following
from leash.spark.driver.planner import Planner, Targets, cut
from leash.spark.driver.reporting import Reports
from leash.spark.driver.settling import Settled
from leash.spark.offsets import Plan, Seen, first_plan
from leash.spark.settings import SourceSettings
from leash.spark.staging import cleanup, notes, owner
from leash.spark.staging.files import open_files

log = logger(__name__)

_PROBE_EVERY = 0.075  # seconds; Spark asks about 76 times a second when idle
_PARALLEL = 16


class Driver:
    """Plans a query's batches. May be lost at any moment: lasting state is in the offset or the staging
    folder.
    """

    def __init__(self, settings: SourceSettings) -> None:
        self._settings = settings
        self._files = open_files(settings.staging_location)
        self._clock = forward_clock()
        self._minted: Plan | None = None
        self._guard = Guard(settings)
        self._lookout = Lookout()
        self._budgets = Budgets(settings)
        self._following = None if settings.partitions is None else Following(settings.partitions)
        self._known: str | None = None
        self._moved: dict[str, Plan] = {}
        self._adopt: list[str] = []
        self._settled: tuple[str, Settled, Planner] | None = None
        self._targets: Targets | None = None
        self._replayed: set[str] | None = None
        self._aimed = ""
        self._planned: list[int] = []
        self._committed = 0
        self._probed = 0.0
        self._link: Connection | None = None
        self._unbroken_since = 0
        self._report: dict[str, Any] | None = None
        self._depths: dict[str, int] = {}
        self._throttled = False
        self._stop = threading.Event()
        self._reports = Reports(settings)

    # --- Spark's calls ---

    def initial(self) -> Plan:
        """The first offset. Spark may ask twice, and must get the same run."""
        if self._minted is None:
            self._minted = first_plan()
        return self._minted

    def latest(self, given: Plan, all_available: bool) -> Plan:
        """The plan of the next batch, or `given` itself if there is nothing to grant."""
        start = self._moved.get(given.run, given)
        self._follow()
        if self._known != start.run:
            start = self._enter(start)
        self._refuse_async_progress(start)
        settled, planner = self._settle(start)
        plan = self._adopted(start, settled, planner) or self._granted(start, settled, planner, all_available)
        if plan is None:
            return given
        self._planned = [*self._planned[-2:], plan.seq]
        self._probed = 0.0
        self._report = progress.of(start, settled, plan) | {
            "ready": self._depths,
            "throttled": self._throttled,
            "tokens": planner.tokens(self._clock()),
            "balances": planner.balances(),
        }
        self._reports.tell(start.run, self._report | {"budgets": self._budgets.told()})
        # Spark has taken the plan, or will ask again from `start`: either way this planner is used up.
        self._settled = None
        return plan

    def prepare_available_now(self) -> None:
        self._follow()
        connections.patiently(lambda: self._guard.check(self._connection()))  # which queues have a limbo
        self._targets = Targets(connections.patiently(self._ready))

    def reading(self, plan: Plan) -> None:
        """Spark is about to read this batch.

        If an earlier process planned it, messages already sealed were not in the queues when AvailableNow
        counted them. Clocks cannot tell, since every executor has its own.
        """
        if self._targets is not None and plan.seq not in self._planned and self._replayed is None:
            self._replayed = {f"{plan.folder}/{name}" for name in self._files.names(plan.folder)}

    def commit(self, plan: Plan) -> None:
        self._committed = plan.seq
        cleanup.commit(self._files, plan)

    def report(self) -> dict[str, Any] | None:
        """The report for the query's progress.

        Spark asks right after planning: the last batch's result is known by then, but not this one's.
        """
        return self._report

    def stop(self) -> None:
        self._stop.set()
        self._reports.stop()
        self._budgets.close()
        if self._link is not None:
            with suppress(AmqpError):
                self._link.close()

    # --- partitions ---

    def _follow(self) -> None:
        """Look up the current queues of the partitions."""
        if self._following is None:
            return
        queues = connections.patiently(lambda: self._following.queues(self._connection()))  # type: ignore[union-attr]
        if queues != self._settings.queues:
            self._settings = replace(self._settings, queues=queues)
            self._guard = Guard(self._settings)
            self._settled = None
            if self._known is not None:
                connections.patiently(lambda: self._guard.check(self._connection()))

    # --- start-up ---

    def _enter(self, start: Plan) -> Plan:
        """Resume in a new process: check what an earlier one left behind."""
        connections.patiently(lambda: self._guard.check(self._connection()))
        if self._minted is not None and start.run == self._minted.run:
            self._adopt = checkpoint.orphans(self._files, self._settings, start.run)
            cleanup.begin(self._files, start.run)
        else:
            resumed = checkpoint.resume(self._files, self._settings, start)
            if resumed.run != start.run:
                start = self._moved[start.run] = resumed
                cleanup.begin(self._files, start.run)
            else:
                paths = cleanup.sealed_beyond(self._files, start.run, start.seq)
                self._adopt = [path for path, _ in paths if path not in start.adopted]
        self._known = start.run
        owner.keep_claiming(self._files, start.run, self._stop)
        return start

    def _refuse_async_progress(self, start: Plan) -> None:
        before = start.seq - 1
        if before in self._planned and self._committed < before:
            raise LeashError(
                "asyncProgressTrackingEnabled cannot be used with this source: Spark would plan batches that "
                "it has not recorded, and a restart would lose them. Leave it off"
            )

    # --- the batch that ended ---

    def _settle(self, start: Plan) -> tuple[Settled, Planner]:
        """Cached: while idle, Spark asks many times per second from the same start."""
        if self._settled is not None and self._settled[0] == start.folder:
            return self._settled[1:]
        now = self._clock()
        planner = Planner(self._settings, start.state, now)
        settled = Settled((), (), acked=True)
        if start.seq > 0:
            with ThreadPoolExecutor(_PARALLEL) as pool:
                settled = settling.settle(self._files, start, pool.map)
        results = [((split.queue, split.grant), seal) for split, seal in settled.pairs() if not split.adopted]
        planner.settle(results, now, self._took(planner, start, now))
        back = {queue for (queue, _), seal in results if seal.came_back}
        if back and self._settings.ordered:
            connections.patiently(lambda: self._guard.look_again(self._connection(), back))
        if self._following is not None:
            self._following.settle(results)
        if self._targets is not None and self._aimed != start.folder:
            self._aimed = start.folder
            self._targets.settle(self._since_counted(start, settled))
        self._settled = (start.folder, settled, planner)
        return settled, planner

    def _since_counted(self, start: Plan, settled: Settled) -> list[tuple[str, int]]:
        """The rows of each split that was read after AvailableNow counted the ready messages."""
        if start.seq not in self._planned and self._replayed is None:
            return []
        known = self._replayed or set()
        return [
            (split.queue, seal.rows)
            for split, seal in settled.pairs()
            if not split.adopted and split.seal_path not in known
        ]

    def _took(self, planner: Planner, start: Plan, now: int) -> int | None:
        """How long the batch ran.

        Tasks note when they are done, since the trigger may have waited since then.
        """
        if self._settings.target_delay is None or planner.planned_at is None:
            return None
        done = notes.done_at(self._files, start)
        if done is None or not planner.planned_at < done < now:  # a wrong clock
            done = now
        return done - planner.planned_at

    # --- the batch to come ---

    def _adopted(self, start: Plan, settled: Settled, planner: Planner) -> Plan | None:
        """Messages that an earlier run sealed are read before anything new."""
        paths = [path for path in self._adopt if path not in start.adopted]
        if not paths:
            self._adopt = []
            return None
        doubtful = adopted(paths, start.run, self._clock())
        return self._next(start, settled, state=planner.state(), adopted=tuple(paths), more=doubtful)

    def _granted(self, start: Plan, settled: Settled, planner: Planner, all_available: bool) -> Plan | None:
        grants = self._grants(planner, all_available)
        if not grants:
            return None
        splits = cut(grants, self._settings)
        queues = tuple(dict.fromkeys(name for name, _ in splits))
        index = {name: number for number, name in enumerate(queues)}
        return self._next(
            start,
            settled,
            state=planner.state(),
            queues=queues,
            splits=tuple((index[name], grant) for name, grant in splits),
        )

    def _grants(self, planner: Planner, all_available: bool) -> dict[str, int]:
        names = [queue.name for queue in self._settings.queues]
        if self._targets is not None:
            return self._grants_available_now(planner, self._targets, all_available)
        self._throttled = planner.wait(names, self._clock()) > 0
        if self._throttled or time.monotonic() - self._probed < _PROBE_EVERY:
            return {}
        ready = connections.patiently(self._ready)
        grants = self._budgets.grants(planner, ready, self._clock, all_available=all_available)
        self._throttled = self._budgets.empty
        return grants

    def _grants_available_now(
        self, planner: Planner, targets: Targets, all_available: bool
    ) -> dict[str, int]:
        """Wait for tokens: returning no plan would end the query."""
        left = self._passable(targets.left())
        if not left:
            return {}
        while pause := planner.wait(left, self._clock()):
            time.sleep(pause / 1e9)
        connections.patiently(self._ready)
        return self._budgets.grants(planner, left, self._clock, all_available=all_available, hurry=True)

    def _next(self, start: Plan, settled: Settled, *, more: list[Seen] | None = None, **fields: Any) -> Plan:
        remembered = None
        if self._settings.deduplication == "messageId":
            remembered = self._remember(start, settled, more or [])
        return Plan(
            run=start.run,
            seq=start.seq + 1,
            nonce=secrets.token_hex(4),
            ordered=self._settings.ordered,
            exclusive=self._guard.exclusive,
            limbo=self._guard.limbo,
            returned=tuple((queue, n) for queue, n in settled.returned if queue in self._guard.limbo),
            seen=remembered,
            spent=spent(start, remembered or ()),
            **fields,
        )

    def _remember(self, start: Plan, settled: Settled, more: list[Seen]) -> tuple[Seen, ...]:
        self._connection()
        now = self._clock()
        new = []
        rows = sum(seal.rows for split, seal in settled.pairs() if not split.adopted)
        if rows:
            # A connection lost since the batch was planned may have been lost right after its acks.
            broken = self._unbroken_since > start.state.get("planned_at", 0)
            new.append(Seen(start.folder, now, rows, kept=broken or not settled.acked))
        kept, overflow = remember(
            start.seen or (),
            [*new, *more],
            now,
            self._unbroken_since,
            self._settings.deduplication_window,
            self._settings.deduplication_max_rows,
        )
        if overflow:
            log.warning('event=deduplication_overflow rows=%d reason="raise deduplicationMaxRows"', overflow)
        return kept

    # --- the broker ---

    def _connection(self) -> Connection:
        if self._link is None or self._link.closed:
            self._link = connections.connection(self._settings.broker, "plan")
            self._unbroken_since = self._clock()
        return self._link

    def _ready(self) -> dict[str, int]:
        """How many messages wait in each queue."""
        self._probed = time.monotonic()
        ready = {}
        channel = self._connection().channel()
        for queue in self._settings.queues:
            try:
                state = topology.state(channel, queue.name)
            except NotFound as error:  # the channel is closed too
                self._guard.missing(queue.name, error)
                channel = self._connection().channel()
                continue
            self._guard.found(self._connection(), queue.name)
            self._guard.watch(state)
            ready[queue.name] = state.ready + self._guard.in_limbo(self._connection(), queue.name)
        channel.close()
        self._lookout.look(
            self._connection(), {queue: ready[queue] for queue in self._guard.quorum & set(ready)}
        )
        self._depths = ready
        return self._passable(ready)

    def _passable(self, ready: dict[str, int]) -> dict[str, int]:
        """The queues whose next message is not a closed gate."""
        if self._following is None:
            return ready
        held = self._following.held(self._connection())
        return {queue: count for queue, count in ready.items() if queue not in held}
