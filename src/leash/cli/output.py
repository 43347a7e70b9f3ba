"""What commands share: tables as JSON, and extras that may be missing."""

from __future__ import annotations

import importlib.util
import json
import logging
from typing import Annotated, Any

import typer

from leash.errors import LeashError

Json = Annotated[bool, typer.Option("--json", help="Print JSON instead, for programs.")]


def say(told: Any) -> None:
    """Print as JSON. Values that JSON has no form for, such as bytes in a header, are shown as text."""
    typer.echo(json.dumps(told, indent=2, default=_shown))


def _shown(value: object) -> str:
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)


def log_lines() -> None:
    """Log to stderr, in logfmt."""
    from leash.logfmt import Formatter

    handler = logging.StreamHandler()
    handler.setFormatter(Formatter())
    logging.basicConfig(level=logging.INFO, handlers=[handler])


def need(module: str, extra: str, command: str) -> None:
    """Raise an error that says what to install if a module is missing, before any work."""
    if importlib.util.find_spec(module) is None:
        raise LeashError(f"{command} needs {module}, which is not installed: pip install 'leash[{extra}]'")
