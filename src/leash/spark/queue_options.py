"""The options `queue` and `queues`, `stream` and `streams`: which ones, and each one's share of a batch."""

from __future__ import annotations

import json
from dataclasses import dataclass
from fractions import Fraction

from leash.errors import ConfigError
from leash.fleet.budgets.settings import Terms
from leash.spark import option_values
from leash.spark.budget_option import FORMS, parse_budget

_KEYS = ("quantum", "rate", "burst", "tier", "budget")
_FORMS = 'names with quanta like "gold:10,free:1", or JSON like {"gold": {"quantum": 10, "rate": 50}}'


@dataclass(frozen=True, slots=True)
class QueueSpec:
    """One queue or stream: `rate` messages per second with bursts of `burst`, lower `tier` first."""

    name: str
    quantum: int = 1
    tier: int = 0
    rate: Fraction | None = None
    burst: int | None = None
    budget: Terms | None = None


def parse_queues(one: str | None, several: str | None, noun: str = "queue") -> tuple[QueueSpec, ...]:
    """What exactly one of two options names, `noun` or its plural; names are unique."""
    if (one is None) == (several is None):
        raise ConfigError(noun, one, f"set exactly one of {noun} (one name) and {noun}s (several)")
    if one is not None:
        if not one:
            raise ConfigError(noun, one, f"the name of a {noun}")
        return (QueueSpec(one),)
    assert several is not None
    parse = _from_json if several.lstrip().startswith(("{", "[")) else _from_list
    specs = parse(several, f"{noun}s")
    names = [spec.name for spec in specs]
    if not names or len(set(names)) != len(names) or not all(names):
        raise ConfigError(f"{noun}s", several, f"each {noun} named once: " + _FORMS)
    for spec in specs:
        if noun == "stream" and spec.budget is not None:
            raise ConfigError(
                f"streams[{spec.name}].budget", spec.budget.name, "budgets are for queues; set a rate instead"
            )
    return specs


def _from_list(text: str, option: str) -> tuple[QueueSpec, ...]:
    specs = []
    for item in text.split(","):
        # Split at the last colon: a name may contain colons.
        name, colon, quantum = item.strip().rpartition(":")
        if not colon:
            name, quantum = quantum, "1"
        try:
            specs.append(QueueSpec(name, option_values.count(quantum)))
        except ValueError:
            raise ConfigError(
                option, item.strip(), "a quantum is a whole number of at least 1: " + _FORMS
            ) from None
    return tuple(specs)


def _from_json(text: str, option: str) -> tuple[QueueSpec, ...]:
    try:
        table = json.loads(text)
    except ValueError:
        raise ConfigError(option, text, _FORMS) from None
    if isinstance(table, list):
        table = {name: {} for name in table if isinstance(name, str)} if table else {}
    if not isinstance(table, dict):
        raise ConfigError(option, text, _FORMS)
    return tuple(_spec(name, settings, f"{option}[{name}]") for name, settings in table.items())


def _spec(name: str, settings: object, where: str) -> QueueSpec:
    if isinstance(settings, int) and not isinstance(settings, bool):
        settings = {"quantum": settings}
    if not isinstance(settings, dict):
        raise ConfigError(where, settings, f"an object with any of {', '.join(_KEYS)}")
    for key in settings:
        if key not in _KEYS:
            raise ConfigError(f"{where}.{key}", settings[key], f"only {', '.join(_KEYS)} can be set for each")
    quantum, tier, burst = settings.get("quantum", 1), settings.get("tier", 0), settings.get("burst")
    if not _whole(quantum, 1):
        raise ConfigError(f"{where}.quantum", quantum, "a whole number of at least 1")
    if not _whole(tier, 0):
        raise ConfigError(f"{where}.tier", tier, "a whole number of at least 0; 0 is served first")
    rate = settings.get("rate")
    try:
        exact = None if rate is None else option_values.rate(str(rate))
    except ValueError:
        raise ConfigError(f"{where}.rate", rate, "messages per second, above 0") from None
    if burst is not None and (not _whole(burst, 1) or exact is None):
        raise ConfigError(f"{where}.burst", burst, "a whole number of at least 1, together with a rate")
    budget = settings.get("budget")
    if budget is not None and not isinstance(budget, str | dict):
        raise ConfigError(f"{where}.budget", budget, FORMS)
    return QueueSpec(name, quantum, tier, exact, burst, None if budget is None else parse_budget(budget))


def _whole(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least
