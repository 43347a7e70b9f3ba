"""What an operator sees in the query's progress: the last batch's result and the next one's grants."""

from __future__ import annotations

from typing import Any

from leash.spark.driver.settling import Settled
from leash.spark.offsets import Plan, splits_of


def of(start: Plan, settled: Settled, plan: Plan) -> dict[str, Any]:
    """`batch` and `queues` describe the settled batch, `next` the planned one.

    Shares are of the rows read, not of those granted.
    """
    queues: dict[str, dict[str, Any]] = {}
    for split, seal in settled.pairs():
        entry = queues.setdefault(
            seal.queue or split.queue, {"granted": 0, "rows": 0, "bytes": 0, "redelivered": 0, "dropped": 0}
        )
        entry["granted"] += split.grant
        entry["rows"] += seal.rows
        entry["bytes"] += seal.size
        entry["redelivered"] += seal.redelivered
        entry["dropped"] += seal.dropped
    total = sum(entry["rows"] for entry in queues.values())
    for entry in queues.values():
        entry["share"] = round(entry["rows"] / total, 4) if total else 0.0
    grants: dict[str, int] = {}
    for split in splits_of(plan):
        if not split.adopted:
            grants[split.queue] = grants.get(split.queue, 0) + split.grant
    return {"batch": start.seq, "queues": queues, "next": grants}
