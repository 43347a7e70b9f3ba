"""Imports a user's module. If that fails, the error is a sentence that says where."""

from __future__ import annotations

import importlib
import sys
import sysconfig
import traceback
from pathlib import Path
from types import ModuleType

import leash
from leash.errors import ConfigError
from leash.wording import shown_path

_OTHERS = (
    *(sysconfig.get_path(each) for each in ("stdlib", "purelib", "platlib")),
    str(Path(leash.__file__).parent),
)
"""Where no code of the user is: Python, what is installed, and Leash."""


def load(argument: str, given: str, module: str, shape: str) -> ModuleType:
    """Import a module, also from the current folder."""
    sys.path.insert(0, str(Path.cwd()))
    try:
        return importlib.import_module(module)
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and f"{module}.".startswith(f"{error.name}."):
            why = f"{shape}; no module named {error.name!r} from here"
        else:
            why = f"importing {module} failed{_place(error)}: {_said(error)}"
        raise ConfigError(argument, given, why) from error


def _place(error: Exception) -> str:
    """The line of the user's that was running, or cannot be parsed."""
    if isinstance(error, SyntaxError) and error.filename:
        return f" at {shown_path(error.filename)}, line {error.lineno}"
    frames = [each for each in traceback.extract_tb(error.__traceback__) if not each.filename.startswith("<")]
    theirs = frames[2:]  # without ours and importlib's
    own = [each for each in theirs if not each.filename.startswith(_OTHERS)]
    own = own or theirs[:1]  # the module itself is installed
    return f" at {shown_path(own[-1].filename)}, line {own[-1].lineno}" if own else ""


def _said(error: Exception) -> str:
    """In one line; a syntax error repeats its place otherwise."""
    text = error.msg if isinstance(error, SyntaxError) else str(error)
    return f"{type(error).__name__}: {' '.join(text.split())}"
