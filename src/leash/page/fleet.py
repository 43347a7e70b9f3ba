"""What is known of the fleet, from the reports of its processes. Pure: time is an argument, in seconds.

Reports of several versions may come; those of another version than ours are counted and otherwise left alone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

from leash.amqp.broadcast import VERSION
from leash.page import attention, budgets, noisy_tenants, report_checks
from leash.page import queues as all_queues

SILENT = 2.5
"""Seconds without a sign of life after which a process is gone: it gives one every second. A viewer is to see
that a process was killed within 3 s.
"""
_FORGET = 600.0  # seconds that a process which is gone is still shown
_LEFT = 30.0  # and one that said good-bye
_LOOKS = 11  # reports that are kept of a process: rates are those of the last ten seconds
_CHANGES = 200
_HISTORY = 300
_DRAWN = 12  # queues with a history
_NOISY = 20  # tenants

Report = dict[str, Any]


class Process:
    """A process that reports."""

    def __init__(self, report: Report, now: float) -> None:
        self.reports: deque[Report] = deque([report], _LOOKS)
        self.heard = now

    @property
    def last(self) -> Report:
        return self.reports[-1]

    def gone(self, now: float) -> bool:
        """True if it missed two signs of life."""
        return now - self.heard >= SILENT

    def took(self) -> tuple[Report, float]:
        """The oldest report that is kept, and the seconds from it to the last."""
        first = self.reports[0]
        return first, max(0.0, self.last["seconds"] - first["seconds"])


class Fleet:
    """Of one virtual host, or of one process."""

    def __init__(self, about: Mapping[str, Any] | None = None) -> None:
        self.about = dict(about or {})
        self.trouble: str | None = None
        """Why nothing is heard at the moment."""
        self.strangers = 0
        self._processes: dict[str, Process] = {}
        self._queries: dict[str, _Query] = {}
        self._tills: dict[str, Process] = {}
        self._changes: deque[dict[str, Any]] = deque(maxlen=_CHANGES)
        self._history: deque[dict[str, Any]] = deque(maxlen=_HISTORY)

    def heard(self, now: float, report: Any) -> None:
        """A report came."""
        if not isinstance(report, dict) or report.get("v") != VERSION:
            self.strangers += 1
        elif report.get("kind") == "spark" and report_checks.query(report):
            before = self._queries.get(report["id"])
            self._queries[report["id"]] = _Query(now, report, before)
        elif report.get("kind") == "budget" and report_checks.till(report):
            self._till(now, report)
        elif report.get("kind") == "alive":
            if (known := self._processes.get(str(report.get("id")))) is not None:
                known.heard = now
        elif report.get("kind") == "consumer" and report_checks.consumer(report):
            self._consumer(now, report)
        else:
            self.strangers += 1

    def _till(self, now: float, report: Report) -> None:
        """Of code that opened a budget: it has no queues."""
        known = self._tills.setdefault(report["id"], Process(report, now))
        if known.last is not report:
            known.reports.append(report)
        known.heard = now

    def _consumer(self, now: float, report: Report) -> None:
        known = self._processes.get(report["id"])
        if known is None:
            self._processes[report["id"]] = Process(report, now)
            return
        before = known.last["queues"]
        for name, queue in report["queues"].items():
            was = before.get(name, {}).get("window")
            if was is not None and queue.get("window") != was:
                change = {"t": now, "process": report["name"], "queue": name, "from": was}
                self._changes.append(
                    change | {"to": queue.get("window", 0), "reason": queue.get("reason", "")}
                )
        known.reports.append(report)
        known.heard = now

    def tick(self, now: float) -> dict[str, Any]:
        """Forget processes that are long gone, and add a point to the history. Returns the view."""
        for key, process in list(self._processes.items()):
            patience = _LEFT if process.last["stopping"] else _FORGET
            if now - process.heard > patience:
                del self._processes[key]
        self._queries = {key: each for key, each in self._queries.items() if now - each.at < _FORGET}
        self._tills = {key: each for key, each in self._tills.items() if not each.gone(now)}
        view = self.view(now)
        drawn = [queue for queue in view["queues"] if queue["rate"] or queue["depth"]][:_DRAWN]
        self._history.append(
            {
                "t": now,
                "rate": view["totals"]["rate"],
                "depth": view["totals"]["depth"],
                "windows": {queue["name"]: queue["window"] for queue in drawn},
            }
        )
        return view

    def silence(self, now: float) -> float | None:
        """Seconds until the next process is gone, if it stays silent; None: there is none that could be."""
        here = [each for each in self._processes.values() if not each.gone(now) and not each.last["stopping"]]
        return min([each.heard + SILENT - now for each in here], default=None)

    @property
    def history(self) -> list[dict[str, Any]]:
        """A point for each second: totals, and the windows of the queues that matter most."""
        return list(self._history)

    def view(self, now: float) -> dict[str, Any]:
        """All that the page shows."""
        alive = [
            each for each in self._processes.values() if not each.gone(now) and not each.last["stopping"]
        ]
        gone = [
            each.last for each in self._processes.values() if each.gone(now) and not each.last["stopping"]
        ]
        queues, groups = all_queues.of(((each.last, *each.took()) for each in alive), gone)
        processes = [_process(each, now) for each in self._processes.values()]
        queries = [_query(now, each) for each in self._queries.values()]
        tills = [each for each in self._tills.values() if not each.gone(now)]
        looks = [*map(_process_look, [*alive, *tills]), *map(_query_look, self._queries.values())]
        shared = budgets.of(looks, queues)
        used_up = {budget["name"] for budget in shared if budget["used_up"]}
        all_queues.compete(queues, used_up)
        errors = sorted(
            (error | {"process": each.last["name"]} for each in alive for error in each.last["errors"]),
            key=lambda error: -error["at"],
        )
        tenants = _tenants(alive)
        found = attention.of(queues, processes, shared, tenants, self.trouble)
        marks = {each.get("queue") or each.get("lane"): each for each in reversed(found)}
        for queue in queues:
            mark = marks.get(queue["name"])
            waits = bool(queue["depth"]) and not used_up.isdisjoint(queue["budgets"])
            queue["trouble"] = mark["kind"] if mark else "no permit" if waits else ""
            queue["level"] = mark["level"] if mark else int(waits)
        queues.sort(
            key=lambda queue: (-queue["level"], -queue["rate"], -(queue["depth"] or 0), queue["name"])
        )
        return {
            "t": now,
            "about": self.about,
            "trouble": self.trouble,
            "strangers": self.strangers,
            "totals": {
                "rate": sum(queue["rate"] for queue in queues),
                "depth": sum(queue["depth"] or 0 for queue in queues),
                "in_work": sum(queue["in_work"] for queue in queues),
                "parked": sum(queue["parked"] for queue in queues),
                "failing": sum(queue["failing"] for queue in queues),
                "queues": len(queues),
                "processes": len(alive),
                "gone": sum(process["state"] == "gone" for process in processes),
            },
            "attention": found,
            "queues": queues,
            "groups": groups,
            "processes": sorted(processes, key=lambda process: (process["state"] == "here", process["name"])),
            "budgets": shared,
            "spark": sorted(queries, key=lambda query: str(query["name"])),
            "tenants": tenants,
            "errors": errors[:50],
            "changes": list(self._changes)[-60:][::-1],
        }

    def certificate(self, now: float) -> dict[str, Any]:
        """What was promised and what was measured: of each process, and of the fleet's last seconds."""
        view = self.view(now)
        return {
            "version": 1,
            "made": now,
            "about": self.about,
            "processes": [
                {
                    "name": each.last["name"],
                    "seconds": each.last["seconds"],
                    "promised": {"spread_rounds": each.last["bound"]},
                    "measured": {"spread_rounds": each.last["spread"]},
                    "kept": each.last["spread"] <= each.last["bound"],
                    "broke_it": each.last["unfair"],
                }
                for each in self._processes.values()
            ],
            "queues": [
                {
                    "queue": queue["name"],
                    "promised": {"share": queue["target"], "rate": queue["limit"]},
                    "measured": {"share": queue["share"], "rate": queue["rate"]},
                    "had_work": queue["busy"],
                    "breaker": queue["breaker"],
                }
                for queue in sorted(view["queues"], key=lambda queue: str(queue["name"]))
            ],
            "budgets": [
                {
                    "budget": budget["name"],
                    "promised": {name: budget[name] for name in ("rate", "burst", "at_once")},
                    "measured": {"rate": budget["used"], "at_once": budget["at_work"]},
                    "users": budget["users"],
                }
                for budget in view["budgets"]
            ],
        }


