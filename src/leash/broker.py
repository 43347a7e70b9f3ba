"""A private RabbitMQ node, for the demo, the lab, tests and trying things out.

The law: nothing of it can be reached from outside this machine, and nothing is left behind. Every listener,
the distribution port and epmd bind to loopback; the password is random and in place before the first start,
so that guest never exists; `stop` ends every process of the node, by id.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from leash.amqp.connection import connect
from leash.amqp.uri import Uri
from leash.errors import AmqpError, BrokerError
from leash.management import Management

PLUGINS = ["consistent_hash_exchange", "management", "prometheus", "stream"]
_PORTS = ["amqp", "management", "prometheus", "stream", "distribution", "epmd"]
_HOMES = ["/usr/lib/rabbitmq/bin", "/opt/homebrew/opt/rabbitmq/sbin", "/usr/local/opt/rabbitmq/sbin"]
_START_SECONDS = 120.0
_STOP_SECONDS = 30.0


def default_folder() -> Path:
    """Where `leash broker` keeps its node: the user's state folder."""
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(base) / "leash" / "broker"


def own_uri() -> str | None:
    """LEASH_URI: a broker of the user's own, which everything then uses instead of a private node."""
    return os.environ.get("LEASH_URI") or None


_ELECT = """
[ra:trigger_election(amqqueue:get_pid(Q)) || Q <- rabbit_amqqueue:list(),
    amqqueue:get_type(Q) =:= rabbit_quorum_queue,
    ra_leaderboard:lookup_leader(element(1, amqqueue:get_pid(Q))) =:= undefined].
"""
"""Now and then a quorum queue on a lone node that was restarted has no leader, forever (rabbitmq-server issue
10070; one of twelve in six restarts): it takes no message and confirms none.
"""


