"""What all processes together take from each budget. Pure, like the rest of what is known of the fleet."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple

_USED_UP = 0.25
"""The part of the time for which work must be without permits before a budget counts as at its limit."""


class Look(NamedTuple):
    """One user of budgets, at two moments that are `seconds` apart."""

    name: str
    now: Mapping[str, Any]
    then: Mapping[str, Any]
    seconds: float
    without: Mapping[str, float] = {}
    """Of each budget, in which part of its reports a queue had work and no permit."""


def of(looks: Iterable[Look], queues: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Each budget, over all who take from it; the numbers are those of the last who reported it."""
    found: dict[str, dict[str, Any]] = {}
    for look in looks:
        for name, now in look.now.items():
            budget = found.setdefault(name, _empty(name))
            _add(budget, now, look.then.get(name, {}), look.seconds)
            budget["waiting"] = max(budget["waiting"], look.without.get(name, 0.0))
            budget["users"].append(look.name)
    for queue in queues:
        for name in queue["budgets"]:
            if name in found:
                found[name]["queues"].append(queue["name"])
                found[name]["depth"] += queue["depth"] or 0
    for budget in found.values():
        budget["used_up"] = budget["waiting"] > _USED_UP
    return sorted(found.values(), key=lambda budget: (not budget["used_up"], str(budget["name"])))


def without(reports: Collection[Mapping[str, Any]]) -> dict[str, float]:
    """`Look.without`, from a process's reports."""
    found: Counter[str] = Counter()
    for report in reports:
        if report.get("budgets"):
            waits = [queue for queue in report.get("queues", {}).values() if queue.get("why") == "no permit"]
            found.update({name for queue in waits for name in queue.get("budgets", [])})
    return {name: count / len(reports) for name, count in found.items()}


def _empty(name: str) -> dict[str, Any]:
    return {
        "name": name,
        **dict.fromkeys(("rate", "burst", "at_once")),
        **dict.fromkeys(("used", "void", "waiting"), 0.0),
        **dict.fromkeys(("in_hand", "at_work", "depth"), 0),
        "users": [],
        "queues": [],
    }


def _add(budget: dict[str, Any], now: Mapping[str, Any], then: Mapping[str, Any], seconds: float) -> None:
    for name in ("rate", "burst", "at_once"):
        budget[name] = now[name]
    budget["in_hand"] += now["in_hand"]
    budget["at_work"] += now["at_work"]
    if then and seconds > 0:
        budget["used"] += max(0, now["taken"] - then["taken"]) / seconds
        budget["void"] += max(0, now["void"] - then["void"]) / seconds
        waited = min(1.0, max(0.0, now["waited"] - then["waited"]) / seconds)
        budget["waiting"] = max(budget["waiting"], waited)
