"""What the tests of the source share. One Spark session for all: a start costs ten seconds."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import pytest

from leash.amqp.uri import parse
from leash.broker import own_uri
from leash.management import Management

from . import victim

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def staging(tmp_path: Path) -> Path:
    return tmp_path / "staging"


@pytest.fixture
def disk(staging: Path) -> Iterator[Path]:
    """A real disk of 4 MB under the staging folder; only root may mount one."""
    staging.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m", "leash-test", str(staging)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("this user may not mount a disk; simulated faults run everywhere")
    yield staging
    subprocess.run(["umount", "--lazy", str(staging)], check=True)


@pytest.fixture
def as_user(request: pytest.FixtureRequest, uri: str) -> Iterator[Callable[..., str]]:
    """Makes a user with these permissions in the test's virtual host; returns their URI."""
    own = own_uri()
    management = Management.beside(own) if own else request.getfixturevalue("broker").management
    place = parse(uri)
    made: list[str] = []

    def make(configure: str = ".*", write: str = ".*", read: str = ".*") -> str:
        name = f"user-{secrets.token_hex(4)}"
        management.ask("PUT", f"/api/users/{name}", {"password": name, "tags": ""})
        made.append(name)
        path = f"/api/permissions/{quote(place.vhost, safe='')}/{name}"
        management.ask("PUT", path, {"configure": configure, "write": write, "read": read})
        return replace(place, username=name, password=name).reveal()

    yield make
    for name in made:
        management.ask("DELETE", f"/api/users/{name}")


@pytest.fixture(autouse=True)
def _no_victim_outlives_its_test() -> Iterator[None]:
    yield
    victim.end_all()


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """`local[2,4]`: a task may fail three times, as on a cluster."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    from pyspark.sql import SparkSession

    session = (
        SparkSession.builder.master("local[2,4]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.eventLog.enabled", "true")
        .config("spark.eventLog.compress", "false")
        .config("spark.eventLog.dir", tmp_path_factory.mktemp("events").as_uri())
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()
