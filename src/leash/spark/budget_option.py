"""The `budget` option: a name with its numbers, `sms:rate=50,burst=100`, or the same as JSON."""

from __future__ import annotations

import json
from typing import Any

from leash.errors import ConfigError
from leash.fleet.budgets.settings import Terms

FORMS = "a budget with a rate, like sms:rate=50,burst=100"
_NUMBERS = ("rate", "burst", "per", "lease")


def parse_budget(given: object) -> Terms:
    """The terms of a query's budget. Permits are for whole batches: no `at_once`, and a message costs 1."""
    values: Any = given
    if isinstance(given, str) and not given.lstrip().startswith("{"):
        name, _, rest = given.partition(":")
        values = {"name": name.strip()}
        for part in filter(None, rest.split(",")):
            key, _, value = part.partition("=")
            values[key.strip()] = value.strip()
    elif isinstance(given, str):
        try:
            values = json.loads(given)
        except ValueError:
            values = None
    if not isinstance(values, dict) or not {"name", "rate"} <= values.keys() <= {"name", *_NUMBERS}:
        raise ConfigError("budget", given, FORMS)
    try:
        if "burst" in values:
            values["burst"] = int(values["burst"])
        if "lease" in values:
            values["lease"] = float(values["lease"])
    except (TypeError, ValueError):
        raise ConfigError("budget", given, FORMS) from None
    return Terms(**values)