def _tenants(processes: list[Process]) -> list[dict[str, Any]]:
    """Who is noisy: the tenants with most of the time or of the messages, over all processes."""
    told: dict[str, list[Any]] = {}
    for process in processes:
        report: Any = process.last.get("tenants")
        if noisy_tenants.sound(report):
            told.setdefault(report["name"], []).append(report)
    return [
        {"of": name, "tenant": each.tenant, "lane": each.lane, "time": each.time, "messages": each.messages}
        for name, reports in sorted(told.items())
        for each in noisy_tenants.merge(reports).rows[:_NOISY]
    ]


def _process(process: Process, now: float) -> dict[str, Any]:
    report = process.last
    state = "left" if report["stopping"] else "gone" if process.gone(now) else "here"
    kept = ("id", "name", "host", "pid", "leash", "workers", "seconds", "connected", "blocked", "round_trip")
    more = ("reconnects", "republishing", "trouble", "overdue", "spread", "bound", "unfair", "broker")
    return {
        **{name: report.get(name) for name in (*kept, *more)},
        "state": state,
        "silent": round(now - process.heard, 1),
        "queues": len(report["queues"]),
    }


def _process_look(process: Process) -> budgets.Look:
    first, seconds = process.took()
    last = process.last
    then, without = first.get("budgets", {}), budgets.without(process.reports)
    return budgets.Look(last["name"], last.get("budgets", {}), then, seconds, without)


class _Query:
    """A Spark query, by its last report and the one before."""

    def __init__(self, at: float, report: Report, before: _Query | None) -> None:
        self.at, self.report = at, report
        self.took = at - before.at if before else 0.0
        self.then: Report = before.report if before else {}


def _query_look(query: _Query) -> budgets.Look:
    then = query.then.get("budgets", {})
    return budgets.Look(str(query.report.get("name")), query.report.get("budgets", {}), then, query.took)


def _query(now: float, query: _Query) -> dict[str, Any]:
    at, report = query.at, query.report
    kept = ("id", "name", "host", "pid", "batch", "queues", "ready", "throttled", "tokens", "next")
    return {**{name: report.get(name) for name in kept}, "silent": round(now - at, 1)}
