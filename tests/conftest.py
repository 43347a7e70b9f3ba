"""One private node per test run, a virtual host per test."""

from __future__ import annotations

import os
import secrets
import socket
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import trustme
from hypothesis import HealthCheck, settings

from leash.amqp import Channel, Connection, connect
from leash.amqp.uri import parse
from leash.broker import Broker, Cluster, own_uri
from leash.broker.base import Private
from leash.management import Management
from tests.waiting import until

# A machine that stalls must not fail a property.
settings.register_profile("leash", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("leash")


_SECONDS = {"install": 30.0, "cluster": 6.0, "spark": 4.0, "broker": 0.5}
"""About what a test takes that needs such a thing, the most expensive first."""


# Programs that live for seconds spend most of their CPU in the JVM's second compiler.
for _place in ("SPARK_SUBMIT_OPTS", "SPARK_DAEMON_JAVA_OPTS"):
    os.environ.setdefault(_place, "-XX:TieredStopAtLevel=1")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What a test needs is seen from its fixtures; where it is not, it is marked so by hand.

    The longest files come first, so that no worker is left with one of them when the others have finished.
    """
    lengths: defaultdict[Path, float] = defaultdict(float)
    for item in items:
        fixtures = set(getattr(item, "fixturenames", ()))
        if fixtures & {"broker", "cluster", "uri"}:
            item.add_marker("broker")
        if "spark" in fixtures:
            item.add_marker("spark")
        if "browser" in fixtures:
            item.add_marker("program")
        needs = fixtures | {mark.name for mark in item.iter_markers()}
        lengths[item.path] += next((seconds for need, seconds in _SECONDS.items() if need in needs), 0.02)
    items.sort(key=lambda item: -lengths[item.path])


class Tls(NamedTuple):
    """A certificate authority, a server it vouches for, a client, and an authority that nobody knows."""

    port: int
    stream_port: int
    ca: Path
    other_ca: Path
    client_cert: Path


@pytest.fixture(scope="session")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Tls:
    """Certificates for the node of this run."""
    folder = tmp_path_factory.mktemp("tls")
    ca, other = trustme.CA(), trustme.CA()
    server = ca.issue_cert("localhost", "127.0.0.1")
    server.private_key_and_cert_chain_pem.write_to_path(folder / "server.pem")
    client = ca.issue_cert("leash@example.org", common_name="leash")
    client.private_key_and_cert_chain_pem.write_to_path(folder / "client.pem")
    ca.cert_pem.write_to_path(folder / "ca.pem")
    other.cert_pem.write_to_path(folder / "other.pem")
    with socket.socket() as probe, socket.socket() as other_probe:
        probe.bind(("127.0.0.1", 0))
        other_probe.bind(("127.0.0.1", 0))
        ports = probe.getsockname()[1], other_probe.getsockname()[1]
    return Tls(*ports, folder / "ca.pem", folder / "other.pem", folder / "client.pem")


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory, tls: Tls) -> Iterator[Broker]:
    """A node of our own, which may be killed; a test that does must leave it running."""
    if own_uri():
        pytest.skip("LEASH_URI is set, and this test needs a node that it may kill")
    server = str(tls.ca.with_name("server.pem"))
    node = Broker(
        tmp_path_factory.mktemp("broker"),
        {
            "listeners.ssl.1": f"127.0.0.1:{tls.port}",
            "stream.listeners.ssl.1": f"127.0.0.1:{tls.stream_port}",
            "stream.advertised_tls_host": "localhost",
            "stream.advertised_tls_port": str(tls.stream_port),
            "ssl_options.cacertfile": str(tls.ca),
            "ssl_options.certfile": server,
            "ssl_options.keyfile": server,
            "ssl_options.verify": "verify_peer",
            "ssl_options.fail_if_no_peer_cert": "false",
            "ssl_cert_login_from": "common_name",
            "auth_mechanisms.1": "PLAIN",
            "auth_mechanisms.2": "EXTERNAL",
        },
        plugins=["auth_mechanism_ssl"],
        owned=True,
    )
    node.start()
    asked = os.environ.get("BROKER")  # `make test BROKER=4.3`
    if asked:
        with connect(node.uri) as opened:
            assert opened.version[:2] == tuple(map(int, asked.split("."))), "another RabbitMQ than asked for"
    yield node
    node.stop(purge=True)


_STALLER = """
    Folder = "%s",
    Do = fun(Name, What) ->
        Asked = filename:join(Folder, Name),
        filelib:is_file(Asked) andalso begin What(), file:delete(Asked) end
    end,
    Loop = fun(Again) ->
        Do("stall", fun() -> sys:suspend(ra_log_wal) end),
        Do("go-on", fun() -> sys:resume(ra_log_wal) end),
        timer:sleep(10),
        Do("leave", fun() -> ok end) orelse Again(Again)
    end,
    spawn(fun() -> Loop(Loop) end).
"""


class StalledLog:
    """The disk of a node's quorum queues: while it stands still, they apply nothing, and all else goes on.

    A process of the broker's own sees to it, which is told by files: `rabbitmqctl` can take a minute.
    """

    def __init__(self, node: Broker) -> None:
        self._folder = node.folder
        self._lock = threading.Lock()
        self.stalled = False
        self.stalls = 0
        node.eval(_STALLER % str(self._folder), timeout=300)

    def tell(self, what: str) -> None:
        signal = self._folder / what
        signal.touch()
        until(lambda: not signal.exists())

    def begin(self) -> None:
        with self._lock:
            if not self.stalled:
                self.tell("stall")
                self.stalled = True
                self.stalls += 1

    def end(self) -> None:
        with self._lock:
            if self.stalled:
                self.tell("go-on")
                self.stalled = False

    def ends_with(self, wait: Callable[..., Any]) -> Callable[..., Any]:
        """A function that waits for the disk, and begins to before this moves again."""

        def waits(*given: Any) -> Any:
            threading.Thread(target=self.end).start()
            return wait(*given)

        return waits


@pytest.fixture
def stalled_log(broker: Broker) -> Iterator[StalledLog]:
    log = StalledLog(broker)
    yield log
    log.end()
    log.tell("leave")


def coordinate(nodes: Private) -> None:
    """Nodes that may be killed without losing their streams.

    RabbitMQ writes the coordinator's name to disk later than everything else: a node that is killed within a
    second of the first stream that it ever had forgets that it coordinates streams, for good.
    """
    from leash import streams

    with streams.connect(nodes.stream_uri) as opened:
        streams.create_stream(opened, "the first one")

    def written(node: Broker) -> bool:
        return any(b"rabbit_stream_coordinator" in f.read_bytes() for f in node.folder.rglob("names.dets"))

    until(lambda: all(map(written, nodes.nodes)), what="the stream coordinator is not on disk")


@pytest.fixture(scope="session")
def coordinated(broker: Broker) -> None:
    """A node that may be killed without losing its streams."""
    coordinate(broker)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three nodes for the tests of a module, each of which leaves all three running."""
    if own_uri():
        pytest.skip("LEASH_URI is set, and this test needs nodes that it may kill")
    with Cluster(tmp_path_factory.mktemp("cluster"), owned=True) as made:
        yield made


@pytest.fixture(scope="module")
def coordinated_cluster(cluster: Cluster) -> Cluster:
    """Three nodes that may be killed without losing their streams."""
    coordinate(cluster)
    return cluster


@pytest.fixture
def uri(request: pytest.FixtureRequest) -> Iterator[str]:
    """The URI of a fresh virtual host."""
    name = f"{request.node.name[:60]}-{secrets.token_hex(3)}"
    own = own_uri()
    if own:
        from dataclasses import replace

        management = Management.beside(own)
        place = replace(parse(own), vhost=name).reveal()
        management.add_vhost(name)
    else:
        node: Broker = request.getfixturevalue("broker")
        node.start()
        management = node.management
        management.add_vhost(name)
        place = node.uri_of(name)
    yield place
    if not own:
        node.start()
    management.delete_vhost(name)


@pytest.fixture
def connection(uri: str) -> Iterator[Connection]:
    """A connection to the test's virtual host."""
    with connect(uri, name="tests") as opened:
        yield opened


@pytest.fixture
def channel(connection: Connection) -> Channel:
    """A channel on it."""
    return connection.channel()
