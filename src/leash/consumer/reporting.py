"""A consumer's reports to the fleet, once a second, and the requests that it carries out.

Reports go to the exchange `leash.stats` as JSON (version 1), from a separate thread and connection; a report
that cannot be sent is dropped. Large reports come less often, with a sign of life every second. Requests come
from `leash.control`: pause, resume, quantum and rate of a queue. Each is logged with its sender. Everybody
who may write to that exchange may send them.
"""

from __future__ import annotations

import json
import os
import queue
import secrets
import socket
import threading
import time
from typing import TYPE_CHECKING, Any

import leash
from leash.amqp.broadcast import CONTROL, STATS, VERSION, Broadcast
from leash.consumer.stats import BudgetStats, QueueStats, Stats
from leash.consumer.tenant_tally import TenantsStats
from leash.errors import LeashError
from leash.logfmt import logger

if TYPE_CHECKING:
    from leash.consumer.consumer import Consumer

log = logger("leash.consumer")

EVERY, SELDOM = 1.0, 20.0
"""Seconds between two reports: usually, and at most, if reports cost more because of many queues."""
COST = 0.005
"""The part of a core that reports may take, unless one every `SELDOM` seconds costs more."""
_ACTIONS = ("pause", "resume", "quantum", "rate")


def identity(consumer: Consumer) -> dict[str, Any]:
    """Who it is: the same in every report."""
    return {
        "v": VERSION,
        "kind": "consumer",
        "id": secrets.token_hex(6),
        "name": consumer.settings.name,
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "leash": leash.__version__,
        "workers": consumer.settings.workers,
    }


def alive(who: dict[str, Any]) -> dict[str, Any]:
    """A sign of life between two reports."""
    return {"v": VERSION, "kind": "alive", "id": who["id"]}


def report(stats: Stats) -> dict[str, Any]:
    """The numbers as plain JSON; what is zero, empty or None is left out of a queue's."""
    return {
        "seconds": round(stats.seconds, 3),
        "connected": stats.connected,
        "stopping": stats.stopping,
        "blocked": stats.blocked,
        "round_trip": stats.round_trip,
        "reconnects": stats.reconnects,
        "republishing": stats.republishing,
        "trouble": stats.republish_trouble,
        "overdue": stats.overdue,
        "spread": round(stats.spread, 4),
        "bound": round(stats.bound, 4),
        "unfair": stats.unfair,
        "broker": stats.host,
        "queues": {name: _queue(each) for name, each in stats.queues.items()},
        "budgets": {name: _budget(each) for name, each in stats.budgets.items()},
        "errors": [
            {
                "queue": each.queue,
                "error": each.error[:300],
                "times": each.times,
                "message_id": each.message_id,
                "tries": each.tries,
                "at": each.at,
            }
            for each in stats.errors
        ],
        **({} if stats.tenants is None else {"tenants": _tenants(stats.tenants)}),
    }


def _tenants(told: TenantsStats) -> dict[str, Any]:
    top = [
        [each.tenant[:200], each.lane, round(each.messages, 2), round(each.seconds, 4)] for each in told.top
    ]
    totals = {"messages": round(told.messages, 2), "seconds": round(told.seconds, 4)}
    return {"name": told.name, **totals, "top": top}


def _queue(each: QueueStats) -> dict[str, Any]:
    told = {
        "quantum": each.quantum,
        "tier": each.tier,
        "depth": each.depth,
        "consumers": each.consumers,
        "window": each.window,
        "reason": each.window_reason,
        "buffered": each.buffered,
        "in_work": each.in_work,
        "handled": each.handled,
        "cost": each.cost,
        "target": round(each.target_share, 5),
        "handler_seconds": round(each.handler_seconds, 4),
        "rate": each.rate,
        "tokens": None if each.tokens is None else round(each.tokens, 2),
        "why": each.why,
        "breaker": each.breaker,
        "resumes": None if each.resumes is None else round(each.resumes, 3),
        "oldest": None if each.oldest is None else round(each.oldest, 3),
        "running": None if each.running is None else round(each.running, 3),
        "consumed": each.connected,
        "failed": each.counts.get("failed", 0),
        "retried": each.counts.get("retried", 0),
        "parked": each.counts.get("parked", 0),
        "waited": _trimmed(each.waited.counts),
        "took": _trimmed(each.handled_in.counts),
        "budgets": list(each.budgets),
    }
    return {name: value for name, value in told.items() if value not in (None, 0, "", [], False)}


