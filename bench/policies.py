"""What the policies cost, with no broker at all: rows of (what, value, unit)."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from functools import partial

Row = tuple[str, float, str]


def best(work: Callable[[], object], runs: int = 3) -> float:
    """Seconds of the fastest of some runs: the least disturbed one."""
    took = []
    for _ in range(runs):
        start = time.perf_counter()
        work()
        took.append(time.perf_counter() - start)
    return min(took)


def ring() -> list[Row]:
    """Routing columns of 20-byte keys over ten queues, and making the tables for it."""
    import numpy as np
    import pyarrow as pa

    from leash.policies.ring import HashRing, jump

    rng = random.Random(1)
    keys = [rng.randbytes(10).hex().encode() for _ in range(1_000_000)]
    arrow = pa.array(keys)
    columns = {"list of bytes": keys, "numpy S20": np.array(keys), "Arrow binary": arrow}
    queues = HashRing([(f"q{i}", 1) for i in range(10)])
    rows: list[Row] = [
        (f"ring: make the table for {n} buckets", best(partial(jump.table.__wrapped__, n)), "s")
        for n in (10, 1000)
    ]
    queues.route_many(keys)  # the table is made once, not for every column
    for name, column in columns.items():
        rate = len(keys) / best(partial(queues.route_many, column))
        rows.append((f"ring: route_many, {name}", rate, "keys/s"))
    batches = [arrow[i : i + 10_000] for i in range(0, 200_000, 10_000)]
    rate = 200_000 / best(lambda: [queues.route_many(batch) for batch in batches])
    rows.append(("ring: route_many, Arrow batches of 10,000", rate, "keys/s"))
    rate = 2_000 / best(lambda: [queues.route(key) for key in keys[:2_000]])
    rows.append(("ring: route, one key at a time", rate, "keys/s"))
    rows.append(("ring: moved, ten queues less one", best(lambda: queues.moved(queues.unbind("q0"))), "s"))
    return rows


def fair() -> list[Row]:
    """Picking and settling, lane by lane and in bulk."""
    from leash.policies import DeficitRoundRobin

    picks = 200_000

    def backlogged(lanes: int, active: int) -> DeficitRoundRobin:
        rr = DeficitRoundRobin({f"lane-{i}": 4 * (i % 10 + 1) for i in range(lanes)})
        for lane in list(rr.quanta)[:active]:
            rr.offer(lane, 10 * picks)
        return rr

    def rate(rr: DeficitRoundRobin, cost: int | None) -> float:
        def loop() -> None:
            for _ in range(picks):
                ticket = rr.pick()
                assert ticket is not None
                rr.settle(ticket, cost)

        return picks / best(loop)

    rows: list[Row] = [
        ("fair: pick + settle, 10 lanes", rate(backlogged(10, 10), None), "/s"),
        ("fair: pick + settle at a cost of 5, 10 lanes", rate(backlogged(10, 10), 5), "/s"),
        ("fair: pick + settle, 10,000 lanes", rate(backlogged(10_000, 10_000), None), "/s"),
        ("fair: pick + settle, 10 of 10,000 lanes busy", rate(backlogged(10_000, 10), None), "/s"),
    ]
    rng = random.Random(1)
    backlog = {f"lane-{i}": rng.randrange(1, 10**9) for i in range(10_000)}
    for budget in (10**3, 10**6, 10**9, 10**12):
        rr = backlogged(10_000, 0)
        took = best(partial(rr.plan, backlog, budget))
        rows.append((f"fair: plan {budget:,} over 10,000 lanes", took * 1e3, "ms"))
    return rows


def small() -> list[Row]:
    """One call each of what the hot path asks for every message: tokens, CoDel, the window."""
    from leash.policies import CoDel, TokenBucket, Window
    from leash.policies.tokens import take_all

    calls = 200_000
    gap = 4_000  # ns between messages, so that a bucket of 250,000 a second is always at work

    def each(make: Callable[[], Callable[[int], object]]) -> float:
        def loop() -> None:
            call = make()
            for now in range(0, calls * gap, gap):
                call(now)

        return best(loop) / calls * 1e9

    def bucket() -> TokenBucket:
        return TokenBucket(250_000, 100)

    def both() -> Callable[[int], bool]:
        buckets = bucket(), bucket()
        return lambda now: take_all(now, buckets)

    def judge(sojourn: int) -> Callable[[int], bool]:
        codel = CoDel(5_000_000, 100_000_000)
        return lambda now: codel.judge(now, sojourn, 10)

    def observe(count: int) -> Callable[[int], object]:
        window = Window(50, round_trip=1_000_000)
        return lambda now: window.observe(now, 0, count, epoch=0)

    return [
        ("tokens: take", each(lambda: bucket().take), "ns"),
        ("tokens: wait", each(lambda: bucket().wait), "ns"),
        ("tokens: take_all, lane and total", each(both), "ns"),
        ("codel: judge, no delay", each(lambda: judge(1_000_000)), "ns"),
        ("codel: judge, standing delay", each(lambda: judge(50_000_000)), "ns"),
        ("window: observe", each(lambda: observe(1)), "ns"),
        ("window: observe, a message in a batch of 16", each(lambda: observe(16)) / 16, "ns"),
        ("window: served", each(lambda: Window(50).served), "ns"),
    ]


def flow() -> list[Row]:
    """Arrival + dispatch + completion with every policy on: ten lanes, rates, windows, CoDel, certificate."""
    from leash.flow import Flow, Lane

    count, per_batch = 200_000, 20

    def drive(workers: int) -> None:
        lanes = [Lane(f"q{i}", quantum=4 * (i + 1), rate=10_000_000, burst=10_000) for i in range(10)]
        box = Flow(lanes, workers=workers, rate=50_000_000, burst=100_000)
        now, arrived, served = 0, 0, 0
        message = object()
        while served < count:
            for lane in lanes:
                if arrived < count:
                    box.arrive(now, lane.name, [message] * per_batch)
                    arrived += per_batch
            while True:
                now += 20_000
                work = box.take(now)
                if not work:
                    break
                services = [1_000 * len(dispatch.messages) for dispatch in work]
                served += sum(len(dispatch.messages) for dispatch in work)
                box.done(now, work, services)
            box.tick(now)
            box.decisions.clear()

    return [
        ("flow: arrival + dispatch + completion, every policy on", best(lambda: drive(8)) / count * 1e6, "us")
    ]


def main(_uri: str) -> None:
    """Run all, print, and write docs/results.md."""
    from bench import harness

    rows = [row for part in (fair, small, ring, flow) for row in part()]
    lines = ["| what | measured | |", "|---|--:|---|"]
    lines += [
        f"| {what} | {value:,.3g} | {unit} |" if value < 1000 else f"| {what} | {value:,.0f} | {unit} |"
        for what, value, unit in rows
    ]
    print("\n".join(lines), flush=True)
    harness.publish_section("policies", "## The policies\n\n" + "\n".join(lines), "none needed", rows)
