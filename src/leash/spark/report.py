"""What an operator sees of a batch, in the query's progress: per queue what was granted and what came."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .offsets import Plan, splits_of
from .seals import Seal


def batch(plan: Plan, seals: Mapping[str, Seal]) -> dict[str, Any]:
    """Shares are of the rows that came, not of those that were granted."""
    queues: dict[str, dict[str, Any]] = {}
    for split in splits_of(plan):
        seal = seals.get(split.seal_path, Seal(attempt=""))
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
    return {"batch": plan.seq, "queues": queues}
