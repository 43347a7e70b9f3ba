"""The `queue` and `queues` options: which queues, and what each may take of a batch."""

from __future__ import annotations

import json
from dataclasses import dataclass
from fractions import Fraction

from leash.errors import ConfigError
from leash.fleet.terms import Terms
from leash.spark import option_values
from leash.spark.budgets import FORMS, parse_budget

_KEYS = ("quantum", "rate", "burst", "tier", "budget")
_FORMS = 'names with quanta like "gold:10,free:1", or JSON like {"gold": {"quantum": 10, "rate": 50}}'


@dataclass(frozen=True, slots=True)
class QueueSpec:
    """One lane: `rate` messages a second with bursts of `burst`, lower `tier` first."""

    name: str
    quantum: int = 1
    tier: int = 0
    rate: Fraction | None = None
    burst: int | None = None
    budget: Terms | None = None


def parse_queues(queue: str | None, queues: str | None) -> tuple[QueueSpec, ...]:
    """Exactly one of the two options; names unique; at least one queue."""
    if (queue is None) == (queues is None):
        raise ConfigError("queue", queue, "set exactly one of queue (one name) and queues (several)")
    if queue is not None:
        if not queue:
            raise ConfigError("queue", queue, "the name of a queue")
        return (QueueSpec(queue),)
    assert queues is not None
    specs = _from_json(queues) if queues.lstrip().startswith(("{", "[")) else _from_list(queues)
    names = [spec.name for spec in specs]
    if not names or len(set(names)) != len(names) or not all(names):
        raise ConfigError("queues", queues, "each queue named once: " + _FORMS)
    return specs


def _from_list(text: str) -> tuple[QueueSpec, ...]:
    specs = []
    for item in text.split(","):
        # The last colon: a queue's name may contain others.
        name, colon, quantum = item.strip().rpartition(":")
        if not colon:
            name, quantum = quantum, "1"
        try:
            specs.append(QueueSpec(name, option_values.count(quantum)))
        except ValueError:
            raise ConfigError(
                "queues", item.strip(), "a quantum is a whole number from 1 on: " + _FORMS
            ) from None
    return tuple(specs)


def _from_json(text: str) -> tuple[QueueSpec, ...]:
    try:
        table = json.loads(text)
    except ValueError:
        raise ConfigError("queues", text, _FORMS) from None
    if isinstance(table, list):
        table = {name: {} for name in table if isinstance(name, str)} if table else {}
    if not isinstance(table, dict):
        raise ConfigError("queues", text, _FORMS)
    return tuple(_spec(name, settings) for name, settings in table.items())


def _spec(name: str, settings: object) -> QueueSpec:
    where = f"queues[{name}]"
    if isinstance(settings, int) and not isinstance(settings, bool):
        settings = {"quantum": settings}
    if not isinstance(settings, dict):
        raise ConfigError(where, settings, f"an object with any of {', '.join(_KEYS)}")
    for key in settings:
        if key not in _KEYS:
            raise ConfigError(
                f"{where}.{key}", settings[key], f"only {', '.join(_KEYS)} can be set for a queue"
            )
    quantum, tier, burst = settings.get("quantum", 1), settings.get("tier", 0), settings.get("burst")
    if not _whole(quantum, 1):
        raise ConfigError(f"{where}.quantum", quantum, "a whole number from 1 on")
    if not _whole(tier, 0):
        raise ConfigError(f"{where}.tier", tier, "a whole number from 0 on; 0 is served first")
    rate = settings.get("rate")
    try:
        exact = None if rate is None else option_values.rate(str(rate))
    except ValueError:
        raise ConfigError(f"{where}.rate", rate, "messages a second, above 0") from None
    if burst is not None and (not _whole(burst, 1) or exact is None):
        raise ConfigError(f"{where}.burst", burst, "a whole number from 1 on, together with a rate")
    budget = settings.get("budget")
    if budget is not None and not isinstance(budget, str | dict):
        raise ConfigError(f"{where}.budget", budget, FORMS)
    return QueueSpec(name, quantum, tier, exact, burst, None if budget is None else parse_budget(budget))


def _whole(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least
