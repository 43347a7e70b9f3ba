"""Each example runs as a user would run it, ends by itself, and has checked its own outcome."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from leash.amqp.uri import parse
from leash.broker import Broker, own_uri

FOLDER = Path(__file__).parent.parent / "examples"
EXAMPLES = [path.stem for path in sorted(FOLDER.glob("*.py")) if "pyspark" not in path.read_text()]


def test_the_examples_are_found() -> None:
    assert {"fair_tenants", "retries_and_dead_letters", "slow_and_fast_workers", "sms_gateway"} <= set(
        EXAMPLES
    )


def stream_port(request: pytest.FixtureRequest) -> int:
    """Of the node of this run; another broker has it where it usually is."""
    if own_uri():
        return 5552
    broker: Broker = request.getfixturevalue("broker")
    return broker.port("stream")


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_example_runs_and_what_it_says_is_true(
    name: str, uri: str, request: pytest.FixtureRequest
) -> None:
    result = subprocess.run(
        [sys.executable, "-W", "error", str(FOLDER / f"{name}.py")],
        env={**os.environ, "LEASH_URI": uri, "LEASH_STREAM_PORT": str(stream_port(request))},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout
    assert parse(uri).password not in result.stdout + result.stderr
