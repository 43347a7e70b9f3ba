"""The public names are these, and importing the package stays cheap."""

from __future__ import annotations

import subprocess
import sys

import leash
from leash import amqp, policies


def test_the_public_names_are_these_and_all_there() -> None:
    assert leash.__all__ == [
        "Breaker",
        "Budget",
        "Consumer",
        "Message",
        "Partitions",
        "Publisher",
        "Queue",
        "Retry",
        "Stream",
        "Tenants",
    ]
    for module in (leash, amqp, policies):
        for name in module.__all__:
            assert getattr(module, name) is not None


def test_importing_the_package_loads_nothing_heavy() -> None:
    code = (
        "import sys, leash; print([m for m in ('pyspark', 'numpy', 'pyarrow', 'pamqp') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
