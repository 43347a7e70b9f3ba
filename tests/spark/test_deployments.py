"""Spark as people run it: a cluster that loses a worker, Connect, two drivers, a process for every task."""

from __future__ import annotations

import json
import socket
import subprocess
import urllib.request
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from subprocess import Popen
from typing import NamedTuple

import pytest

from tests.waiting import until

from . import app
from .harness import declare, options, publish, ready
from .output import committed_rows

pytestmark = pytest.mark.spark

Start = Callable[..., Popen[bytes]]


@pytest.fixture
def programs() -> Iterator[list[Popen[bytes]]]:
    """Each leads a process group, which ends with the test."""
    started: list[Popen[bytes]] = []
    yield started
    for program in started:
        if program.poll() is None:
            app.kill(program)


def spark_class(programs: list[Popen[bytes]], folder: Path, *arguments: str) -> Popen[bytes]:
    """One of Spark's own services."""
    import pyspark

    home = Path(pyspark.__file__).parent
    program = Popen(
        [home / "bin" / "spark-class", *arguments],
        cwd=folder,
        env=app.environment() | {"SPARK_HOME": str(home)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    programs.append(program)
    return program


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def batches(folder: Path) -> int:
    return len(list((folder / "checkpoint" / "commits").glob("[0-9]*")))


def planned(folder: Path) -> int:
    return len(list((folder / "checkpoint" / "offsets").glob("[0-9]*")))


def check(folder: Path, sent: list[bytes]) -> None:
    """Nothing lost, and nothing twice without its flag. What came back after its seal may still be there."""
    everything, plain = committed_rows(folder / "out")
    assert sorted(set(everything)) == sent
    assert len(plain) == len(set(plain))


def registered(page: int) -> int:
    """How many workers the master knows."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{page}/json/", timeout=30) as answer:
            return int(json.load(answer)["aliveworkers"])
    except (OSError, ValueError):  # not up yet: no answer, or half a one
        return 0


class Standalone(NamedTuple):
    """Spark's own cluster of two workers, each with a folder for its logs."""

    address: str
    workers: list[Popen[bytes]]
    folders: list[Path]


@pytest.fixture
def standalone(programs: list[Popen[bytes]], tmp_path: Path) -> Standalone:
    port, page = free_port(), free_port()
    master, worker = "org.apache.spark.deploy.master.Master", "org.apache.spark.deploy.worker.Worker"
    address = f"spark://127.0.0.1:{port}"
    at = ("--host", "127.0.0.1", "--webui-port")
    spark_class(programs, tmp_path, master, *at, str(page), "--port", str(port))
    until(lambda: listens(port))
    places = [tmp_path / "one", tmp_path / "two"]
    size = ("--cores", "1", "--memory", "1g")
    workers = [
        spark_class(programs, tmp_path, worker, *at, "0", *size, "--work-dir", str(place), address)
        for place in places
    ]
    until(lambda: registered(page) == 2)
    return Standalone(address, workers, places)


@pytest.mark.parametrize("kind", ["quorum", pytest.param("classic", marks=pytest.mark.soak)])
def test_a_driver_is_killed_and_goes_on_with_other_options_on_a_cluster_that_loses_a_worker(
    uri: str,
    tmp_path: Path,
    programs: list[Popen[bytes]],
    standalone: Standalone,
    kind: str,
) -> None:
    declare(uri, kind=kind)
    sent = publish(uri, 2500)
    given = options(uri, tmp_path / "staging", maxRecordsPerTrigger=100, maxRecordsPerPartition=30)
    first = app.start(given, tmp_path)
    programs.append(first)
    until(lambda: planned(tmp_path) >= 4)
    app.kill(first)
    before = batches(tmp_path)
    given |= {"maxRecordsPerTrigger": "200", "maxRecordsPerPartition": "50"}
    program = app.start(given, tmp_path, master=standalone.address)
    programs.append(program)
    until(
        lambda: (
            all(list(place.glob("*/*/stderr")) for place in standalone.folders)
            and batches(tmp_path) >= before + 2
        )
    )
    app.kill(standalone.workers[0])
    sent += publish(uri, 500, first=2500)
    until(lambda: len(set(committed_rows(tmp_path / "out")[0])) == 3000)
    assert program.poll() is None
    until(lambda: ready(uri) == 0)
    check(tmp_path, sent)


def test_two_drivers_on_one_checkpoint_and_then_one_with_a_new_python_process_for_every_task(
    uri: str, tmp_path: Path, programs: list[Popen[bytes]]
) -> None:
    """Spark ends one of the two at the first batch that both have planned, or finished; or even both."""
    declare(uri)
    sent = publish(uri, 3000)
    given = options(uri, tmp_path / "staging", maxRecordsPerTrigger=50, maxRecordsPerPartition=20)
    rivals = [app.start(given, tmp_path) for _ in range(2)]
    programs += rivals
    until(lambda: any(rival.poll() is not None for rival in rivals))
    assert {rival.poll() for rival in rivals} <= {1, None}
    for rival in rivals:
        if rival.poll() is None:
            app.kill(rival)
    given |= {"maxRecordsPerTrigger": "1000", "maxRecordsPerPartition": "250"}
    last = app.start(given, tmp_path, available_now=True, conf={"spark.python.worker.reuse": "false"})
    programs.append(last)
    assert last.wait(300) == 0
    check(tmp_path, sent)


@pytest.mark.skipif(find_spec("grpc") is None, reason="Connect needs pyspark[connect]")
def test_a_query_through_spark_connect(uri: str, tmp_path: Path, programs: list[Popen[bytes]]) -> None:
    port = free_port()
    server = "org.apache.spark.sql.connect.service.SparkConnectServer"
    told = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
        "spark.ui.enabled": "false",
    }
    conf = [part for name, value in told.items() for part in ("--conf", f"{name}={value}")]
    submit = ("org.apache.spark.deploy.SparkSubmit", "--master", "local[2,4]", *conf, "--class", server)
    spark_class(programs, tmp_path, *submit, "spark-internal")
    until(lambda: listens(port))
    declare(uri)
    sent = publish(uri, 1000)
    given = options(uri, tmp_path / "staging", maxRecordsPerTrigger=300)
    client = app.start(given, tmp_path, available_now=True, master=f"sc://127.0.0.1:{port}")
    programs.append(client)
    assert client.wait(300) == 0
    check(tmp_path, sent)
