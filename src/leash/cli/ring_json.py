"""What `leash ring` says with `--json`: the same as its tables, for programs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from leash.amqp import QueueState
from leash.partitions.layout import Layout
from leash.partitions.layout_store import Pass
from leash.partitions.plan import Plan


def layout(found: Layout, states: Mapping[str, QueueState], awaited: Iterable[Pass] = ()) -> dict[str, Any]:
    """An entry for each queue."""
    held, shares, weights = Counter(found.owners), found.shares(), dict(found.weights)
    queues = []
    for queue in found.all_queues:
        state = states.get(queue)
        queues.append(
            {
                "queue": queue,
                "weight": weights.get(queue),
                "slots": held[queue] if found.shape == "slots" else None,
                "share": shares.get(queue, 0.0),
                "ready": None if state is None else state.ready,
                "consumers": None if state is None else state.consumers,
            }
        )
    return {
        "name": found.name,
        "layout": found.shape,
        "by": found.by,
        "kind": found.kind,
        "queues": queues,
        "unfinished": None if found.taking is None else found.taking.target,
        "gates_wait_for": [{"move": number, "queue": queue} for number, queue in awaited],
    }


def difference(plan: Plan, keys: list[Any] | None) -> dict[str, Any]:
    """What is to do, and what it moves."""
    told: dict[str, Any] = {"steps": list(plan.lines), "notes": list(plan.notes)}
    if plan.before is not None and not plan.nothing:
        told |= change(plan.before, plan.after, keys)
    return told


def change(before: Layout, after: Layout, keys: list[Any] | None) -> dict[str, Any]:
    """The share of keys that moves, and from where to where."""
    moves = before.moves_to(after)
    return {
        "moved": before.moved(after),
        "moved_of_sample": None if keys is None else before.moved(after, keys),
        "moves": [{"share": move.share, "source": move.source, "target": move.target} for move in moves],
    }


def skew(found: Layout, keys: list[Any], top: int) -> dict[str, Any]:
    """How a sample falls on the queues, and its hot keys."""
    counts = Counter(found.route_many(keys).tolist()) if keys else Counter()
    hot = [(key, times) for key, times in Counter(keys).most_common(top) if times > 1]
    return {
        "keys": len(keys),
        "different": len(set(keys)),
        "queues": [
            {"queue": queue, "messages": counts[queue], "expected": share * len(keys)}
            for queue, share in found.shares().items()
        ],
        "hot": [{"key": key, "messages": times, "queue": found.route(key)} for key, times in hot],
    }
