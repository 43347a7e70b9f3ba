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


@pytest.mark.parametrize("kind", ["quorum", pytest.param("classic", marks=pytest.mark.soak)])
def test_a_worker_of_a_cluster_is_killed_while_it_reads(
    uri: str, tmp_path: Path, programs: list[Popen[bytes]], kind: str
) -> None:
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
    declare(uri, kind=kind)
    sent = publish(uri, 1500)
    given = options(uri, tmp_path / "staging", maxRecordsPerTrigger=200, maxRecordsPerPartition=50)
    program = app.start(given, tmp_path, master=address)
    programs.append(program)
    until(lambda: all(list(place.glob("*/*/stderr")) for place in places) and batches(tmp_path) >= 2)
    app.kill(workers[0])
    sent += publish(uri, 500, first=1500)
    until(lambda: len(set(committed_rows(tmp_path / "out")[0])) == 2000)
    assert program.poll() is None
    until(lambda: ready(uri) == 0)
    check(tmp_path, sent)


def test_two_drivers_on_one_checkpoint(uri: str, tmp_path: Path, programs: list[Popen[bytes]]) -> None:
    """Spark ends one of them at the first batch that both have planned, or finished; or even both."""
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
    last = app.start(given | {"maxRecordsPerTrigger": "1000"}, tmp_path, available_now=True)
    programs.append(last)
    assert last.wait(300) == 0
    check(tmp_path, sent)


def test_a_new_python_process_for_every_task(uri: str, tmp_path: Path, programs: list[Popen[bytes]]) -> None:
    declare(uri)
    sent = publish(uri, 400)
    given = options(uri, tmp_path / "staging", maxRecordsPerTrigger=200, maxRecordsPerPartition=50)
    program = app.start(given, tmp_path, available_now=True, conf={"spark.python.worker.reuse": "false"})
    programs.append(program)
    assert program.wait(300) == 0
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
