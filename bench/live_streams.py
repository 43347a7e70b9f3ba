"""The live consumer on streams beside the same consumer on queues, and what many idle streams cost."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench import harness
from leash import Consumer, Queue, Stream
from leash.streams import Publisher, connect, create_stream, delete_stream, parse

ROUNDS, COUNT, SIZE, MANY = 3, 300_000, 100, 50
NAMES = [f"bench-live-{number}" for number in range(10)]
IDLE = [f"bench-idle-{number}" for number in range(MANY)]
CLIENTS = {"leash, ten streams": "streams", "leash, ten classic queues": "queues"}
WATCH = 5.0  # seconds


def consume(job: dict[str, Any]) -> dict[str, float]:
    """In a process of its own: handle `count` messages, then watch it idle for `watch` seconds."""
    names, count = job["names"], job["count"]
    lanes: dict[str, Any] = {"queues": [Queue(name, 4 * (n + 1)) for n, name in enumerate(names)]}
    if job["kind"] == "streams":
        lanes = {"streams": [Stream(name, 4 * (n + 1)) for n, name in enumerate(names)]}
    consumer = Consumer(job["uri"], **lanes, name=job["name"], stream_port=job["port"])
    done, handled = threading.Event(), 0

    @consumer.handler
    def work(_: bytes) -> None:
        nonlocal handled
        handled += 1
        if handled == count:
            done.set()

    threads, began, cpu = threading.active_count(), time.perf_counter(), time.process_time()
    before = memory()
    consumer.start()
    if count and not done.wait(240):
        raise SystemExit(f"only {handled} of {count} came")
    figures = {"seconds": time.perf_counter() - began, "cpu": time.process_time() - cpu}
    if job["watch"]:
        time.sleep(1.0)
        idle = time.process_time()
        time.sleep(job["watch"])
        figures |= {
            "idle": (time.process_time() - idle) / job["watch"],
            "threads": threading.active_count() - threads,
            "memory": memory() - before,
        }
    consumer.stop()
    return figures


def memory() -> float:
    """MB that this process has now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def run(job: dict[str, Any]) -> dict[str, float]:
    command = [sys.executable, "-m", "bench.live_streams", json.dumps(job)]
    done = subprocess.run(command, cwd=harness.ROOT, capture_output=True, text=True, timeout=300)
    if done.returncode:
        raise SystemExit(f"{job['kind']} failed: {done.stderr.strip()[-800:]}")
    figures: dict[str, float] = json.loads(done.stdout)
    return figures


def main(uri: str) -> None:
    """Run all, print, and write docs/results.md."""
    port = int(os.environ.get("LEASH_STREAM_PORT", "5552"))
    place = parse(uri, port).reveal()
    with connect(place) as connection:
        version = connection.server["version"]
        for name in NAMES + IDLE:
            delete_stream(connection, name)
            create_stream(connection, name)
    for name in NAMES:
        with Publisher(place, name) as publisher:
            publisher.publish([b"x" * SIZE] * (COUNT // len(NAMES)))
    queues = [f"{name}-queue" for name in NAMES]
    job = {"uri": uri, "port": port, "count": COUNT, "watch": 0.0}
    samples: dict[str, list[tuple[float, float]]] = {client: [] for client in CLIENTS}
    for number in range(ROUNDS):
        for client, kind in CLIENTS.items():
            if kind == "queues":
                harness.fill(uri, queues, COUNT, SIZE)
            names = NAMES if kind == "streams" else queues
            found = run(job | {"kind": kind, "names": names, "name": f"bench {number}"})
            samples[client].append((found["seconds"], found["cpu"]))
    rows = harness.medians(samples, dict.fromkeys(CLIENTS, COUNT))
    print(harness.table(rows), flush=True)
    idle = job | {"kind": "streams", "name": "idle", "count": 0, "watch": WATCH}
    cost = {number: run(idle | {"names": IDLE[:number]}) for number in (1, 10, MANY)}
    lines = ["| streams | seconds to start | threads | memory, MB | CPU while idle, % of a core |"]
    lines += ["|---|--:|--:|--:|--:|"]
    for number, each in cost.items():
        lines.append(
            f"| {number} | {each['seconds']:.2f} | {each['threads']:.0f} | {each['memory']:.0f} "
            f"| {100 * each['idle']:.1f} |"
        )
    print("\n".join(lines), flush=True)
    about = (
        f"Ten lanes with {COUNT:,} messages of {SIZE} B together, quanta 4 to 40, an empty handler, one "
        "worker; starting counts. Then empty streams: each has a connection and two threads."
    )
    load = f"The load of the machine was {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores."
    text = ["## The live consumer on streams", about, harness.table(rows), "\n".join(lines), load]
    data = {
        "rows": [asdict(row) for row in rows],
        "idle": {str(number): each for number, each in cost.items()},
    }
    harness.publish_section("live_streams", "\n\n".join(text), version, data)


if __name__ == "__main__":
    print(json.dumps(consume(json.loads(sys.argv[1]))))
