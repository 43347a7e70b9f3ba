"""Whoever owns a broker and is killed leaves no process of it behind."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from leash.broker import Broker, processes
from tests.broker.kit import processes_in
from tests.consumer.kit import until

pytestmark = pytest.mark.broker


OWNER = """
import sys, time
from leash.broker import Broker, Cluster
with {made}:
    print("ready", flush=True)
    time.sleep(600)
"""


def owner(folder: Path, made: str) -> subprocess.Popen[str]:
    code = OWNER.format(made=made.format(str(folder)))
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)


def end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


@pytest.mark.parametrize("made", ["Broker({!r}, owned=True)", "Cluster({!r}, 2, owned=True)"])
def test_a_killed_owner_takes_its_broker_along(folder: Path, made: str) -> None:
    process = owner(folder, made)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        assert processes_in(folder)
    finally:
        end(process)
    until(lambda: not processes_in(folder), what="processes are left")


def test_an_owner_that_is_killed_while_it_starts_the_broker_leaves_none_either(folder: Path) -> None:
    process = owner(folder, "Broker({!r}, owned=True)")
    try:
        until(lambda: "epmd" in " ".join(processes_in(folder)))
    finally:
        end(process)
    until(lambda: not processes_in(folder), what="processes are left")


def test_a_frozen_broker_goes_with_its_owner_too(folder: Path) -> None:
    process = owner(folder, "Broker({!r}, owned=True)")
    try:
        assert process.stdout is not None
        process.stdout.readline()
        Broker(folder).pause()
    finally:
        end(process)
    until(lambda: not processes_in(folder), what="processes are left")


def test_without_an_owner_it_goes_on(folder: Path) -> None:
    process = owner(folder, "Broker({!r})")
    assert process.stdout is not None
    process.stdout.readline()
    end(process)
    assert Broker(folder).running
    Broker(folder).stop()
    assert processes_in(folder) == []


def test_a_watchdog_leaves_when_its_broker_is_stopped(folder: Path) -> None:
    with Broker(folder, owned=True):
        assert any(processes.__file__ in line for line in processes_in(folder))
    assert processes_in(folder) == []
