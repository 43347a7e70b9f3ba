"""What the benches share: running a client, medians, tables, and docs/results.md."""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from bench.peers import Job
from leash.amqp import Outgoing, Properties, Publisher, connect, topology
from leash.amqp.uri import parse

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "docs" / "results.md"
TRANSIENT = Properties(delivery_mode=1)
_BUILD = ROOT / "bench" / ".build"


@dataclass(frozen=True)
class Run:
    """One client's median over the interleaved runs."""

    client: str
    rate: float  # messages a second
    cpu: float  # microseconds of client CPU a message


def rabbitmq_c() -> Path | None:
    """Build the C yardstick; None where there is no compiler or no library."""
    target = _BUILD / "rabbitmq_c"
    source = ROOT / "bench" / "rabbitmq_c.c"
    if target.exists() and target.stat().st_mtime > source.stat().st_mtime:
        return target
    if not shutil.which("gcc"):
        return None
    _BUILD.mkdir(exist_ok=True)
    done = subprocess.run(["gcc", "-O2", "-o", str(target), str(source), "-lrabbitmq"], capture_output=True)
    return target if done.returncode == 0 else None


def run(client: str, job: Job) -> tuple[float, float]:
    """Seconds and CPU seconds of one client doing one job in a process of its own."""
    environment = dict(os.environ)
    if client == "rabbitmq-c":
        uri = parse(job.uri)
        host, port = uri.hosts[0]
        environment |= {"LEASH_BENCH_USER": uri.username, "LEASH_BENCH_PASSWORD": uri.password}
        command = [
            str(rabbitmq_c()),
            job.action,
            host,
            str(port),
            uri.vhost,
            str(job.window),
            str(job.count),
            *job.queues,
        ]
        if job.action.startswith("publish"):
            command.append(str(job.size))
    else:
        command = [sys.executable, "-m", "bench.peers", client, job.encode()]
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=120)
    if done.returncode:
        raise SystemExit(f"{client} failed: {done.stderr.strip()[-800:]}")
    seconds, cpu = done.stdout.split()
    return float(seconds), float(cpu)


def fill(uri: str, queues: list[str], count: int, size: int, kind: str = "classic") -> None:
    """Fresh queues with `count` messages in all, evenly."""
    with connect(uri) as connection:
        channel = connection.channel()
        for name in queues:
            topology.delete_queue(channel, name)
            topology.declare_queue(channel, name, kind=kind)
        body = b"x" * size
        with Publisher(connection) as publisher:
            publisher.publish(Outgoing(body, "", queues[n % len(queues)], TRANSIENT) for n in range(count))


def medians(samples: dict[str, list[tuple[float, float]]], counts: dict[str, int]) -> list[Run]:
    """One row a client."""
    return [
        Run(
            client,
            counts[client] / statistics.median(seconds for seconds, _ in runs),
            statistics.median(cpu for _, cpu in runs) / counts[client] * 1e6,
        )
        for client, runs in samples.items()
    ]


def table(rows: list[Run]) -> str:
    """Markdown, with every client as a ratio to ours."""
    ours = next(row for row in rows if row.client.startswith("leash"))
    lines = ["| client | messages/s | of ours | client CPU us/message | of ours |", "|---|--:|--:|--:|--:|"]
    for row in rows:
        rate, cpu = row.rate / ours.rate, row.cpu / ours.cpu
        lines.append(f"| {row.client} | {row.rate:,.0f} | {rate:.2f} | {row.cpu:.2f} | {cpu:.2f} |")
    return "\n".join(lines)


def machine() -> str:
    """Where and with what the figures were measured."""
    names = ["pika", "amqpstorm", "aio-pika", "pyspark"]
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in names)
    return f"Python {platform.python_version()}, {os.cpu_count()} cores, {platform.machine()}; {versions}"


def publish_section(name: str, text: str, broker: str, data: object) -> None:
    """Put a section into docs/results.md, in place of its older self, and its data beside it as JSON."""
    stamp = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
    body = (
        f"<!-- {name} -->\n{text.strip()}\n\n_{stamp}; RabbitMQ {broker}; {machine()}._\n<!-- /{name} -->\n"
    )
    old = RESULTS.read_text() if RESULTS.exists() else "# Results\n\nWritten by `make bench`; don't edit.\n"
    start, end = old.find(f"<!-- {name} -->"), old.find(f"<!-- /{name} -->\n")
    if start >= 0:
        new = old[:start] + body + old[end + len(f"<!-- /{name} -->\n") :]
    else:
        new = f"{old.rstrip()}\n\n{body}"
    RESULTS.write_text(new)
    (RESULTS.parent / "results").mkdir(exist_ok=True)
    record = {"when": stamp, "broker": broker, "machine": machine(), "data": data}
    (RESULTS.parent / "results" / f"{name}.json").write_text(json.dumps(record, indent=1) + "\n")
