"""Several nodes on one machine that form a cluster: for tests, and to try out failovers.

Each node is a `Broker` with its own folder, ports and processes; they share a cookie, an epmd and a user.
They find each other by the list of names in their configuration.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import time
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace
from pathlib import Path

from leash.amqp.uri import Uri
from leash.broker import files, processes
from leash.broker.base import Private, Progress
from leash.broker.node import Broker
from leash.errors import BrokerError, ConfigError
from leash.management import Management

_JOIN_SECONDS = 180.0  # on a busy machine a paused node takes a minute to start again
_PATIENCE = 20.0  # seconds before a running node that the others do not see is started again
_EPMD_SECONDS = 10.0

_SPLIT = """
[erpc:call(B, erlang, set_cookie, [A, there]) || A <- Here, B <- There, lists:member(B, Up)],
[erpc:call(A, erlang, set_cookie, [B, here]) || A <- Here, B <- There, lists:member(A, Up)],
[erpc:call(A, erlang, disconnect_node, [B]) || A <- Here, B <- There, lists:member(A, Up)].
"""
"""With different cookies on the two sides, no connection between them can be made."""

_HEAL = "[erlang:set_cookie(N, erlang:get_cookie()) || N <- All, N =/= node()]."
_CONNECT = "[net_kernel:connect_node(N) || N <- All, N =/= node()]."


# A lost node is noticed within seconds, so that a failover can be tried out quickly.
# RabbitMQ's defaults are 60 s, 5 s, 5 s and 60 s.
_TICK = "-kernel net_ticktime 4"  # s: until a node that does not answer counts as gone
_ADVANCED = """[
{aten, [{poll_interval, 1000}, {heartbeat_interval, 1000}]}, % ms: for a frozen leader to be replaced
{rabbit, [{consumer_disconnected_timeout, 2000}]} % ms: from 4.3 on, for a lost node's consumer to be replaced
]."""
_KHEPRI = (4, 2)
"""From this version on, nodes agree by Raft about everything. Earlier clusters fall apart for good when a
node that counted as gone is suddenly back; there, the tick keeps its default."""


class Cluster(Private):
    """`nodes` nodes (3 by default for a new cluster), with extra lines for each rabbitmq.conf.

    `uri` lists all of them. Faults are methods of a node: `cluster.nodes[0].kill()`.
    """

    def __init__(
        self,
        folder: Path | str,
        nodes: int | None = None,
        config: Mapping[str, str] | None = None,
        plugins: Iterable[str] = (),
        *,
        owned: bool = False,
    ) -> None:
        super().__init__(folder, "cluster.json", owned)
        if nodes is not None and not 1 <= nodes <= 9:
            raise ConfigError("nodes", nodes, "a whole number from 1 to 9")
        there = self.read_state()
        if there and nodes not in (None, there["nodes"]):
            raise ConfigError("nodes", nodes, f"{there['nodes']}, as there are in {self.folder}")
        count = there["nodes"] if there else nodes or 3
        plugins = list(plugins)
        self._nodes = [Broker(self.folder / str(number + 1), config, plugins) for number in range(count)]

    # --- what it is ---

    @property
    def nodes(self) -> list[Broker]:
        return self._nodes

    @property
    def running(self) -> bool:
        return any(node.running for node in self.nodes)

    @property
    def management(self) -> Management:
        return self._first().management

    def place(self, vhost: str = "/") -> Uri:
        self.known()
        hosts = tuple(("127.0.0.1", node.port("amqp")) for node in self.nodes)
        return replace(self.nodes[0].place(vhost), hosts=hosts)

    def _first(self) -> Broker:
        """A running node."""
        for node in self.nodes:
            if node.running and not node.paused:
                return node
        raise BrokerError(f"no node of the cluster in {self.folder} runs: start it with `leash broker start`")

    # --- partitions ---

    @contextlib.contextmanager
    def split(self, *nodes: Broker) -> Iterator[None]:
        """In this context these nodes and the others cannot reach each other; their clients can reach them.

        The connections between the two sides end at once, and none can be made until the end.
        """
        here = [node.name for node in nodes]
        there = [name for name in self._names() if name not in here]
        if not here or not there:
            raise ConfigError("nodes", here, f"some of {', '.join(self._names())}, and not all")
        up = [node.name for node in self.nodes if node.running]
        nodes[0].eval(_bound(_SPLIT, Here=here, There=there, Up=up))
        try:
            yield
        finally:
            self.heal()

    def heal(self) -> None:
        """The inverse of `split`. A paused node must be resumed first."""
        names = self._names()
        for step in (_HEAL, _CONNECT):  # all must have the cookie before any can connect
            self._on_all([node for node in self.nodes if node.running], step, All=names)

    def _on_all(self, nodes: list[Broker], expression: str, **names: list[str]) -> None:
        with ThreadPoolExecutor(len(self.nodes)) as pool:
            for job in [pool.submit(node.ctl, "eval", _bound(expression, **names)) for node in nodes]:
                job.result()

    def wait_joined(self) -> None:
        """Wait until every node sees every other. They do after `start`, but not at once after a fault."""
        deadline = time.monotonic() + _JOIN_SECONDS
        for node in self.nodes:
            patience = time.monotonic() + _PATIENCE
            while True:
                seen = _seen_by(node)
                if seen >= set(self._names()):
                    break
                if time.monotonic() > deadline:
                    raise BrokerError(f"{node.name} sees only {sorted(seen)} after {_JOIN_SECONDS:.0f} s")
                if time.monotonic() > patience:
                    self._start_again([other for other in self.nodes if other.name not in seen])
                    patience = time.monotonic() + _PATIENCE
                time.sleep(0.2)

    def _start_again(self, nodes: list[Broker]) -> None:
        """Restart nodes: RabbitMQ up to 4.1 tries only once to start a node that paused in a minority."""
        for node in nodes:
            if node.running and not node.paused:
                with contextlib.suppress(BrokerError):
                    node.ctl("start_app")

    # --- what is in its files ---

    def _names(self) -> list[str]:
        return [node.name for node in self.nodes]

    def _create(self) -> None:
        """Write each node's identity before the first one starts. The list of nodes is written last."""
        if (self.folder / "node.json").exists():
            raise BrokerError(f"there is a single node in {self.folder}: `leash broker stop --purge` first")
        name = f"leash-{secrets.token_hex(4)}"
        names = [f"{name}-{number + 1}@localhost" for number in range(len(self.nodes))]
        ports = files.free_ports(f"{port} {each}" for each in names for port in files.PORTS)
        shared = {
            "user": "leash",
            "password": secrets.token_urlsafe(24),
            "cookie": secrets.token_hex(20),
            "cluster": str(self.folder),
            "arguments": _TICK if files.version(self.folder) >= _KHEPRI else "",
            "advanced": _ADVANCED,
            "config": {
                "cluster_formation.peer_discovery_backend": "classic_config",
                "cluster_partition_handling": "pause_minority",
                **{f"cluster_formation.classic_config.nodes.{i + 1}": each for i, each in enumerate(names)},
            },
        }
        for node, each in zip(self.nodes, names, strict=True):
            own = {port: ports[f"{port} {each}"] for port in files.PORTS}
            own["epmd"] = ports[f"epmd {names[0]}"]
            node.adopt({"name": each, "ports": own, **shared})
        files.write_private(self.file, json.dumps({"nodes": len(names)}))

    # --- from start to end ---

    def _start(self, progress: Progress | None) -> None:
        if not self.exists:
            self._create()
        down = [node for node in self.nodes if not node.running]
        if len(down) == len(self.nodes):
            self._start_epmd()
        began = time.monotonic()
        try:
            # All at the same time: none is ready before it sees a majority.
            with ThreadPoolExecutor(len(self.nodes)) as pool:
                jobs = {node: pool.submit(node.start) for node in self.nodes}
                patience = began + _PATIENCE
                try:
                    while wait(jobs.values(), 0.2).not_done:
                        if progress:
                            progress(time.monotonic() - began)
                        if time.monotonic() > patience:
                            self._start_again(
                                [n for n, job in jobs.items() if n not in down and not job.done()]
                            )
                            patience = time.monotonic() + _PATIENCE
                except BaseException:
                    for node in down:
                        node.kill()  # so that nothing waits for it any longer
                    raise
            for job in jobs.values():
                job.result()
            self.wait_joined()
        except BaseException:
            for node in down:
                node.kill()
            if not self.running:
                self._end(signal.SIGKILL)
            raise

    def _start_epmd(self) -> None:
        """Start epmd on its last port, or on another if that is taken."""
        for _ in range(3):
            port = self.nodes[0].port("epmd")
            log = self.folder / "epmd.log"
            pid = processes.spawn(
                files.epmd_command(port), os.environ | {processes.MARK: str(self.folder)}, log
            )
            since, deadline = processes.started(pid), time.monotonic() + _EPMD_SECONDS
            while processes.alive(pid, since) and time.monotonic() < deadline:
                if files.epmd_answers(port):
                    return
                time.sleep(0.02)
            processes.kill(pid, since)
            fresh = files.free_ports(["epmd"])
            for node in self.nodes:
                node.move(fresh)
        raise BrokerError(f"epmd does not start; its log is {self.folder / 'epmd.log'}")

    def _end(self, sign: signal.Signals) -> None:
        if sign != signal.SIGKILL:
            with ThreadPoolExecutor(len(self.nodes)) as pool:
                list(pool.map(lambda node: node.stop(), self.nodes))
        processes.kill_marked(self.folder)


def _seen_by(node: Broker) -> set[str]:
    """The names of the running nodes, as one of them sees them."""
    try:
        listed = node.management.ask("GET", "/api/nodes?columns=name,running")
    except BrokerError:  # a node that was cut off restarts its listeners
        return set()
    return {each["name"] for each in listed if each["running"]}


def _bound(expression: str, **names: list[str]) -> str:
    """An Erlang expression with variables that hold node names."""
    lists = {variable: ", ".join(f"'{name}'" for name in each) for variable, each in names.items()}
    return "".join(f"{variable} = [{each}], " for variable, each in lists.items()) + expression
