"""Splits that are small let a fast executor do the work of a slow one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.spark.harness import declare, options, publish

ROOT = Path(__file__).parents[2]
ROWS, SMALL = 4000, 100
SLOW, FAST = 0.120, 0.006  # seconds a row: twenty times, and a small split is more than a task itself costs

pytestmark = pytest.mark.soak


def test_small_splits_finish_five_times_sooner_than_two_halves_beside_a_slow_executor(
    uri: str, tmp_path: Path
) -> None:
    declare(uri)
    took = {}
    for size in (ROWS // 2, SMALL):
        publish(uri, ROWS, ids=False)
        folder = tmp_path / str(size)
        given = options(uri, folder / "staging", maxRecordsPerPartition=size)
        environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
        told = json.dumps({"options": given, "folder": str(folder)})
        command = [sys.executable, "-m", "tests.soak.test_spark_slow_executor"]
        done = subprocess.run(command, cwd=ROOT, env=environment, input=told, text=True, capture_output=True)
        assert done.returncode == 0, done.stderr[-2000:]
        took[size] = float(done.stdout.split()[-1])
    assert took[SMALL] * 5 <= took[ROWS // 2]


def main(told: dict[str, object]) -> None:
    """Two executors; the one in the folder that ends in 0 is slow. Prints how long the batch took."""
    from collections.abc import Iterator

    import pyarrow as pa
    from pyspark.sql import SparkSession

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        each = SLOW if os.getcwd().endswith("/0") else FAST
        for batch in batches:
            time.sleep(each * len(batch))
            yield batch.select(["value"])

    builder = SparkSession.builder.master("local-cluster[2,1,1024]").config("spark.ui.enabled", "false")
    spark = builder.config("spark.locality.wait", "0").getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    # Both executors must be up, or the first to come takes all.
    spark.sparkContext.parallelize(range(2), 2).map(lambda _: time.sleep(5)).collect()
    reader = spark.readStream.format("rabbitmq").options(**told["options"])  # type: ignore[arg-type]
    frame = reader.load().mapInArrow(work, "value binary")
    writer = frame.writeStream.format("noop").option("checkpointLocation", f"{told['folder']}/checkpoint")
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    progress = max(query.recentProgress, key=lambda each: each["numInputRows"])
    assert progress["numInputRows"] == ROWS
    print(progress["durationMs"]["addBatch"] / 1000)  # noqa: T201


if __name__ == "__main__":
    main(json.load(sys.stdin))
