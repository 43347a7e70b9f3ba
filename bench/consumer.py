"""The live consumer with every policy on beside bare clients: ten queues, an empty handler."""

from __future__ import annotations

import time
from dataclasses import asdict

from bench import harness
from bench.peers import Job
from leash.amqp import connect

ROUNDS = 5
QUEUES = [f"bench.{n}" for n in range(10)]
WINDOW = 200
_REST = 1.0  # seconds: the broker is still writing what was published
COUNTS = {"leash.Consumer": 300_000, "pika": 100_000, "rabbitmq-c": 300_000, "aio-pika": 20_000}


def compare(uri: str, kind: str) -> list[harness.Run]:
    """Interleaved runs, as for the wire client."""
    clients = [client for client in COUNTS if client != "rabbitmq-c" or harness.rabbitmq_c()]
    samples: dict[str, list[tuple[float, float]]] = {client: [] for client in clients}
    for _ in range(ROUNDS):
        for client in clients:
            harness.fill(uri, QUEUES, COUNTS[client], 100, kind)
            time.sleep(_REST)
            samples[client].append(
                harness.run(client, Job(uri, "consume", QUEUES, WINDOW, COUNTS[client], 100))
            )
    return harness.medians(samples, COUNTS)


def main(uri: str) -> None:
    """Run both kinds of queue, print, and write docs/results.md."""
    with connect(uri) as connection:
        version = str(connection.server["version"])
    text = [
        "## The live consumer\n\nTen queues of 100 B messages, quanta 4 to 40, an empty handler, one worker; "
        "rates that never bind, CoDel and windows on autopilot; starting and stopping included. "
        "The bare clients have windows of "
        f"{WINDOW} and ack every half window.\n"
    ]
    data = {}
    for kind in ("classic", "quorum"):
        print(f"\nTen {kind} queues ...", flush=True)
        rows = compare(uri, kind)
        print(harness.table(rows), flush=True)
        text.append(f"### {kind.capitalize()} queues\n\n{harness.table(rows)}\n")
        data[kind] = [asdict(row) for row in rows]
    harness.publish_section("consumer", "\n".join(text), version, data)
