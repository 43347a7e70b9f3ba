"""`leash consume --processes N`: one supervisor and N processes, each with a consumer of its own.

Signals are passed on, each to every process: the first one drains, a second one leaves at once. A process
that dies is started again, after a wait that doubles; one that ends with status 0 is done. If the supervisor
dies, its processes notice that their standard input has ended, and drain.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator

import typer
from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from leash.backoff import Backoff
from leash.consumer.health import serve
from leash.consumer.signals import Signals
from leash.logfmt import logger

log = logger("leash.processes")

SUPERVISED = "LEASH_SUPERVISED"
_BACKOFF = (0.5, 30.0)
_LASTING = 60.0
"""Seconds after which a process counts as one that works: its next restart is quick."""

_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))
_LOOK = 0.1
_SCRAPE = 2.0  # seconds for a process to answer


class Process:
    """One of them, by number: started, and started again."""

    def __init__(self, number: int, command: list[str]) -> None:
        self.number = number
        self.port = 0
        self._command = command
        self._backoff = Backoff(*_BACKOFF)
        self._began = self._due = 0.0
        self._running: subprocess.Popen[str] | None = None
        self.status: int | None = None
        """What it ended with, for good."""

    def look(self, leaving: bool) -> None:
        """Start it if that is due; see whether it has ended."""
        now = time.monotonic()
        if self._running is None:
            if leaving:
                self.status = self.status or 0
            elif self.status is None and now >= self._due:
                self._start(now)
            return
        status = self._running.poll()
        if status is None:
            return
        self._running = None
        if leaving or status == 0:
            self.status = 0 if status == -signal.SIGTERM else status  # it had not begun to consume
            return
        if now - self._began > _LASTING:
            self._backoff.reset()
        wait = self._backoff.next()
        self._due = now + wait
        log.warning("event=process_died process=%d status=%d again_in=%.1f", self.number, status, wait)

    def send(self, number: int) -> None:
        if self._running is not None and self._running.poll() is None:
            self._running.send_signal(number)

    def ask(self, path: str) -> str:
        """Its answer; empty if there is none."""
        if self._running is None:
            return ""
        try:
            url = f"http://127.0.0.1:{self.port}{path}"
            with _DIRECT.open(url, timeout=_SCRAPE) as answer:
                return str(answer.read().decode())
        except (OSError, ValueError):
            return ""

    def _start(self, now: float) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self._running = subprocess.Popen(
            [*self._command, "--health", f"127.0.0.1:{self.port}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # a terminal's Ctrl-C comes to us alone, and is passed on once
            env={**os.environ, SUPERVISED: str(self.number)},
        )
        self._began = now
        log.info("event=process_started process=%d pid=%d", self.number, self._running.pid)
        threading.Thread(target=self._show, args=(self._running,), daemon=True).start()

    def _show(self, running: subprocess.Popen[str]) -> None:
        assert running.stdout is not None
        for line in running.stdout:
            typer.echo(f"[{self.number}] {line}", nl=False)


class _Scraped(Collector):
    """The metrics of all processes, with their numbers as a label."""

    def __init__(self, processes: list[Process]) -> None:
        self._processes = processes

    def collect(self) -> Iterator[Metric]:
        found: dict[str, Metric] = {}
        for process in self._processes:
            for family in text_string_to_metric_families(process.ask("/metrics")):
                known = found.setdefault(family.name, Metric(family.name, family.documentation, family.type))
                for sample in family.samples:
                    labels = {**sample.labels, "process": str(process.number)}
                    known.add_sample(sample.name, labels, sample.value)
        yield from found.values()


def supervise(app: str, count: int, more: list[str], health: str | None, argument: str) -> int:
    """Run until all have ended; returns the exit status."""
    command = [sys.executable, "-m", "leash.cli", "consume", app, *more]
    processes = [Process(number + 1, command) for number in range(count)]
    end = None
    if health is not None:
        registry = CollectorRegistry(auto_describe=False)
        registry.register(_Scraped(processes))
        end = serve(registry, lambda: _unready(processes), health, argument)
    passed = 0
    try:
        with Signals() as signals:
            signals.started = True
            while any(process.status is None for process in processes):
                for number in signals.numbers[passed:]:
                    for process in processes:
                        process.send(signal.SIGTERM if number == signal.SIGINT else number)
                    passed += 1
                for process in processes:
                    process.look(leaving=passed > 0)
                time.sleep(_LOOK)
    finally:
        if end is not None:
            end()
    failed = [process.status for process in processes if process.status]
    return 3 if 3 in failed else failed[0] if failed and failed[0] > 0 else 1 if failed else 0


def _unready(processes: list[Process]) -> str | None:
    """Why they are not all ready."""
    for process in processes:
        if '"ready": true' not in process.ask("/readyz"):
            return f"process {process.number} is not ready"
    return None


def end_with_supervisor() -> None:
    """In a process: drain when the supervisor is gone."""

    def watch() -> None:
        while os.read(0, 4096):  # not sys.stdin: its lock would be held when the interpreter ends
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name="leash-supervised", daemon=True).start()
