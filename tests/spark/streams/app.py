"""A Spark program in a process of its own, for tests that kill it: streams to a stream, until told or killed.

Reads a JSON object from standard input: options of source and sink, folder, and whether to stop when all is
read.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.spark.app import ROOT, environment


def start(
    source: dict[str, str], sink: dict[str, str], folder: Path, *, available_now: bool = False
) -> subprocess.Popen[bytes]:
    """In a session of its own, so that `tests.spark.app.kill` can take the whole family."""
    with open(folder / "errors.txt", "ab") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.spark.streams.app"],
            cwd=ROOT,
            env=environment(),
            stdin=subprocess.PIPE,
            stderr=file,
            start_new_session=True,
        )
    told = {"source": source, "sink": sink, "folder": str(folder), "available_now": available_now}
    assert process.stdin is not None
    process.stdin.write(json.dumps(told).encode())
    process.stdin.close()
    return process


def main(told: dict[str, Any]) -> None:
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2,8]").config("spark.ui.enabled", "false")
    spark = builder.config("spark.sql.shuffle.partitions", "2").getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    frame = spark.readStream.format("rabbitmq").options(**told["source"]).load()
    writer = frame.writeStream.format("rabbitmq").options(**told["sink"])
    writer = writer.option("checkpointLocation", os.path.join(told["folder"], "checkpoint"))
    if told["available_now"]:
        writer = writer.trigger(availableNow=True)
    writer.start().awaitTermination()


if __name__ == "__main__":
    main(json.load(sys.stdin))
