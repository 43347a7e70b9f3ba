"""What somebody should look at, the worst first: each with a level, a kind and a sentence.

3   something stands still: a process that is gone, a queue that nobody consumes, a stuck handler
2   something goes wrong: failures, an open breaker, a broken bound, copies that are not confirmed
1   something is limited: a queue at its rate, paused, or noisy; a budget at its limit
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

_STUCK = 5.0
"""Seconds that a handler may run before it can be called stuck; three times the usual, if that is longer."""
_NAMED = 3  # queues of a budget
_NOISY_PART, _NOISY_TIME, _NOISY_DEPTH, _MANY = 0.4, 2.0, 0.5, 1000
_NOISY_TENANT = 1.5
"""Times its equal share that a tenant takes before it is called noisy; and never less than `_NOISY_PART`."""


def of(
    queues: list[dict[str, Any]],
    processes: list[dict[str, Any]],
    budgets: list[dict[str, Any]],
    tenants: list[dict[str, Any]],
    trouble: str | None,
) -> list[dict[str, Any]]:
    """All of it."""
    found = [*_here(trouble), *(each for process in processes for each in _process(process))]
    found += [each for budget in budgets for each in _budget(budget)]
    found += _noisy_tenants(tenants)
    totals, competing = Counter[int](), Counter[int]()
    for queue in queues:
        totals[queue["group"]] += queue["depth"] or 0
        competing[queue["group"]] += _competes(queue)
    for queue in queues:
        found += _queue(queue)
        if _competes(queue) and competing[queue["group"]] > 1:
            found += _noisy(queue, totals[queue["group"]])
    return sorted(found, key=lambda each: -int(each["level"]))


def _here(trouble: str | None) -> Iterator[dict[str, Any]]:
    if trouble:
        yield {"level": 3, "kind": "page", "text": f"The page hears nothing: {trouble}"}


def _process(process: dict[str, Any]) -> Iterator[dict[str, Any]]:
    def say(level: int, kind: str, text: str) -> dict[str, Any]:
        return {"level": level, "kind": kind, "process": process["name"], "text": text}

    if process["state"] == "gone":
        yield say(3, "gone", f"has been silent for {process['silent']:.0f} s: killed, or cut off")
        return
    if process["state"] == "left":
        return
    if not process["connected"]:
        yield say(3, "not connected", "has no connection to the broker")
    if process["blocked"]:
        yield say(2, "blocked", f"the broker takes no messages: {process['blocked']}")
    if process["trouble"]:
        yield say(2, "copies wait", f"{process['republishing']} failed messages wait: {process['trouble']}")
    if process["overdue"]:
        yield say(2, "overdue", f"{process['overdue']} handlers came near the broker's consumer timeout")


def _queue(queue: dict[str, Any]) -> Iterator[dict[str, Any]]:
    def say(level: int, kind: str, text: str) -> dict[str, Any]:
        return {"level": level, "kind": kind, "queue": queue["name"], "text": text}

    running, usual = queue["running"] or 0.0, queue["usual"] or 0.0
    if running > max(_STUCK, 3 * usual):
        yield say(3, "stuck", f"a handler in {queue['where']} has been running for {running:.0f} s")
    if queue["lost"]:
        waited = f"; {queue['depth']} waited when it was last seen" if queue["depth"] else ""
        yield say(3, "not consumed", f"the processes that consumed it are gone{waited}")
    elif not queue["consumed"] and queue["why"] != "paused":
        yield say(3, "not consumed", "no process consumes it: it was deleted, or has no leader")
    if queue["unfair"]:
        yield say(2, "unfair", f"is further behind than fairness allows: {queue['unfair']}")
    if queue["failing"]:
        yield say(2, "failing", f"{queue['failing']} messages failed in the last 10 s")
    if queue["breaker"] not in ("", "closed"):
        waiting = f"; {queue['depth']} wait" if queue["depth"] else ""
        yield say(2, "breaker open", f"its handler fails again and again: single probes{waiting}")
    if queue["why"] == "throttled":
        until = f", goes on in {queue['resumes']:.1f} s" if queue["resumes"] else ""
        waiting = f"; {queue['depth']} wait" if queue["depth"] else ""
        yield say(1, "throttled", f"is at its rate of {queue['limit']:g} a second{until}{waiting}")
    if queue["why"] == "paused":
        yield say(1, "paused", "is paused")


def _budget(budget: dict[str, Any]) -> Iterator[dict[str, Any]]:
    if not budget["used_up"]:
        return
    if budget["at_once"] is not None:
        text = f"is at its limit: {budget['at_work']} of {budget['at_once']} at once are in work"
    else:
        text = f"is at its limit: {budget['used']:.3g} of {budget['rate'] or 0:g} permits a second"
    if budget["depth"]:
        names = ", ".join(budget["queues"][:_NAMED]) + (" ..." if len(budget["queues"]) > _NAMED else "")
        text += f"; {budget['depth']} wait in {names}"
    yield {"level": 1, "kind": "at its limit", "budget": budget["name"], "text": text}


def _competes(queue: dict[str, Any]) -> bool:
    return bool(queue["depth"]) and not queue["why"]


def _noisy_tenants(tenants: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Those with far more of the time, or of the messages, than the others."""
    for each in tenants:
        others = sum(other["of"] == each["of"] for other in tenants)
        most = max(_NOISY_PART, _NOISY_TENANT / others)
        if others > 1 and max(each["time"], each["messages"]) >= most:
            shares = (
                f"{_part(each['time'])} of the handlers' time and {_part(each['messages'])} of the messages"
            )
            said = {"level": 1, "kind": "noisy", "tenant": each["tenant"] or "(none)", "lane": each["lane"]}
            yield said | {"text": f"takes {shares} of {each['of']}; its lane is {each['lane']}"}


def _noisy(queue: dict[str, Any], total: int) -> Iterator[dict[str, Any]]:
    """By slowness, or by numbers, while others have work too."""
    time, target, depth = queue["time_share"], queue["target"], queue["depth"] or 0
    said = {"level": 1, "kind": "noisy", "queue": queue["name"]}
    if target and time > max(_NOISY_PART, _NOISY_TIME * target):
        yield said | {
            "text": f"takes {_part(time)} of the handlers' time, with {_part(target)} of the quanta"
        }
    elif depth > _MANY and depth > _NOISY_DEPTH * total:
        yield said | {"text": f"has {_part(depth / total)} of all messages that wait: {depth}"}


def _part(share: float) -> str:
    return f"{100 * share:.0f} %"
