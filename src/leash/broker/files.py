"""Where RabbitMQ is installed, and the files, ports and environment of a private node."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from leash.broker.processes import MARK, kill_marked
from leash.errors import BrokerError

PLUGINS = ["consistent_hash_exchange", "management", "prometheus", "stream"]
PORTS = ["amqp", "management", "prometheus", "stream", "distribution", "epmd"]
HOMES = ["/usr/lib/rabbitmq/bin", "/opt/homebrew/opt/rabbitmq/sbin", "/usr/local/opt/rabbitmq/sbin"]


def home() -> Path:
    """The folder of RabbitMQ's scripts. The wrappers on the PATH drop the environment when run by root."""
    named = os.environ.get("RABBITMQ_SCRIPTS")
    for folder in [named] if named else HOMES:
        if (Path(folder) / "rabbitmq-server").exists():
            return Path(folder)
    if named:
        raise BrokerError(f"RABBITMQ_SCRIPTS={named}: there is no rabbitmq-server in that folder")
    raise BrokerError(
        "RabbitMQ is not installed: get the package rabbitmq-server (Debian, Ubuntu: apt-get install "
        "rabbitmq-server), or set RABBITMQ_SCRIPTS to its scripts' folder, or LEASH_URI to a broker you have"
    )


def version(folder: Path) -> tuple[int, ...]:
    """The version of the RabbitMQ that would be started."""
    mark = folder / "version"
    environment = {**os.environ, "HOME": str(folder), "RABBITMQ_CONF_ENV_FILE": os.devnull}
    environment |= {MARK: str(mark), "ERL_EPMD_ADDRESS": "127.0.0.1"}
    command = [str(home() / "rabbitmqctl"), "version"]
    try:
        said = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=60, check=True
        ).stdout
        return tuple(int(part) for part in said.strip().split("-")[0].split("."))
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        raise BrokerError(f"{command[0]} does not tell its version: {error}") from error
    finally:
        kill_marked(mark)  # the tool of some versions starts an epmd, and leaves it behind


def epmd_command(port: int) -> list[str]:
    """The command for the epmd of this RabbitMQ, if it has one; on loopback."""
    beside = home() / "epmd"
    return [str(beside) if beside.exists() else "epmd", "-port", str(port), "-address", "127.0.0.1"]


def epmd_answers(port: int) -> bool:
    """True if an epmd, not another program, listens on a port."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=5) as sock:
            sock.sendall(b"\0\x01n")  # its request for names; the answer begins with its port
            return sock.recv(4, socket.MSG_WAITALL) == port.to_bytes(4, "big")
    except OSError:
        return False


def free_ports(names: Iterable[str] = PORTS) -> dict[str, int]:
    """Ports that are free now."""
    with contextlib.ExitStack() as open_sockets:
        ports = {}
        for name in names:
            sock = open_sockets.enter_context(socket.socket())
            sock.bind(("127.0.0.1", 0))
            ports[name] = sock.getsockname()[1]
        return ports


def write_private(path: Path, text: str) -> None:
    """Write a file atomically, readable by its owner only."""
    temporary = path.with_suffix(".new")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with open(descriptor, "w") as file:
        file.write(text)
    temporary.replace(path)


def write_config(
    folder: Path, node: Mapping[str, Any], config: Mapping[str, str], plugins: Iterable[str]
) -> None:
    """Write the files that the node reads when it starts. The password is set before the first start."""
    ports = node["ports"]
    for name in ("log", "data", "home"):
        (folder / name).mkdir(exist_ok=True, mode=0o700)
    settings = {
        "listeners.tcp.1": f"127.0.0.1:{ports['amqp']}",
        "management.tcp.ip": "127.0.0.1",
        "management.tcp.port": ports["management"],
        "prometheus.tcp.ip": "127.0.0.1",
        "prometheus.tcp.port": ports["prometheus"],
        "stream.listeners.tcp.1": f"127.0.0.1:{ports['stream']}",
        "stream.advertised_host": "127.0.0.1",
        "stream.advertised_port": ports["stream"],
        "default_user": node["user"],
        "default_pass": node["password"],
        "disk_free_limit.absolute": "50MB",
        **config,
    }
    write_private(
        folder / "rabbitmq.conf", "".join(f"{name} = {value}\n" for name, value in settings.items())
    )
    (folder / "advanced.config").write_text(node.get("advanced", "[]."))
    if "cookie" in node:
        write_private(folder / "home" / ".erlang.cookie", node["cookie"])
    enabled = ",".join(f"rabbitmq_{name}" for name in [*PLUGINS, *plugins])
    (folder / "enabled_plugins").write_text(f"[{enabled}].\n")


def environment(folder: Path, node: Mapping[str, Any]) -> dict[str, str]:
    """The environment of the node and its tools: all files in its folder, all ports on loopback."""
    loopback = "-kernel inet_dist_use_interface {127,0,0,1}"
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("RABBITMQ_", "ERL_", "NOTIFY_"))}
    return inherited | {
        MARK: str(folder),
        "HOME": str(folder / "home"),
        "ERL_EPMD_ADDRESS": "127.0.0.1",
        "ERL_EPMD_PORT": str(node["ports"]["epmd"]),
        "RABBITMQ_NODENAME": node["name"],
        "RABBITMQ_DIST_PORT": str(node["ports"]["distribution"]),
        "RABBITMQ_CONF_ENV_FILE": os.devnull,
        "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq.conf"),
        "RABBITMQ_ADVANCED_CONFIG_FILE": str(folder / "advanced.config"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "enabled_plugins"),
        "RABBITMQ_MNESIA_BASE": str(folder / "data"),
        "RABBITMQ_LOG_BASE": str(folder / "log"),
        "RABBITMQ_PID_FILE": str(folder / "pid"),
        "RUNNING_UNDER_SYSTEMD": "true",  # the script becomes the VM: one process to signal and wait for
        "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": f"{loopback} {node.get('arguments', '')}",
        "RABBITMQ_CTL_ERL_ARGS": loopback,
        "LANG": "C.UTF-8",
    }
