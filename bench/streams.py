"""Streams beside rstream, AMQP 0-9-1 on the same stream, and the bare socket."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict
from typing import Any

from bench import harness
from bench.stream_peers import CLIENTS
from leash.amqp import Outgoing
from leash.amqp import Publisher as AmqpPublisher
from leash.amqp import connect as connect_amqp
from leash.streams import Publisher, connect, create_stream, delete_stream, parse

ROUNDS = 3
COUNTS = {"leash": 1_000_000, "bare socket": 1_000_000, "AMQP 0-9-1": 100_000, "rstream": 50_000}
WARM_UP = 10_000
SIZE = 100
STREAM = "bench-stream"


def run(client: str, job: dict[str, Any]) -> tuple[float, float]:
    """Seconds and CPU seconds of a client in a process of its own."""
    command = [sys.executable, "-m", "bench.stream_peers", client, json.dumps(job)]
    done = subprocess.run(command, cwd=harness.ROOT, capture_output=True, text=True, timeout=300)
    if done.returncode:
        raise SystemExit(f"{client} failed: {done.stderr.strip()[-800:]}")
    seconds, cpu = done.stdout.split()
    return float(seconds), float(cpu)


def fresh(uri: str, *streams: str) -> None:
    with connect(uri) as connection:
        for stream in streams:
            delete_stream(connection, stream)
            create_stream(connection, stream)


def compare(uri: str, amqp: str, action: str, filled_by: str) -> list[harness.Run]:
    """Interleaved runs, so that a slow moment of the machine hits everybody."""
    clients = CLIENTS[action]
    samples: dict[str, list[tuple[float, float]]] = {client: [] for client in clients}
    if action == "read":
        fresh(uri, STREAM)
        if filled_by == "leash":
            with Publisher(uri, STREAM) as publisher:
                publisher.publish([b"x" * SIZE] * max(COUNTS.values()))
        else:
            with connect_amqp(amqp) as connection, AmqpPublisher(connection) as by_amqp:
                by_amqp.publish(Outgoing(b"x" * SIZE, "", STREAM) for _ in range(max(COUNTS.values())))
    for _ in range(ROUNDS):
        for client in clients:
            first = STREAM
            if action == "write":
                first = f"{STREAM}-first"
                fresh(uri, STREAM, first)
            job = {"uri": uri, "amqp": amqp, "action": action, "stream": STREAM, "size": SIZE}
            job["warm_up"] = {"count": WARM_UP, "stream": first}
            samples[client].append(run(client, job | {"count": COUNTS[client]}))
    return harness.medians(samples, COUNTS)


def main(uri: str) -> None:
    """Run all, print, and write docs/results.md."""
    port = os.environ.get("LEASH_STREAM_PORT")
    place = parse(uri, int(port) if port else None).reveal()
    with connect(place) as connection:
        version = connection.server["version"]
    cases = [
        ("read", "leash", "Read, chunks as stream publishers leave them"),
        ("read", "amqp", "Read, chunks as AMQP publishers leave them"),
        ("write", "", "Write, with confirms"),
    ]
    about = (
        "Bodies of 100 B. Each client has done the same with a few before, in one process; connecting counts."
    )
    text = [f"## Streams\n\n{about}\n"]
    data = {}
    for action, filled_by, title in cases:
        print(f"\n{title} ...", flush=True)
        rows = compare(place, uri, action, filled_by)
        print(harness.table(rows), flush=True)
        text.append(f"### {title}\n\n{harness.table(rows)}\n")
        data[f"{action} {filled_by}".strip()] = [asdict(row) for row in rows]
    load = os.getloadavg()[0]
    text.append(f"The load of the machine was {load:.1f} on {os.cpu_count()} cores.\n")
    harness.publish_section("streams", "\n".join(text), version, data)
