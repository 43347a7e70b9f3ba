"""`leash consume --processes N`: signals, deaths, metrics."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import textwrap
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from typer.testing import CliRunner

from leash.amqp import Channel
from leash.broker.files import free_ports
from leash.cli.main import app
from leash.errors import ConfigError
from tests.consumer.kit import fill, until

APP = """
    import os, time
    from leash import Consumer

    consumer = Consumer(os.environ["LEASH_URI"], ["work"], drain=20)

    @consumer.handler
    def work(message):
        time.sleep(0.002)
        book = os.open("handled.txt", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(book, message.body + b"\\n")
        os.close(book)
"""


class Supervisor:
    """The command in a process of its own, and what it logged."""

    def __init__(self, folder: Path, uri: str, *more: str) -> None:
        (folder / "shop.py").write_text(textwrap.dedent(APP))
        self.folder = folder
        self.port = free_ports(["health"])["health"]
        self._log = folder / "log.txt"
        command = [sys.executable, "-m", "leash.cli", "consume", "shop:consumer", "--processes", "3"]
        with self._log.open("w") as log:
            self.process = subprocess.Popen(
                [*command, "--health", str(self.port), *more],
                cwd=folder,
                env={**os.environ, "LEASH_URI": uri},
                stdout=log,
                stderr=log,
            )

    @property
    def log(self) -> str:
        return self._log.read_text()

    def pids(self, number: int) -> list[int]:
        return [
            int(pid) for pid in re.findall(rf"event=process_started process={number} pid=(\d+)", self.log)
        ]

    def ask(self, path: str) -> str:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=60) as answer:
                return str(answer.read().decode())
        except (urllib.error.URLError, OSError):
            return ""

    def handled(self) -> dict[str, float]:
        """By process."""
        families = text_string_to_metric_families(self.ask("/metrics"))
        samples = [
            each for family in families for each in family.samples if each.name == "leash_handled_total"
        ]
        return {sample.labels["process"]: sample.value for sample in samples}

    def ready(self) -> bool:
        return '"ready": true' in self.ask("/readyz")

    def lines(self) -> set[bytes]:
        book = self.folder / "handled.txt"
        return set(book.read_bytes().split()) if book.exists() else set()


@pytest.fixture
def supervisor(channel: Channel, uri: str, tmp_path: Path) -> Iterator[Supervisor]:
    fill(channel, "work", 900)
    made = Supervisor(tmp_path, uri)
    yield made
    made.process.kill()
    made.process.wait()
    for number in (1, 2, 3):
        for pid in made.pids(number):
            if alive(pid):
                os.kill(pid, signal.SIGKILL)


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
    return state.rpartition(")")[2].split()[0] != "Z"


def test_all_work_a_dead_one_is_replaced_and_a_signal_drains_all(
    supervisor: Supervisor, channel: Channel
) -> None:
    until(supervisor.ready)
    until(lambda: set(supervisor.handled()) == {"1", "2", "3"})
    first = supervisor.pids(2)
    os.kill(first[0], signal.SIGKILL)
    until(lambda: len(supervisor.pids(2)) == 2)
    assert "event=process_died process=2 status=-9" in supervisor.log
    until(lambda: supervisor.lines() == {b"%d" % n for n in range(900)})
    until(supervisor.ready)
    supervisor.process.send_signal(signal.SIGTERM)
    assert supervisor.process.wait(120) == 0, supervisor.log
    assert supervisor.log.count("event=stopped in_time=true") == 3
    assert not any(alive(pid) for number in (1, 2, 3) for pid in supervisor.pids(number))
    assert re.search(r"^\[[123]\] event=summary", supervisor.log, re.MULTILINE)


def test_they_end_when_the_supervisor_is_killed(supervisor: Supervisor) -> None:
    until(supervisor.ready)
    supervisor.process.kill()
    supervisor.process.wait()
    until(lambda: not any(alive(pid) for number in (1, 2, 3) for pid in supervisor.pids(number)))
    assert supervisor.log.count("event=stopped in_time=true") == 3


def test_what_does_not_fit_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "two_shops.py").write_text(textwrap.dedent(APP))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LEASH_URI", "amqp://localhost")
    for more, said in (
        (["--page", "8080"], "--page='8080': one process"),
        (["--health", "x"], "--health='x'"),
    ):
        result = CliRunner().invoke(app, ["consume", "two_shops:consumer", "--processes", "2", *more])
        assert isinstance(result.exception, ConfigError)
        assert said in str(result.exception)
    result = CliRunner().invoke(app, ["consume", "two_shops:consumer", "--processes", "0"])
    assert result.exit_code == 2
