"""`leash.Publisher` beside pika and rabbitmq-c: persistent, mandatory, every message confirmed.

pika's blocking connection, the one that people use, knows one way only: one by one. rabbitmq-c keeps as many
messages unconfirmed as ours does. Beside 8 threads that publish one by one it has 8, in two ways: a new one
for each confirm, and 8 in one write, then none until all 8 are confirmed. The second gives the broker least
to do for each, the first never lets it wait: the better of the two is what 8 unconfirmed messages allow. The
rows "on one core" show what it costs that threads wake each other from core to core.
"""

from __future__ import annotations

from dataclasses import asdict

from bench import harness
from bench.peers import Job
from leash.amqp import connect

ROUNDS = 5
THREADS = 8
IN_FLIGHT = 10_000
SIZE = 100
OURS, PIKA, C = "leash.Publisher", "pika publisher", "rabbitmq-c"
BURST = "rabbitmq-c, 8 in one write"
ONE_CORE = ", on one core"
CASES = {
    "One by one, from 8 threads": (
        "publish-threads",
        {
            OURS: 24_000,
            OURS + ONE_CORE: 24_000,
            PIKA: 4_000,
            PIKA + ONE_CORE: 4_000,
            C: 24_000,
            BURST: 24_000,
        },
    ),
    "In bulk (`publish_many`)": ("publish-many", {OURS: 60_000, PIKA: 2_000, C: 60_000}),
    "Confirms awaited later (`send`)": ("publish-later", {OURS: 60_000, PIKA: 2_000, C: 60_000}),
}


def compare(uri: str, action: str, counts: dict[str, int]) -> list[harness.Run]:
    """Interleaved runs, so that a slow moment of the machine hits everybody."""
    samples: dict[str, list[tuple[float, float]]] = {client: [] for client in counts}
    for _ in range(ROUNDS):
        for client, count in counts.items():
            harness.fill(uri, ["bench"], 0, SIZE)
            window = THREADS if action == "publish-threads" else IN_FLIGHT
            asked = {C: "publish-safe", BURST: "publish-burst"}.get(client, action)
            who = C if client == BURST else client
            samples[client].append(harness.run(who, Job(uri, asked, ["bench"], window, count, SIZE)))
    return harness.medians(samples, counts)


def main(uri: str) -> None:
    """Run all, print, and write docs/results.md."""
    with connect(uri) as connection:
        version = str(connection.server["version"])
    text = [f"## The publisher\n\nClassic queue, {SIZE} B bodies, persistent, mandatory, confirmed.\n"]
    data = {}
    for title, (action, all_counts) in CASES.items():
        without_c = harness.rabbitmq_c() is None
        counts = {who: n for who, n in all_counts.items() if not (without_c and who in (C, BURST))}
        print(f"\n{title} ...", flush=True)
        rows = compare(uri, action, counts)
        print(harness.table(rows), flush=True)
        text.append(f"### {title}\n\n{harness.table(rows)}\n")
        data[action] = [asdict(row) for row in rows]
    harness.publish_section("publish", "\n".join(text), version, data)
