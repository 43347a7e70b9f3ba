"""`make bench`: every bench, or those named: `python -m bench wire policies`."""

from __future__ import annotations

import importlib
import os
import sys
import tempfile
from pathlib import Path

from leash.broker import Broker, own_uri

ALL = ["wire", "policies", "consumer", "spark", "memory", "ring_spark", "plan"]


def main() -> None:
    chosen = sys.argv[1:] or ALL
    unknown = [name for name in chosen if name not in ALL]
    if unknown:
        raise SystemExit(f"unknown: {', '.join(unknown)}; there are {', '.join(ALL)}")
    own = own_uri()
    with tempfile.TemporaryDirectory() as folder:
        broker = None if own else Broker(Path(folder) / "broker")
        try:
            if broker:
                print("Starting a private broker ...", flush=True)
                broker.start()
                os.environ["LEASH_MANAGEMENT_URL"] = f"http://127.0.0.1:{broker.port('management')}"
            uri = own or (broker.uri if broker else "")
            for name in chosen:
                importlib.import_module(f"bench.{name}").main(uri)
        finally:
            if broker:
                broker.stop()
    print("\nWritten to docs/results.md")


if __name__ == "__main__":
    main()
