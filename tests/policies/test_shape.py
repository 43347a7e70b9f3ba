"""The policies and the flow stay pure: they import no clock, no socket, no die and no log."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import leash
import leash.policies

IMPURE = {
    "asyncio",
    "concurrent",
    "datetime",
    "http",
    "importlib",
    "io",
    "logging",
    "multiprocessing",
    "os",
    "pathlib",
    "random",
    "sched",
    "secrets",
    "select",
    "selectors",
    "shutil",
    "signal",
    "socket",
    "ssl",
    "subprocess",
    "tempfile",
    "threading",
    "time",
    "urllib",
    "uuid",
    "warnings",
}
DOING = {"__import__", "eval", "exec", "input", "open", "print"}
OURS = ("leash.errors", "leash.flow", "leash.policies", "leash.units")

ROOT = Path(leash.__file__).parent


def pure_files() -> list[Path]:
    patterns = ("policies/**/*.py", "flow/**/*.py", "flow.py")
    return sorted(path for pattern in patterns for path in ROOT.glob(pattern))


def imported(tree: ast.AST, package: str) -> list[str]:
    """Every module that is imported anywhere in the tree, by its full name."""
    names: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            parents = package.split(".")[: len(package.split(".")) - node.level + 1]
            base = (
                ".".join([*parents, node.module] if node.module else parents) if node.level else node.module
            )
            # `from leash import broker` imports a module, and so does `from numpy import random`.
            names += [f"{base}.{alias.name}" for alias in node.names]
    return names


def impurities(source: str, package: str = "leash.policies") -> list[str]:
    tree = ast.parse(source)
    found = []
    for name in imported(tree, package):
        parts = name.split(".")
        if parts[0] == "leash":
            pure = name.startswith(tuple(f"{ours}." for ours in OURS)) or name in OURS
        else:
            pure = parts[0] not in IMPURE and "random" not in parts
        if not pure:
            found.append(f"imports {name}")
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in DOING:
            found.append(f"calls {node.func.id}")
        if isinstance(node, ast.Attribute) and node.attr == "random":
            found.append("uses a random attribute")
    return found


@pytest.mark.parametrize("path", pure_files(), ids=lambda path: path.relative_to(ROOT).as_posix())
def test_a_policy_is_pure(path: Path) -> None:
    package = ".".join(("leash", *path.parent.relative_to(ROOT).parts))
    assert impurities(path.read_text(encoding="utf-8"), package) == []


def test_all_policies_are_looked_at() -> None:
    names = {path.relative_to(ROOT).as_posix() for path in pure_files()}
    policies = (
        "codel",
        "fair/drr",
        "ring/hashring",
        "shed",
        "tokens",
        "window/autopilot",
        "window/credit",
        "__init__",
    )
    assert {f"policies/{name}.py" for name in policies} | {"flow/flow.py"} <= names


@pytest.mark.parametrize(
    "source",
    [
        "import time",
        "import os.path as p",
        "from datetime import datetime",
        "from random import Random",
        "import numpy.random",
        "from numpy import random",
        "import numpy as np\nx = np.random.default_rng()",
        "def late():\n    import socket",
        "if False:\n    import threading",
        "try:\n    import asyncio\nexcept ImportError:\n    pass",
        "class A:\n    import logging",
        "from secrets import token_bytes",
        "import leash.amqp",
        "from leash import broker",
        "from leash.consumer.settle import x",
        "from .. import broker",
        "from ..amqp import connect",
        "from leash.policies_of_others import x",
        "__import__('time')",
        "print('hello')",
        "open('file')",
    ],
)
def test_the_check_catches_what_is_impure(source: str) -> None:
    assert impurities(source) != []


@pytest.mark.parametrize(
    "source",
    [
        "import math",
        "from fractions import Fraction",
        "import numpy as np",
        "from leash.errors import ConfigError",
        "from leash.policies import tokens",
        "from leash.policies.tokens import TokenBucket",
        "from . import tokens",
        "from .tokens import TokenBucket",
        "from ..errors import ConfigError",
        "from leash.flow import Flow",
        "timeout = time = 5",
    ],
)
def test_the_check_lets_through_what_is_pure(source: str) -> None:
    assert impurities(source) == []


def test_the_public_names_are_all_there() -> None:
    for name in leash.policies.__all__:
        assert getattr(leash.policies, name).__name__ == name
    with pytest.raises(AttributeError, match="nonsense"):
        getattr(leash.policies, "nonsense")  # noqa: B009


def test_importing_the_policies_does_not_import_numpy() -> None:
    code = "import leash.policies, sys; sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
