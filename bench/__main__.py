"""`make bench`: every bench, or those named: `python -m bench wire policies`."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import tempfile
from pathlib import Path

from leash.broker import Broker, own_uri

ALL = [
    "wire",
    "policies",
    "consumer",
    "many",
    "publish",
    "spark",
    "memory",
    "spark_streams",
    "ring_spark",
    "plan",
    "streams",
    "live_streams",
    "page",
    "budgets",
]


def main() -> None:
    chosen = sys.argv[1:] or ALL
    unknown = [name for name in chosen if name not in ALL]
    if unknown:
        raise SystemExit(f"unknown: {', '.join(unknown)}; there are {', '.join(ALL)}")
    with contextlib.ExitStack() as stack:
        uri = own_uri()
        if uri is None:
            print("Starting a private broker ...", flush=True)
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            broker = stack.enter_context(Broker(Path(folder) / "broker", owned=True))
            os.environ["LEASH_MANAGEMENT_URL"] = f"http://127.0.0.1:{broker.port('management')}"
            os.environ["LEASH_STREAM_PORT"] = str(broker.port("stream"))
            uri = broker.uri
        for name in chosen:
            importlib.import_module(f"bench.{name}").main(uri)
    print("\nWritten to docs/results.md")


if __name__ == "__main__":
    main()
