"""What is known of the fleet, from the reports of its processes. Pure: time is an argument, in seconds.

Reports of several versions may come; those of another version than ours are counted and otherwise left alone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

from leash.consumer.reporting import VERSION
from leash.page import attention, noisy
from leash.page.percentiles import between, percentile

SILENT = 3.0
"""Seconds without a report after which a process is gone."""
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
        """True if it missed three reports, which come once a second unless there are very many queues."""
        every = self.last.get("every", 1.0)
        return now - self.heard >= SILENT * (every if isinstance(every, int | float) and every > 1 else 1.0)

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
        self._queries: dict[str, tuple[float, Report]] = {}
        self._changes: deque[dict[str, Any]] = deque(maxlen=_CHANGES)
        self._history: deque[dict[str, Any]] = deque(maxlen=_HISTORY)

    def heard(self, now: float, report: Any) -> None:
        """A report came."""
        if not isinstance(report, dict) or report.get("v") != VERSION:
            self.strangers += 1
        elif report.get("kind") == "spark":
            self._queries[str(report.get("id"))] = (now, report)
        elif report.get("kind") == "consumer" and _sound(report):
            self._consumer(now, report)
        else:
            self.strangers += 1

    def _consumer(self, now: float, report: Report) -> None:
        known = self._processes.get(str(report["id"]))
        if known is None:
            self._processes[str(report["id"])] = Process(report, now)
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
        self._queries = {key: each for key, each in self._queries.items() if now - each[0] < _FORGET}
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

    @property
    def history(self) -> list[dict[str, Any]]:
        """A point for each second: totals, and the windows of the queues that matter most."""
        return list(self._history)

    def view(self, now: float) -> dict[str, Any]:
        """All that the page shows."""
        alive = [
            each for each in self._processes.values() if not each.gone(now) and not each.last["stopping"]
        ]
        queues = _queues(alive)
        processes = [_process(each, now) for each in self._processes.values()]
        queries = [_query(now, at, report) for at, report in self._queries.values()]
        errors = sorted(
            (error | {"process": each.last["name"]} for each in alive for error in each.last["errors"]),
            key=lambda error: -error["at"],
        )
        found = attention.of(queues, processes, self.trouble)
        marks = {each["queue"]: each for each in reversed(found) if each.get("queue")}
        for queue in queues:
            mark = marks.get(queue["name"])
            queue["trouble"] = "" if mark is None else mark["kind"]
            queue["level"] = 0 if mark is None else mark["level"]
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
            "processes": sorted(processes, key=lambda process: (process["state"] == "here", process["name"])),
            "spark": sorted(queries, key=lambda query: str(query["name"])),
            "tenants": _tenants(alive),
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
        }


def _sound(report: Report) -> bool:
    """True if it has the fields that are needed; anybody may write to the exchange."""
    numbers = ("seconds", "spread", "bound")
    return (
        isinstance(report.get("queues"), dict)
        and all(isinstance(each, dict) for each in report["queues"].values())
        and isinstance(report.get("errors"), list)
        and all(isinstance(error, dict) and isinstance(error.get("at"), float) for error in report["errors"])
        and isinstance(report.get("unfair"), dict)
        and isinstance(report.get("name"), str)
        and "stopping" in report
        and all(isinstance(report.get(name), int | float) for name in numbers)
    )


def _tenants(processes: list[Process]) -> list[dict[str, Any]]:
    """Who is noisy: the tenants with most of the time or of the messages, over all processes."""
    told: dict[str, list[Any]] = {}
    for process in processes:
        report: Any = process.last.get("tenants")
        if noisy.sound(report):
            told.setdefault(report["name"], []).append(report)
    return [
        {"of": name, "tenant": each.tenant, "lane": each.lane, "time": each.time, "messages": each.messages}
        for name, reports in sorted(told.items())
        for each in noisy.merge(reports).rows[:_NOISY]
    ]


def _queues(processes: list[Process]) -> list[dict[str, Any]]:
    """Each queue, over all processes that consume it."""
    found: dict[str, dict[str, Any]] = {}
    for process in processes:
        first, seconds = process.took()
        for name, now in process.last["queues"].items():
            then = first["queues"].get(name, {})
            queue = found.get(name)
            if queue is None:
                queue = found[name] = _empty(name, now)
            _add(queue, now, then, seconds, process.last)
    competing = {name: queue for name, queue in found.items() if queue["busy"] and not _held_back(queue)}
    handled = sum(queue["handled"] for queue in found.values()) or 1
    spent = sum(queue["spent"] for queue in found.values()) or 1.0
    quanta = sum(queue["quantum"] for queue in competing.values()) or 1
    for queue in found.values():
        queue["share"] = queue["handled"] / handled
        queue["target"] = queue["quantum"] / quanta if queue["name"] in competing else 0.0
        queue["time_share"] = queue["spent"] / spent
        queue["wait_50"], queue["wait_99"] = (percentile(queue["waited"], part) for part in (0.5, 0.99))
        queue["took_50"], queue["took_99"] = (percentile(queue["took"], part) for part in (0.5, 0.99))
        queue["usual"] = percentile(queue["ever"], 0.99)
        for inner in ("waited", "took", "ever", "handled", "spent"):
            del queue[inner]
    return list(found.values())


def _held_back(queue: Mapping[str, Any]) -> bool:
    """True if it does not compete for its share: it is paused, or takes about what its rate allows."""
    return queue["why"] in ("paused", "breaker open") or (
        queue["limit"] is not None and queue["rate"] > 0.75 * queue["limit"]
    )


def _empty(name: str, now: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "name": name,
        "quantum": now.get("quantum", 1),
        "tier": now.get("tier", 0),
        "processes": 0,
        **dict.fromkeys(("depth", "oldest", "running", "limit", "tokens", "resumes")),
        **dict.fromkeys(("rate", "in_work", "buffered", "window", "parked", "failed", "failing"), 0),
        **dict.fromkeys(("reason", "why", "breaker", "unfair"), ""),
        "busy": False,
        "consumed": 0,
        "handled": 0,
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
    queue["handled"] += handled
    queue["rate"] += handled / seconds if seconds else 0.0
    queue["spent"] += now.get("handler_seconds", 0.0) - then.get("handler_seconds", 0.0) if then else 0.0
    queue["failing"] += now.get("failed", 0) - then.get("failed", 0) if then else 0
    for name in ("in_work", "buffered", "window", "parked", "failed"):
        queue[name] += now.get(name, 0)
    for name in ("depth", "oldest", "running", "resumes"):
        value = now.get(name, 0 if name == "depth" else None)
        if value is not None:
            queue[name] = value if queue[name] is None else max(queue[name], value)
    if "rate" in now:
        queue["limit"] = (queue["limit"] or 0) + now["rate"]
        queue["tokens"] = (queue["tokens"] or 0) + now.get("tokens", 0)
    queue["why"] = queue["why"] or now.get("why", "")
    if now.get("breaker") and queue["breaker"] in ("", "closed"):
        queue["breaker"] = now["breaker"]
    queue["reason"] = queue["reason"] or now.get("reason", "")
    queue["unfair"] = queue["unfair"] or str(report["unfair"].get(queue["name"], ""))
    queue["busy"] = queue["busy"] or handled > 0 or bool(now.get("depth"))
    queue["waited"] = between(queue["waited"], now.get("waited", []), then.get("waited", []))
    queue["took"] = between(queue["took"], now.get("took", []), then.get("took", []))
    queue["ever"] = between(queue["ever"], now.get("took", []), [])


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


def _query(now: float, at: float, report: Report) -> dict[str, Any]:
    kept = ("id", "name", "host", "pid", "batch", "queues", "ready", "throttled", "tokens", "next")
    return {**{name: report.get(name) for name in kept}, "silent": round(now - at, 1)}
