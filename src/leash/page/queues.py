"""Each queue, summed over the processes that consume it; who competes for a share. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from leash.page.percentiles import between, percentile

Report = dict[str, Any]


def of(
    looks: Iterable[tuple[Report, Report, float]], gone: Iterable[Report] = ()
) -> tuple[list[dict[str, Any]], list[list[str]]]:
    """Each queue, over all processes: of each its last report, an older one, and the seconds in between.

    `gone`: the last reports of processes that are gone. Queues that only they consumed are shown too.
    Returns the queues, and the names of the processes of each group of queues that share work.
    """
    found: dict[str, dict[str, Any]] = {}
    for last, first, seconds in looks:
        for name, now in last["queues"].items():
            then = first["queues"].get(name, {})
            queue = found.get(name)
            if queue is None:
                queue = found[name] = _empty(name, now)
            _add(queue, now, then, seconds, last)
    for last in gone:
        for name, now in last["queues"].items():
            if name not in found:
                found[name] = _empty(name, now) | {"lost": True, "depth": now.get("depth", 0)}
    groups = _group(found.values())
    costs, spent = Counter[int](), Counter[int]()
    for queue in found.values():
        costs[queue["group"]] += queue["cost"]
        spent[queue["group"]] += queue["spent"]
    for queue in found.values():
        queue["share"] = queue["cost"] / (costs[queue["group"]] or 1)
        queue["time_share"] = queue["spent"] / (spent[queue["group"]] or 1.0)
        queue["wait_50"], queue["wait_99"] = (percentile(queue["waited"], part) for part in (0.5, 0.99))
        queue["took_50"], queue["took_99"] = (percentile(queue["took"], part) for part in (0.5, 0.99))
        queue["usual"] = percentile(queue["ever"], 0.99)
        for inner in ("waited", "took", "ever", "cost", "spent", "by"):
            del queue[inner]
    return list(found.values()), groups


def compete(queues: list[dict[str, Any]], used_up: set[str]) -> None:
    """Set targets, and shares beside them: among queues that have work and are not held back."""
    competing = [queue for queue in queues if queue["busy"] and not _held_back(queue, used_up)]
    quanta, shares = Counter[int](), Counter[int]()
    for queue in queues:
        queue["target"] = 0.0
    for queue in competing:
        quanta[queue["group"]] += queue["quantum"]
        shares[queue["group"]] += queue["share"]
    for queue in competing:
        queue["target"] = queue["quantum"] / (quanta[queue["group"]] or 1)
        queue["share"] /= shares[queue["group"]] or 1


def _group(queues: Collection[dict[str, Any]]) -> list[list[str]]:
    """Queues share work only with those that the same processes consume: number these groups."""
    towards: dict[str, str] = {}

    def head(process: str) -> str:
        while towards.setdefault(process, process) != process:
            towards[process] = process = towards[towards[process]]
        return process

    for queue in queues:
        for each in queue["by"]:
            towards[head(each)] = head(next(iter(queue["by"])))
    numbers: dict[str, int] = {}
    names: list[set[str]] = []
    for queue in queues:
        by = next(iter(queue["by"]), None)
        queue["group"] = -1 if by is None else numbers.setdefault(head(by), len(numbers))
        if by is not None:
            names += [set()] * (len(numbers) - len(names))
            names[queue["group"]] = names[queue["group"]] | {*queue["by"].values()}
    return [sorted(each) for each in names]


def _held_back(queue: Mapping[str, Any], used_up: set[str]) -> bool:
    """True if it does not compete: it is paused, at its rate (about), or waits for permits."""
    limited = queue["limit"] is not None and queue["rate"] > 0.75 * queue["limit"]
    return queue["why"] in ("paused", "breaker open") or limited or not used_up.isdisjoint(queue["budgets"])


def _empty(name: str, now: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "name": name,
        "quantum": now.get("quantum", 1),
        "tier": now.get("tier", 0),
        "processes": 0,
        **dict.fromkeys(("depth", "oldest", "running", "limit", "tokens", "resumes")),
        **dict.fromkeys(("rate", "in_work", "buffered", "window", "parked", "failed", "failing"), 0),
        **dict.fromkeys(("reason", "why", "breaker", "unfair", "where"), ""),
        "busy": False,
        "lost": False,
        "budgets": [name for name in now.get("budgets", []) if isinstance(name, str)],
        "consumed": 0,
        "by": {},
        "cost": 0,
        "spent": 0.0,
        "waited": [],
        "took": [],
        "ever": [],
    }


def _add(
    queue: dict[str, Any], now: Mapping[str, Any], then: Mapping[str, Any], seconds: float, report: Report
) -> None:
    handled = now.get("handled", 0) - then.get("handled", 0) if then else 0
    queue["processes"] += 1
    queue["consumed"] += bool(now.get("consumed"))
    queue["by"][report["id"]] = report["name"]
    queue["cost"] += _cost(now) - _cost(then) if then else 0
    queue["rate"] += handled / seconds if seconds else 0.0
    queue["spent"] += now.get("handler_seconds", 0.0) - then.get("handler_seconds", 0.0) if then else 0.0
    queue["failing"] += now.get("failed", 0) - then.get("failed", 0) if then else 0
    for name in ("in_work", "buffered", "window", "parked", "failed"):
        queue[name] += now.get(name, 0)
    if now.get("running", 0.0) > (queue["running"] or 0.0):
        queue["where"] = report["name"]
    for name in ("depth", "oldest", "running", "resumes"):
        value = now.get(name, 0 if name == "depth" else None)
        if value is not None:
            queue[name] = value if queue[name] is None else max(queue[name], value)
    if "rate" in now:
        queue["limit"] = (queue["limit"] or 0) + now["rate"]
        queue["tokens"] = (queue["tokens"] or 0) + now.get("tokens", 0)
    queue["why"] = queue["why"] or now.get("why", "") or ("throttled" if _at_rate(now) else "")
    if now.get("breaker") and queue["breaker"] in ("", "closed"):
        queue["breaker"] = now["breaker"]
    queue["reason"] = queue["reason"] or now.get("reason", "")
    queue["unfair"] = queue["unfair"] or str(report["unfair"].get(queue["name"], ""))
    queue["busy"] = queue["busy"] or handled > 0 or bool(now.get("depth"))
    queue["waited"] = between(queue["waited"], now.get("waited", []), then.get("waited", []))
    queue["took"] = between(queue["took"], now.get("took", []), then.get("took", []))
    queue["ever"] = between(queue["ever"], now.get("took", []), [])


def _cost(told: Mapping[str, Any]) -> float:
    """What its messages cost: their number, bytes, time ..., as its consumer counts it."""
    return float(told.get("cost", told.get("handled", 0)))


def _at_rate(told: Mapping[str, Any]) -> bool:
    """True if messages wait and there is no token; between two turns, a queue does not say so itself."""
    return "rate" in told and told.get("tokens", 0) < 1 and bool(told.get("depth"))