class Broker:
    """A node whose files are in `folder`, with further lines for rabbitmq.conf and further plugins."""

    def __init__(
        self, folder: Path | str, config: Mapping[str, str] | None = None, plugins: Iterable[str] = ()
    ) -> None:
        self.folder = Path(folder).absolute()
        self._config = dict(config or {})
        self._plugins = [*PLUGINS, *plugins]
        self._file = self.folder / "node.json"

    def __repr__(self) -> str:
        return f"<Broker in {self.folder}>"

    # --- what it is ---

    @property
    def running(self) -> bool:
        """Whether the node's process lives."""
        node = self._read()
        return node is not None and _alive(node["pid"], node["started"])

    @property
    def uri(self) -> str:
        """With the password in it: for programs, not for logs."""
        return self._uri().reveal()

    def port(self, name: str) -> int:
        """The port of amqp, management, prometheus, stream, distribution or epmd."""
        return int(self._node()["ports"][name])

    def shown(self) -> str:
        """The URI as it may be printed."""
        return str(self._uri())

    def _uri(self, vhost: str = "/") -> Uri:
        node = self._node()
        return Uri((("127.0.0.1", node["ports"]["amqp"]),), node["user"], node["password"], vhost)

    # --- start and stop ---

    def start(self, progress: Callable[[float], None] | None = None) -> None:
        """Start it in the background and return once it answers; at once if it runs already."""
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with self._locked():
            if self.running:
                self._wait_ready(progress)
                return
            for attempt in range(3):
                again = self._read() is not None
                self._launch(fresh_ports=attempt > 0 or not again)
                try:
                    self._wait_ready(progress)
                    if again:
                        self.ctl("eval", _ELECT)
                    return
                except _PortTaken:
                    self._end(signal.SIGKILL)
                except BaseException:  # a start that is interrupted leaves nothing behind either
                    self._end(signal.SIGKILL)
                    raise
            raise BrokerError(f"three times a port was taken by somebody else; the log is {self._log}")

    def stop(self, *, purge: bool = False) -> None:
        """Stop it in good order; with `purge` delete its data too. A node that does not run is no error."""
        if self.folder.exists():
            with self._locked():
                self._end(signal.SIGTERM)
            if purge:
                shutil.rmtree(self.folder)

    def kill(self) -> None:
        """SIGKILL, as a power cut would."""
        self._end(signal.SIGKILL)

    def restart(self, progress: Callable[[float], None] | None = None) -> None:
        """Stop if need be, and start with the same ports and data."""
        self._end(signal.SIGTERM)
        self.start(progress)

    def pause(self) -> None:
        """Freeze it: connections stay open, nothing answers."""
        os.killpg(self._node()["pid"], signal.SIGSTOP)

    def resume(self) -> None:
        """The end of `pause`."""
        os.killpg(self._node()["pid"], signal.SIGCONT)

    # --- asking it ---

    def ctl(self, *arguments: str, tool: str = "rabbitmqctl", timeout: float = 60.0) -> str:
        """Run rabbitmqctl (or rabbitmq-diagnostics, ...) against this node; returns what it prints."""
        command = [str(_home() / tool), "-q", "-n", self._node()["name"], *arguments]
        done = subprocess.run(
            command, env=self._environment(), capture_output=True, text=True, timeout=timeout
        )
        if done.returncode:
            raise BrokerError(f"{tool} {arguments[0]} failed: {(done.stderr or done.stdout).strip()}")
        return done.stdout

    @property
    def management(self) -> Management:
        """Its management plugin."""
        node = self._node()
        return Management(f"http://127.0.0.1:{node['ports']['management']}", node["user"], node["password"])

    def uri_of(self, vhost: str) -> str:
        """The URI of one of its virtual hosts, password included."""
        return self._uri(vhost).reveal()

    # --- inside ---

    @property
    def _log(self) -> Path:
        return self.folder / "log" / "node.log"

    def _read(self) -> dict[str, Any] | None:
        try:
            found: dict[str, Any] = json.loads(self._file.read_text())
        except FileNotFoundError:
            return None
        return found

    def _node(self) -> dict[str, Any]:
        node = self._read()
        if node is None:
            raise BrokerError(f"there is no node in {self.folder}: start one with `leash broker start`")
        return node

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        with open(self.folder / "lock", "w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def _launch(self, fresh_ports: bool) -> None:
        script = _home() / "rabbitmq-server"
        node = self._read() or {
            "name": f"leash-{secrets.token_hex(4)}@localhost",
            "user": "leash",
            "password": secrets.token_urlsafe(24),
        }
        if fresh_ports:
            node["ports"] = _free_ports()
        self._write_files(node)
        environment = self._environment(node)
        self._log.write_text("")
        epmd = _spawn(
            ["epmd", "-port", str(node["ports"]["epmd"]), "-address", "127.0.0.1"], environment, self._log
        )
        server = _spawn([str(script)], environment, self._log)
        node |= {"pid": server, "started": _started(server), "epmd": epmd, "epmd_started": _started(epmd)}
        _write_private(self._file, json.dumps(node))

    def _write_files(self, node: Mapping[str, Any]) -> None:
        ports = node["ports"]
        for name in ("log", "data", "home"):
            (self.folder / name).mkdir(exist_ok=True, mode=0o700)
        settings = {
            "listeners.tcp.1": f"127.0.0.1:{ports['amqp']}",
            "management.tcp.ip": "127.0.0.1",
            "management.tcp.port": ports["management"],
            "prometheus.tcp.ip": "127.0.0.1",
            "prometheus.tcp.port": ports["prometheus"],
            "stream.listeners.tcp.1": f"127.0.0.1:{ports['stream']}",
            "default_user": node["user"],
            "default_pass": node["password"],
            "disk_free_limit.absolute": "50MB",
            **self._config,
        }
        lines = "".join(f"{name} = {value}\n" for name, value in settings.items())
        _write_private(self.folder / "rabbitmq.conf", lines)
        enabled = ",".join(f"rabbitmq_{name}" for name in self._plugins)
        (self.folder / "enabled_plugins").write_text(f"[{enabled}].\n")

    def _environment(self, node: Mapping[str, Any] | None = None) -> dict[str, str]:
        node = node or self._node()
        loopback = "-kernel inet_dist_use_interface {127,0,0,1}"
        inherited = {
            k: v for k, v in os.environ.items() if not k.startswith(("RABBITMQ_", "ERL_", "NOTIFY_"))
        }
        return inherited | {
            "HOME": str(self.folder / "home"),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "ERL_EPMD_PORT": str(node["ports"]["epmd"]),
            "RABBITMQ_NODENAME": node["name"],
            "RABBITMQ_DIST_PORT": str(node["ports"]["distribution"]),
            "RABBITMQ_CONF_ENV_FILE": os.devnull,
            "RABBITMQ_CONFIG_FILE": str(self.folder / "rabbitmq.conf"),
            "RABBITMQ_ADVANCED_CONFIG_FILE": str(self.folder / "advanced.config"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self.folder / "enabled_plugins"),
            "RABBITMQ_MNESIA_BASE": str(self.folder / "data"),
            "RABBITMQ_LOG_BASE": str(self.folder / "log"),
            "RABBITMQ_PID_FILE": str(self.folder / "pid"),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": loopback,
            "RABBITMQ_CTL_ERL_ARGS": loopback,
            "LANG": "C.UTF-8",
        }

    def _wait_ready(self, progress: Callable[[float], None] | None) -> None:
        began = time.monotonic()
        while True:
            passed = time.monotonic() - began
            try:
                connect(self.uri, name="leash broker start").close()
                self.management.ask("GET", "/api/overview")
                return
            except (AmqpError, BrokerError):
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
            return _PortTaken("a port is taken")
        lines = [line for line in log.splitlines() if line.strip()][-6:]
        return BrokerError("RabbitMQ ended while starting; its last words:\n  " + "\n  ".join(lines))

    def _end(self, sign: signal.Signals) -> None:
        node = self._read()
        if node is None:
            return
        family = _family(node["pid"])
        if _alive(node["pid"], node["started"]):
            if sign == signal.SIGKILL:
                _signal_group(node["pid"], signal.SIGKILL)
            else:
                _signal_group(node["pid"], signal.SIGCONT)
                os.kill(node["pid"], signal.SIGTERM)
            if not _gone(node["pid"], node["started"], _STOP_SECONDS):
                _signal_group(node["pid"], signal.SIGKILL)
                _gone(node["pid"], node["started"], 5)
        _end_session(node["pid"])
        for pid, started in family:  # the VM's port programs have a session of their own
            if _alive(pid, started):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                _gone(pid, started, 5)
        if _alive(node["epmd"], node["epmd_started"]):
            os.kill(node["epmd"], signal.SIGTERM)
            _gone(node["epmd"], node["epmd_started"], 5)


class _PortTaken(BrokerError):
    """Somebody was faster than we."""


def _home() -> Path:
    """RabbitMQ's own scripts: the wrappers on the PATH drop the environment when run by root."""
    for folder in [os.environ.get("RABBITMQ_SCRIPTS"), *_HOMES]:
        if folder and (Path(folder) / "rabbitmq-server").exists():
            return Path(folder)
    raise BrokerError(
        "RabbitMQ is not installed: get the package rabbitmq-server (Debian, Ubuntu: apt-get install "
        "rabbitmq-server), or set RABBITMQ_SCRIPTS to its scripts' folder, or LEASH_URI to a broker you have"
    )


def _free_ports() -> dict[str, int]:
    with contextlib.ExitStack() as open_sockets:
        ports = {}
        for name in _PORTS:
            sock = open_sockets.enter_context(socket.socket())
            sock.bind(("127.0.0.1", 0))
            ports[name] = sock.getsockname()[1]
        return ports


def _spawn(command: list[str], environment: Mapping[str, str], log: Path) -> int:
    with open(log, "a") as output:
        try:
            process = subprocess.Popen(
                command,
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        except OSError as error:
            raise BrokerError(f"{command[0]} cannot be started: {error}") from error
    process.returncode = 0  # it is meant to outlive us; `_gone` reaps it if it ends before
    return process.pid


def _write_private(path: Path, text: str) -> None:
    temporary = path.with_suffix(".new")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with open(descriptor, "w") as file:
        file.write(text)
    temporary.replace(path)


# --- processes, by id and start time, so that a reused id is never hit ---


def _stat(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def _started(pid: int) -> str:
    fields = _stat(pid)
    return fields[19] if fields else ""


def _alive(pid: int, started: str) -> bool:
    with contextlib.suppress(OSError):
        os.waitpid(pid, os.WNOHANG)  # if it is our child and ended, it would stay a zombie
    fields = _stat(pid)
    return bool(fields) and fields[19] == started and fields[0] != "Z"


def _gone(pid: int, started: str, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while _alive(pid, started):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def _signal_group(pid: int, sign: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, sign)


def _family(root: int) -> list[tuple[int, str]]:
    """All that descends from a process."""
    children: dict[str, list[tuple[int, str]]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and (fields := _stat(int(entry.name))):
            children.setdefault(fields[1], []).append((int(entry.name), fields[19]))
    found = list(children.get(str(root), []))
    for pid, _ in found:  # grows as it goes
        found += children.get(str(pid), [])
    return found


def _end_session(session: int) -> None:
    """What the node itself started (port programs, the VM after its shell was killed) is in its session."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            fields = _stat(int(entry.name))
            if fields and fields[3] == str(session) and fields[0] != "Z":
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(entry.name), signal.SIGKILL)
                _gone(int(entry.name), fields[19], 5)
