"""The log's dialect: logfmt, `name=value` pairs on one line, quoted as every logfmt reader expects.

A value with a space, a quote, an equals sign or a control character stands in double quotes, and what
cannot stand there is escaped with backslashes. Modules log by `logger(name)`, where `%r` of anything that is
not a number is quoted like that.
"""

from __future__ import annotations

import logging
import re
from collections.abc import MutableMapping
from datetime import UTC, datetime
from typing import Any

_PLAIN = re.compile(r"[^\s\"'=\\\x00-\x1f\x7f]+")
_SHORT = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"}


def value(given: object) -> str:
    """One value as it stands behind its equals sign."""
    if given is None or isinstance(given, bool):
        return {None: "none", True: "true", False: "false"}[given]
    text = given if isinstance(given, str) else str(given)
    if _PLAIN.fullmatch(text) and text.isprintable():
        return text
    return '"' + "".join(_escaped(char) for char in text) + '"'


def _escaped(char: str) -> str:
    if char in _SHORT:
        return _SHORT[char]
    if char.isprintable():
        return char
    return f"\\u{ord(char):04x}" if ord(char) < 0x10000 else f"\\U{ord(char):08x}"


def line(**fields: object) -> str:
    """`line(event="summary", rate=3.5)` is `event=summary rate=3.5`."""
    return " ".join(f"{name}={value(each)}" for name, each in fields.items())


class _Quoted:
    """An argument of a log call: `%r` and `%s` of it are quoted. It is made text only if it is written."""

    __slots__ = ("_given",)

    def __init__(self, given: object) -> None:
        self._given = given

    def __str__(self) -> str:
        given = self._given
        if given is None or isinstance(given, str | bool):
            return value(given)
        try:
            return value(repr(given))
        except Exception:  # a user's exception may be unable to show itself
            return value(f"a {type(given).__name__} that cannot be shown")

    __repr__ = __str__


class Logger(logging.LoggerAdapter[logging.Logger]):
    """A logger whose arguments are quoted; numbers stay numbers, for `%d` and `%.1f`."""

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        if self.isEnabledFor(level):
            quoted = [each if _number(each) else _Quoted(each) for each in args]
            kwargs["stacklevel"] = kwargs.get("stacklevel", 1) + 1
            super().log(level, msg, *quoted, **kwargs)

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        return msg, kwargs


def _number(given: object) -> bool:
    return isinstance(given, int | float) and not isinstance(given, bool)


def logger(name: str) -> Logger:
    """What a module logs by."""
    return Logger(logging.getLogger(name), {})


class Formatter(logging.Formatter):
    """Whole lines: time, level, logger, then what was logged; text of other programs' is `msg="..."`."""

    def format(self, record: logging.LogRecord) -> str:
        when = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        head = line(time=when.replace("+00:00", "Z"), level=record.levelname.lower(), logger=record.name)
        text = record.getMessage()
        if not text.startswith("event=") or "\n" in text:
            text = f"msg={value(text)}"
        if record.exc_info:
            text += f" exception={value(self.formatException(record.exc_info))}"
        return f"{head} {text}"
