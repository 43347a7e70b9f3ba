"""Who is noisy, over all processes: the reports that consumers of tenants send, put together."""

from __future__ import annotations

import json
import threading
import time
from typing import Any, NamedTuple

from leash.amqp.broadcast import STATS, VERSION, Broadcast
from leash.amqp.uri import Uri
from leash.errors import LeashError

_ROWS = [[str, str, messages, seconds] for messages in (int, float) for seconds in (int, float)]


class Noisy(NamedTuple):
    """A tenant, and its shares of all processes' work."""

    tenant: str
    lane: str
    time: float
    messages: float


class Heard(NamedTuple):
    """How many processes reported, and their tenants, the largest share of time or messages first."""

    processes: int
    rows: list[Noisy]


def listen(uri: str | Uri, name: str, seconds: float) -> Heard:
    """Listen to reports about the tenants `name`."""
    reports: dict[str, Any] = {}
    lock = threading.Lock()

    def hear(body: bytes) -> None:
        try:
            told = json.loads(body)
            tenants = told["tenants"]
            if told["v"] == VERSION and not told.get("stopping") and sound(tenants):
                with lock:
                    reports.update({told["id"]: tenants} if tenants["name"] == name else {})
        except (ValueError, KeyError, TypeError, RecursionError):
            return  # of another kind or version

    broadcast = Broadcast(uri, "leash tenants top", STATS, hear)
    end = time.monotonic() + seconds
    try:
        if not broadcast.ready():
            raise LeashError(f"cannot listen to the exchange {STATS}: {broadcast.trouble}")
        time.sleep(max(0.0, end - time.monotonic()))
    finally:
        broadcast.close()
    with lock:
        return merge(list(reports.values()))


def sound(told: Any) -> bool:
    """True if it is what a consumer of tenants reports; anybody may write to the exchange."""
    return (
        isinstance(told, dict)
        and isinstance(told.get("name"), str)
        and all(isinstance(told.get(each), int | float) for each in ("messages", "seconds"))
        and isinstance(told.get("top"), list)
        and all(isinstance(row, list) and [*map(type, row)] in _ROWS for row in told["top"])
    )


def merge(reports: list[Any]) -> Heard:
    """The shares over all reports. A tenant that moved counts once, with the lane where it has most."""
    sums: dict[str, list[float]] = {}
    lanes: dict[str, tuple[float, str]] = {}
    for told in reports:
        for tenant, lane, messages, seconds in told["top"]:
            have = sums.setdefault(tenant, [0.0, 0.0])
            have[0] += seconds
            have[1] += messages
            lanes[tenant] = max(lanes.get(tenant, (-1.0, "")), (messages, lane))
    seconds = sum(told["seconds"] for told in reports) or 1.0
    messages = sum(told["messages"] for told in reports) or 1.0
    rows = [
        Noisy(tenant, lanes[tenant][1], time_ / seconds, count / messages)
        for tenant, (time_, count) in sums.items()
    ]
    return Heard(len(reports), sorted(rows, key=lambda each: -max(each.time, each.messages)))