def pace(cost: float) -> float:
    """Seconds until the next report, if one costs this much CPU time."""
    return min(SELDOM, max(EVERY, cost / COST))


def _budget(each: BudgetStats) -> dict[str, Any]:
    return {
        "rate": each.rate,
        "burst": each.burst,
        "at_once": each.at_once,
        "taken": each.taken,
        "void": each.void,
        "waited": round(each.waited_seconds, 3),
        "in_hand": each.in_hand,
        "at_work": each.at_work,
    }


def _trimmed(counts: tuple[int, ...]) -> list[int]:
    kept = list(counts)
    while kept and not kept[-1]:
        kept.pop()
    return kept


class Reporter:
    """One thread, from start to stop."""

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer
        self._who = identity(consumer)
        self._asked: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        name = f"{consumer.settings.name} stats"
        self._broadcast = Broadcast(consumer.settings.uri, name, CONTROL, self._asked.put)
        self._left = threading.Event()
        self._refused = ""
        self._every, self._due = EVERY, 0.0
        self._alive = json.dumps(alive(self._who)).encode()
        self._thread = threading.Thread(target=self._run, name="leash-reporter", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def leave(self) -> None:
        """Send a last report, if that is possible at once, and do not wait for it."""
        self._left.set()
        self._asked.put(None)

    def stop(self) -> None:
        """The same, and wait for up to two seconds."""
        self.leave()
        if self._thread.is_alive():
            self._thread.join(2.0)

    def _run(self) -> None:
        while not self._left.is_set():
            try:
                self._obey()
                if time.monotonic() >= self._due:
                    self._tell()
                else:
                    self._broadcast.send(STATS, self._alive)
            except Exception:  # whatever it is, the consumer must not notice
                log.exception("event=report_failed")
                self._left.wait(EVERY)
        if self._broadcast.open:
            self._tell(stopping=True)
        self._broadcast.close()

    def _obey(self) -> None:
        """Wait until the next report is due, or carry out a request that comes first."""
        try:
            body = self._asked.get(timeout=EVERY)
        except queue.Empty:
            return
        if body is not None:
            self.act(body)
            self._due = 0.0  # whoever asked wants to see it

    def _tell(self, **more: object) -> None:
        began = time.thread_time()
        told = self._who | {"every": self._every} | report(self._consumer.stats()) | more
        self._broadcast.send(STATS, json.dumps(told, separators=(",", ":")).encode())
        self._every = pace(time.thread_time() - began)
        self._due = time.monotonic() + self._every - EVERY / 2
        trouble = self._broadcast.trouble or ""
        if trouble and trouble != self._refused:
            log.debug("event=not_reported reason=%r", trouble)
        self._refused = trouble

    def act(self, body: bytes) -> None:
        """Carry out a request if it is for this process and valid."""
        try:
            asked = json.loads(body)
            action, name, value = asked["action"], asked["queue"], asked.get("value")
            if asked.get("v") != VERSION or action not in _ACTIONS:
                return
            if asked.get("to") not in (None, self._who["id"]) or name not in self._consumer.stats().queues:
                return
        except (ValueError, KeyError, TypeError, RecursionError, LeashError):
            return  # of another version, perhaps
        asker = str(asked.get("from", ""))[:200]
        try:
            self._do(action, name, value)
        except (LeashError, TypeError, ValueError) as error:
            reason = str(error)
            log.warning(
                "event=action_refused action=%r queue=%r by=%r reason=%r", action, name, asker, reason
            )
            return
        log.warning("event=action action=%r queue=%r value=%r by=%r", action, name, value, asker)

    def _do(self, action: str, name: str, value: Any) -> None:
        if action == "pause":
            self._consumer.pause(name)
        elif action == "resume":
            self._consumer.resume(name)
        elif action == "quantum":
            self._consumer.set_quantum(name, value)
        else:
            self._consumer.set_rate(name, value)
