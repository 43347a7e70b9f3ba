"""The wire client beside pika, amqpstorm, aio-pika and rabbitmq-c: acked consuming, confirmed publishing."""

from __future__ import annotations

from dataclasses import asdict

from bench import harness
from bench.peers import Job
from leash.amqp import connect

ROUNDS = 5
WINDOW = 1000
# As many as keep each run around two seconds; the slow clients need fewer to show their rate.
COUNTS = {"leash": 100_000, "pika": 60_000, "rabbitmq-c": 100_000, "amqpstorm": 20_000, "aio-pika": 20_000}
CONFIRMED_ONE_BY_ONE = {"pika": 4_000, "amqpstorm": 200, "aio-pika": 4_000}


def count_of(client: str, action: str, size: int) -> int:
    count = COUNTS[client]
    if action == "publish":
        return CONFIRMED_ONE_BY_ONE.get(client, count // 4 if size > 1000 else count)
    return count // 4 if size > 1000 else count


def compare(uri: str, action: str, kind: str, size: int) -> list[harness.Run]:
    """Interleaved runs, so that a slow moment of the machine hits everybody."""
    clients = [c for c in COUNTS if c != "rabbitmq-c" or harness.rabbitmq_c()]
    counts = {client: count_of(client, action, size) for client in clients}
    samples: dict[str, list[tuple[float, float]]] = {client: [] for client in clients}
    for _ in range(ROUNDS):
        for client in clients:
            harness.fill(uri, ["bench"], counts[client] if action == "consume" else 0, size, kind)
            samples[client].append(
                harness.run(client, Job(uri, action, ["bench"], WINDOW, counts[client], size))
            )
    return harness.medians(samples, counts)


def main(uri: str) -> None:
    """Run all, print, and write docs/results.md."""
    with connect(uri) as connection:
        version = str(connection.server["version"])
    cases = [
        ("consume", "classic", 100),
        ("consume", "classic", 10_240),
        ("consume", "quorum", 100),
        ("publish", "classic", 100),
        ("publish", "classic", 10_240),
    ]
    text = ["## The wire client\n"]
    data = {}
    if harness.rabbitmq_c() is None:
        text.append("rabbitmq-c was skipped: gcc or librabbitmq-dev is missing.\n")
        print(text[-1])
    for action, kind, size in cases:
        doing = "acks every half window of 1000" if action == "consume" else "confirms"
        title = f"{action.capitalize()}, {kind} queue, {size} B bodies, {doing}"
        print(f"\n{title} ...", flush=True)
        rows = compare(uri, action, kind, size)
        print(harness.table(rows), flush=True)
        text.append(f"### {title}\n\n{harness.table(rows)}\n")
        data[f"{action} {kind} {size}"] = [asdict(row) for row in rows]
    harness.publish_section("wire", "\n".join(text), version, data)
