"""Checks reports before they are used: everybody who may write to the exchange can send one.

A report that is not sound is counted and ignored; it must not stop the page for the others.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

_QUEUE_NUMBERS = {
    *("quantum", "tier", "depth", "window", "buffered", "in_work", "handled", "cost", "handler_seconds"),
    *("rate", "tokens", "resumes", "oldest", "running", "failed", "parked"),
}
_QUEUE_TEXTS, _QUEUE_LISTS = {"reason", "why", "breaker"}, {"waited", "took", "budgets"}


def consumer(told: dict[str, Any]) -> bool:
    """True if it is what a consumer reports."""
    return (
        isinstance(told.get("id"), str)
        and isinstance(told.get("name"), str)
        and isinstance(told.get("stopping"), bool)
        and _numbers(told, ("seconds", "spread", "bound"))
        and _numbers(told, ("round_trip", "republishing", "overdue"), missing=True)
        and _all(told.get("queues"), _queue)
        and isinstance(told.get("errors"), list)
        and all(isinstance(each, dict) and _number(each.get("at")) for each in told["errors"])
        and _all(told.get("unfair"), lambda why: isinstance(why, str))
        and budgets(told.get("budgets", {}))
    )


def query(told: dict[str, Any]) -> bool:
    """True if it is what a Spark query reports."""
    return (
        isinstance(told.get("id"), str)
        and isinstance(told.get("name"), str)
        and _all(
            told.get("queues"), lambda each: isinstance(each, dict) and _numbers(each, ("rows", "share"))
        )
        and _all(told.get("ready", {}), _number)
        and budgets(told.get("budgets", {}))
    )


def till(told: dict[str, Any]) -> bool:
    """True if it is what code that opened a budget reports."""
    names = isinstance(told.get("id"), str) and isinstance(told.get("name"), str)
    return names and _numbers(told, ("seconds",)) and budgets(told.get("budgets"))


def budgets(told: object) -> bool:
    """True if it is what a report may say of budgets."""
    return _all(
        told,
        lambda each: (
            isinstance(each, dict)
            and _numbers(each, ("taken", "void", "waited", "in_hand", "at_work"))
            and _numbers(each, ("rate", "burst", "at_once"), missing=True)
        ),
    )


def _queue(told: object) -> bool:
    """Only what is there: there may be a thousand of them, and zeros are left out."""
    if not isinstance(told, dict):
        return False
    for name, value in told.items():
        if name in _QUEUE_NUMBERS:
            if type(value) is not int and not _number(value):
                return False
        elif name in _QUEUE_LISTS:
            if not isinstance(value, list) or (name != "budgets" and not all(map(_number, value))):
                return False
        elif name in _QUEUE_TEXTS and not isinstance(value, str):
            return False
    return True


def _all(told: object, check: Any) -> bool:
    return isinstance(told, dict) and all(check(each) for each in told.values())


def _numbers(told: dict[str, Any], names: Iterable[str], missing: bool = False) -> bool:
    return all(_number(told.get(name)) or (missing and told.get(name) is None) for name in names)


def _number(value: object) -> bool:
    """Not infinite either: no browser reads such JSON."""
    return isinstance(value, int | float) and math.isfinite(value)
