"""One node: started, stopped, killed, frozen, asked."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from leash.amqp.connection import connect
from leash.amqp.uri import Uri
from leash.broker import files, processes
from leash.broker.base import Private, Progress
from leash.errors import AmqpError, BrokerError
from leash.management import Management

_START_SECONDS = 120.0
_STOP_SECONDS = 30.0

_ELECT = """
[ra:trigger_election(amqqueue:get_pid(Q)) || Q <- rabbit_amqqueue:list(),
    amqqueue:get_type(Q) =:= rabbit_quorum_queue,
    ra_leaderboard:lookup_leader(element(1, amqqueue:get_pid(Q))) =:= undefined].
"""
"""Sometimes a quorum queue on a restarted single node never gets a leader (rabbitmq-server issue 10070; one
of twelve in six restarts): it takes no message and confirms none.
"""


class Broker(Private):
    """A node whose files are in `folder`, with extra lines for rabbitmq.conf and extra plugins."""

    def __init__(
        self,
        folder: Path | str,
        config: Mapping[str, str] | None = None,
        plugins: Iterable[str] = (),
        *,
        owned: bool = False,
    ) -> None:
        super().__init__(folder, "node.json", owned)
        self._config = dict(config or {})
        self._plugins = list(plugins)

    # --- what it is ---

    @property
    def nodes(self) -> list[Broker]:
        return [self]

    @property
    def running(self) -> bool:
        node = self.read_state()
        return node is not None and "pid" in node and processes.alive(node["pid"], node["started"])

    @property
    def paused(self) -> bool:
        """True if it is frozen."""
        return self.running and processes.stopped(self.known()["pid"])

    @property
    def name(self) -> str:
        """Its Erlang node name."""
        return str(self.known()["name"])

    def port(self, name: str) -> int:
        """The port of amqp, management, prometheus, stream, distribution or epmd."""
        return int(self.known()["ports"][name])

    def place(self, vhost: str = "/") -> Uri:
        """Its address and credentials."""
        node = self.known()
        return Uri((("127.0.0.1", node["ports"]["amqp"]),), node["user"], node["password"], vhost)

    # --- what can happen to it, beside `start` and `stop` ---

    def kill(self) -> None:
        """Kill it with SIGKILL, like a power cut."""
        self._end(signal.SIGKILL)

    def restart(self, progress: Progress | None = None) -> None:
        """Stop it if it runs, and start it with the same ports and data."""
        self._end(signal.SIGTERM)
        self.start(progress)

    def pause(self) -> None:
        """Freeze it: connections stay open, nothing answers."""
        os.killpg(self.known()["pid"], signal.SIGSTOP)
        while self.running and not self.paused:  # its threads stop one by one
            time.sleep(0.01)

    def resume(self) -> None:
        """The inverse of `pause`."""
        os.killpg(self.known()["pid"], signal.SIGCONT)

    def drain(self) -> None:
        """Enter maintenance mode: close clients' connections, take no new ones, and lead no queue."""
        self.ctl("drain", tool="rabbitmq-upgrade")

    def revive(self) -> None:
        """The inverse of `drain`."""
        self.ctl("revive", tool="rabbitmq-upgrade")

    # --- asking it ---

    def ctl(self, *arguments: str, tool: str = "rabbitmqctl", timeout: float = 180.0) -> str:
        """Run rabbitmqctl (or rabbitmq-diagnostics, ...) against this node; returns what it prints."""
        command = [str(files.home() / tool), "-q", "-n", self.known()["name"], *arguments]
        return self._tool(f"{tool} {arguments[0]}", command, timeout)

    def eval(self, expression: str, timeout: float = 180.0) -> str:
        """Have this node evaluate Erlang; returns the result as Erlang prints it."""
        call = shutil.which("erl_call")  # a hundredth of the CPU that `rabbitmqctl` takes
        if call is None:
            return self.ctl("eval", expression, timeout=timeout)
        address = f"127.0.0.1:{self.port('distribution')}"
        told = self._tool("erl_call", [call, "-r", "-address", address, "-e"], timeout, f"{expression}\n")
        if not told.startswith("{ok, "):
            raise BrokerError(f"{expression} failed: {told}")
        return told.removeprefix("{ok, ").rstrip().removesuffix("}")

    def _tool(self, what: str, command: list[str], timeout: float, given: str = "") -> str:
        environment = files.environment(self.folder, self.known())
        try:
            done = subprocess.run(
                command, env=environment, input=given, capture_output=True, text=True, timeout=timeout
            )
        except subprocess.TimeoutExpired:
            raise BrokerError(f"{what} did not end within {timeout:g} s") from None
        if done.returncode:
            raise BrokerError(f"{what} failed: {(done.stderr or done.stdout).strip()}")
        return done.stdout

    @property
    def management(self) -> Management:
        node = self.known()
        return Management(f"http://127.0.0.1:{node['ports']['management']}", node["user"], node["password"])

    # --- what is in its files ---

    def adopt(self, identity: Mapping[str, Any]) -> None:
        """Become a node of a cluster, with this identity; not while it runs."""
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        files.write_private(self.file, json.dumps(identity))

    def move(self, ports: Mapping[str, int]) -> None:
        """Listen on these ports from the next start on."""
        node = self.known()
        self.adopt(node | {"ports": node["ports"] | ports})

    @property
    def _log(self) -> Path:
        return self.folder / "log" / "node.log"

    # --- from start to end ---

    def _start(self, progress: Progress | None) -> None:
        if self.running:
            self._wait_ready(progress)
            return
        fresh_ports = False
        for _ in range(3):
            node = self.read_state() or _new()
            again = "pid" in node
            self._refuse_older(node)
            self._launch(node, fresh_ports)
            try:
                self._wait_ready(progress)
                if again and "cluster" not in node:
                    self.eval(_ELECT)
                return
            except _Unlucky as error:
                unlucky = error
                fresh_ports = fresh_ports or error.port_taken
                self._end(signal.SIGKILL)
            except BaseException:  # an interrupted start leaves nothing behind either
                self._end(signal.SIGKILL)
                raise
        raise BrokerError(f"three times {unlucky}; the log is {self._log}")

    def _refuse_older(self, node: Mapping[str, Any]) -> None:
        """An older RabbitMQ than the one that wrote the files would start, and lose what it cannot read."""
        wrote, home = node.get("version"), str(files.home())
        if wrote is None or home == node.get("scripts"):  # asking takes seconds
            return
        found = files.version(self.folder)
        if list(found) < wrote:
            older, newer = (".".join(map(str, each)) for each in (found, wrote))
            raise BrokerError(
                f"RabbitMQ {older} in {home} cannot read what {newer} wrote to {self.folder}: use that one, "
                "another folder, or purge this one (leash broker stop --purge)"
            )

    def _launch(self, node: dict[str, Any], fresh_ports: bool) -> None:
        script = files.home() / "rabbitmq-server"
        cluster = node.get("cluster")  # its folder: the nodes of a cluster share one epmd, marked with it
        if fresh_ports:
            node["ports"] = files.free_ports() | ({"epmd": node["ports"]["epmd"]} if cluster else {})
        files.write_config(self.folder, node, self._config | node.get("config", {}), self._plugins)
        environment = files.environment(self.folder, node)
        self._log.write_text("")
        try:
            if not (cluster and files.epmd_answers(node["ports"]["epmd"])):
                shared = environment | ({processes.MARK: cluster} if cluster else {})
                processes.spawn(files.epmd_command(node["ports"]["epmd"]), shared, self._log)
            server = processes.spawn([str(script)], environment, self._log)
        except OSError as error:
            raise BrokerError(f"{error.filename or script} cannot be started: {error}") from error
        node |= {"pid": server, "started": processes.started(server), "scripts": str(script.parent)}
        files.write_private(self.file, json.dumps(node))

    def _wait_ready(self, progress: Progress | None) -> None:
        began = time.monotonic()
        while True:
            passed = time.monotonic() - began
            try:
                with connect(self.uri, name="leash broker start") as connection:
                    version = list(connection.version)
                self.management.ask("GET", "/api/overview")
                socket.create_connection(("127.0.0.1", self.port("stream")), timeout=5).close()
                if self.known().get("version") != version:
                    files.write_private(self.file, json.dumps(self.known() | {"version": version}))
                return
            except (AmqpError, BrokerError, OSError):
                if not self.running:
                    raise self._failure() from None
                if passed > _START_SECONDS:
                    raise BrokerError(f"no answer after {passed:.0f} s; the log is {self._log}") from None
            if progress:
                progress(passed)
            time.sleep(0.2)

    def _failure(self) -> BrokerError:
        log = self._log.read_text(errors="replace") if self._log.exists() else ""
        if "eaddrinuse" in log.lower() or "address already in use" in log.lower():
            return _Unlucky("a port was taken by another program", port_taken=True)
        if "incompatible_feature_flags" in log and "badrpc" in log:
            return _Unlucky("another node of the cluster was not ready to answer")
        lines = [line for line in log.splitlines() if line.strip()][-6:]
        return BrokerError("RabbitMQ ended while starting; its last words:\n  " + "\n  ".join(lines))

    def _end(self, sign: signal.Signals) -> None:
        node = self.read_state()
        if sign != signal.SIGKILL and node is not None and self.running:
            processes.signal_group(node["pid"], signal.SIGCONT)
            os.kill(node["pid"], signal.SIGTERM)
            processes.gone(node["pid"], node["started"], _STOP_SECONDS)
        processes.kill_marked(self.folder)


class _Unlucky(BrokerError):
    """The next start may well succeed.

    Another program won the race for a port; or the nodes of a cluster started at the same moment, and one of
    RabbitMQ 3.10 asked another about features that this one did not know yet, which ends the one that asked.
    """

    def __init__(self, message: str, port_taken: bool = False) -> None:
        super().__init__(message)
        self.port_taken = port_taken


def _new() -> dict[str, Any]:
    return {
        "name": f"leash-{secrets.token_hex(4)}@localhost",
        "user": "leash",
        "password": secrets.token_urlsafe(24),
        "cookie": secrets.token_hex(20),
        "ports": files.free_ports(),
    }
