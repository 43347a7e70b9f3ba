"""A Spark program in a process of its own, for tests that kill it: a queue to Parquet, until told or killed.

Reads a JSON object from standard input: master, options, folder, and whether to stop when all is read.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


def start(
    options: dict[str, str],
    folder: Path,
    *,
    available_now: bool = False,
    master: str = "local[2,4]",
    conf: dict[str, str] | None = None,
    trigger: str = "",
    errors: Path | None = None,
) -> subprocess.Popen[bytes]:
    """In a session of its own, so that `kill` can take the whole family: driver, JVM and Python workers.

    A master that begins with `sc://` is a Spark Connect server. `errors` is a file to write them to.
    """
    with open(errors or os.devnull, "ab") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.spark.app"],
            cwd=ROOT,
            env=environment(),
            stdin=subprocess.PIPE,
            stderr=file,
            start_new_session=True,
        )
    told = {
        "master": master,
        "options": options,
        "folder": str(folder),
        "available_now": available_now,
        "conf": conf or {},
        "trigger": trigger,
    }
    assert process.stdin is not None
    process.stdin.write(json.dumps(told).encode())
    process.stdin.close()
    return process


def environment() -> dict[str, str]:
    return {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}


def kill(process: subprocess.Popen[bytes]) -> None:
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def main(told: dict[str, Any]) -> None:
    from pyspark.sql import SparkSession

    # Spark's log of written files stays one file a batch, so that tests see what came in which.
    builder = SparkSession.builder.config("spark.sql.streaming.fileSink.log.compactInterval", "10000")
    if told["master"].startswith("sc://"):
        spark = builder.remote(told["master"]).getOrCreate()
    else:
        builder = builder.master(told["master"]).config("spark.ui.enabled", "false")
        builder = builder.config("spark.executor.extraJavaOptions", os.environ.get("SPARK_SUBMIT_OPTS", ""))
        for name, value in told["conf"].items():
            builder = builder.config(name, value)
        spark = builder.getOrCreate()
        spark.sparkContext.setLogLevel("OFF")
    folder = Path(told["folder"])
    frame = spark.readStream.format("rabbitmq").options(**told["options"]).load()
    writer = frame.writeStream.format("parquet").option("checkpointLocation", str(folder / "checkpoint"))
    if told["available_now"]:
        writer = writer.trigger(availableNow=True)
    elif told["trigger"]:
        writer = writer.trigger(processingTime=told["trigger"])
    writer.start(str(folder / "out")).awaitTermination()


if __name__ == "__main__":
    main(json.load(sys.stdin))
