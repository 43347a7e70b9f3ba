"""docs/getting-started.md runs as written."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from leash.amqp import Channel
from tests.consumer.kit import depth, until
from tests.waiting import LONG, started

PAGE = (Path(__file__).parent.parent / "docs" / "getting-started.md").read_text()


@pytest.fixture
def here(uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the page's files, and `leash` and `python` on the path as the page has them."""
    for name, text in re.findall(r"```python\n# (\w+\.py)\n(.*?)```", PAGE, re.DOTALL):
        (tmp_path / name).write_text(text)
    commands = tmp_path / "bin"
    commands.mkdir()
    for name, command in (("python", ""), ("leash", " -m leash.cli")):
        (commands / name).write_text(f'#!/bin/sh\nexec {sys.executable}{command} "$@"\n')
        (commands / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{commands}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    monkeypatch.setenv("LEASH_URI", uri)
    return tmp_path


def run(here: Path, command: str) -> str:
    return subprocess.run(
        ["bash", "-ec", command], cwd=here, check=True, capture_output=True, text=True, timeout=300
    ).stdout


def test_the_first_consumer(here: Path, channel: Channel) -> None:
    assert "4000 messages published and confirmed" in run(here, "python publish.py")
    command = ["bash", "-ec", "exec leash consume shop:consumer --plain --every 3"]
    with started(command, cwd=here, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as app:
        try:
            until(lambda: depth(channel, "gold") == depth(channel, "free") == 0)
            until(lambda: depth(channel, "leash.dead.gold") == 1)
        finally:
            app.send_signal(signal.SIGINT)
            out, errors = app.communicate(timeout=LONG)
    assert app.returncode == 0
    assert "event=queue queue=gold depth=" in out
    assert "event=stopped in_time=true in_work=0 unconfirmed=0" in errors
    shown = run(here, "leash dead show gold")
    assert "ValueError: no address" in shown
    assert "body, 8 bytes: order 13" in shown
    assert "1 of 1 parked messages of gold" in shown


@pytest.mark.spark
def test_the_first_pipeline(here: Path) -> None:
    (script,) = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
    run(here, script)
    counted = {line.split()[1]: line.split()[2] for line in run(here, "python count.py").splitlines()[1:]}
    assert counted == {"gold": "2000", "free": "2000"}
