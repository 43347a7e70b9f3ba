"""Parts of the sentences that people read."""

from __future__ import annotations

import re
from pathlib import Path

_MUST = re.compile(r"(a (whole )?number\b|one of (?!them\b)|more than \d|True or False)")
"""What a value must be. Other texts are whole sentences, or say what to set instead."""


def counted(number: int, what: str) -> str:
    """With its plural: "1 message", "2 messages"."""
    return f"{number} {what}{'' if number == 1 else 's'}"


def refused(argument: str, value: object, allowed: str) -> str:
    """Why an argument cannot be used, as ConfigError says it."""
    must = "must be " if _MUST.match(allowed) else ""
    return f"{argument}={_given(value)}: {must}{allowed}"


def _given(value: object) -> str:
    """A function by its name and its place, which its repr does not tell."""
    code = getattr(value, "__code__", None)
    name = getattr(value, "__qualname__", None)
    if code is None or not isinstance(name, str):
        return repr(value)
    return f"{name} ({shown_path(code.co_filename)}, line {code.co_firstlineno})"


def shown_path(path: str) -> str:
    """A file as somebody in the current folder would type it, if it is in there."""
    try:
        return str(Path(path).relative_to(Path.cwd()))
    except (ValueError, OSError):
        return path
