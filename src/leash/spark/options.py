"""The options of Spark's user: parsed and checked by the one table, which writes the documentation, too."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from typing import Any

from leash.errors import ConfigError
from leash.spark.option_table import (
    BROWSE,
    SINK,
    SOURCE,
    STREAM_READ,
    STREAM_SINK,
    STREAMS,
    TABLE,
    Option,
)

__all__ = ["BROWSE", "SINK", "SOURCE", "STREAMS", "STREAM_READ", "STREAM_SINK", "TABLE", "markdown", "parse"]

_FOR_STREAMS = (STREAMS, STREAM_READ, STREAM_SINK)
# Spark hands these to a sink or a source together with the user's own options.
_SPARKS_OWN = ("checkpointlocation", "asyncprogresstracking")
_SECRET = re.compile(r"://[^/\s@]*:[^/\s]*@")
_MAY_HOLD_SECRETS = ("url", "password")


def parse(role: str, given: Mapping[str, str]) -> dict[str, Any]:
    """Every option of a role by field name, with defaults; ConfigError on the first that is wrong."""
    known = {
        name.lower(): option
        for option in TABLE
        if role in option.roles
        for name in (option.name, option.alias)
    }
    known.pop("", None)
    values = {option.field: option.default for option in known.values()}
    seen: dict[str, str] = {}
    for name, text in given.items():
        if name.lower().startswith(_SPARKS_OWN):
            continue
        if name.lower() not in _MAY_HOLD_SECRETS and _SECRET.search(text):
            raise ConfigError(
                name, _Hidden(), "holds a password; only url and password may, since Spark redacts those"
            )
        option = known.get(name.lower())
        if option is None:
            raise ConfigError(name, _Hidden(), _unknown(role, name, [*known]))
        if option.name in seen:
            raise ConfigError(name, text, f"means the same as {seen[option.name]}: set one of them")
        seen[option.name] = name
        try:
            values[option.field] = option.parse(text)
        except (ValueError, ZeroDivisionError):
            shown = _Hidden() if name.lower() in _MAY_HOLD_SECRETS else text
            raise ConfigError(option.name, shown, option.allowed) from None
    if values["url"] is None:
        raise ConfigError("url", None, "is required: " + TABLE[0].allowed)
    return values


def markdown(role: str) -> str:
    """The table of one role's options, for the documentation."""
    lines = ["| option | default | value | |", "|---|---|---|---|"]
    for option in TABLE:
        if role in option.roles:
            name = f"`{option.name}`" + (f" (or `{option.alias}`)" if option.alias else "")
            lines.append(f"| {name} | {_shown(option)} | {option.allowed} | {option.doc} |")
    return "\n".join(lines) + "\n"


class _Hidden:
    """Stands for a value that may be a secret, such as that of an unknown option."""

    def __repr__(self) -> str:
        return "(hidden)"


def _shown(option: Option) -> str:
    if option.shown:
        return option.shown
    if option.default is None:
        return ""
    return str(option.default).lower() if isinstance(option.default, bool) else str(option.default)


def _unknown(role: str, name: str, known: list[str]) -> str:
    """The nearest name, or the role that has this option."""
    spelled = {n.lower(): n for option in TABLE for n in (option.name, option.alias) if n}
    if name.lower() == "path":
        return "RabbitMQ has no paths: call load() and start() without one"
    if name.lower() in spelled:
        owners = [
            role for o in TABLE if name.lower() in (o.name.lower(), o.alias.lower()) for role in o.roles
        ]
        if role in _FOR_STREAMS and not set(owners) & set(_FOR_STREAMS):
            return f"is for queues, and this is a {role}: leave it out, or name no stream"
        if role not in _FOR_STREAMS and set(owners) <= set(_FOR_STREAMS):
            return "is for streams, and there is no option stream, streams or superStream here"
        return f"is an option of the {' and the '.join(owners)}, not of the {role}"
    near = difflib.get_close_matches(name.lower(), known, n=1, cutoff=0.6)
    return f"unknown option; did you mean {spelled[near[0]]}?" if near else f"unknown option of the {role}"
