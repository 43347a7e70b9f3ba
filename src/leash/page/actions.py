"""What a viewer may do if actions are allowed: change queues; look at, retry and purge parked messages."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from leash.amqp import connect
from leash.amqp.uri import Uri
from leash.consumer import dead_queue
from leash.errors import ConfigError
from leash.logfmt import logger

log = logger("leash.page")

_CHANGES = ("pause", "resume", "quantum", "rate")
_SHOWN, _BODY = 200, 2000  # messages, and bytes of a body

Ask = Callable[[dict[str, Any]], bool]


class Actions:
    """The actions of one page."""

    def __init__(self, uri: str | Uri) -> None:
        self._uri = uri

    def do(self, path: str, asked: Any, who: str, ask: Ask) -> dict[str, Any]:
        """Do what the path says; raises ConfigError if it makes no sense."""
        if not isinstance(asked, dict):
            raise ConfigError("body", asked, "a JSON object")
        queue = asked.get("queue")
        if not isinstance(queue, str) or not queue:
            raise ConfigError("queue", queue, "a queue's name")
        if path == "/api/parked":
            return self._look(queue, who)
        if path == "/api/change":
            return self._change(asked, queue, who, ask)
        if path in ("/api/retry", "/api/purge"):
            return self._pick(queue, asked.get("keys"), path == "/api/retry", who)
        raise ConfigError("path", path, "/api/change, /api/parked, /api/retry or /api/purge")

    def _change(self, asked: dict[str, Any], queue: str, who: str, ask: Ask) -> dict[str, Any]:
        action, value = asked.get("action"), asked.get("value")
        if action not in _CHANGES:
            raise ConfigError("action", action, f"one of {', '.join(_CHANGES)}")
        if action == "quantum" and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
            raise ConfigError("value", value, "a whole number from 1 on")
        if action == "rate" and value is not None and not _positive(value):
            raise ConfigError("value", value, "messages a second, or null for no limit")
        log.warning("event=action action=%r queue=%r value=%r by=%r", action, queue, value, who)
        sent = ask({"action": action, "queue": queue, "value": value, "from": who})
        return {"sent": sent}

    def _look(self, queue: str, who: str) -> dict[str, Any]:
        log.info("event=action action=look queue=%r by=%r", queue, who)
        with connect(self._uri, name="leash page") as connection:
            there = dead_queue.count(connection, queue)
            found = dead_queue.look_keyed(connection, queue, _SHOWN)
        return {
            "queue": queue,
            "parked": there,
            "messages": [
                {
                    "key": key,
                    "error": each.error,
                    "tries": each.tries,
                    "published_to": each.address,
                    "bytes": len(each.body),
                    "body": each.body[:_BODY].decode("utf-8", "backslashreplace"),
                }
                for key, each in found
            ],
        }

    def _pick(self, queue: str, keys: Any, retry: bool, who: str) -> dict[str, Any]:
        if not isinstance(keys, list) or not keys or not all(isinstance(key, str) for key in keys):
            raise ConfigError("keys", keys, "the keys of the messages that are meant")
        with (
            connect(self._uri, name="leash page") as connection,
            connect(self._uri, name="leash page") as publishing,
        ):
            count = dead_queue.pick(connection, publishing, queue, keys, retry)
        action = "retry" if retry else "purge"
        log.warning("event=action action=%r queue=%r messages=%d by=%r", action, queue, count, who)
        return {"messages": count}


def _positive(value: object) -> bool:
    return (
        isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value > 0
    )
