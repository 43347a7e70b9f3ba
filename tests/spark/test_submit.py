"""`format("rabbitmq")` without any registration, in `spark-submit` and in the `pyspark` shell."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.waiting import LONG

from .harness import declare, options, publish
from .output import committed_rows

PROGRAM = """
from pyspark.sql import SparkSession
spark = SparkSession.builder.getOrCreate()
frame = spark.readStream.format("rabbitmq").options(**{options!r}).load()
writer = frame.writeStream.format("parquet").option("checkpointLocation", "{folder}/checkpoint")
writer.trigger(availableNow=True).start("{folder}/out").awaitTermination()
"""


@pytest.mark.spark
@pytest.mark.parametrize("tool", ["spark-submit", pytest.param("pyspark", marks=pytest.mark.soak)])
def test_the_source_is_found_by_its_name_alone(uri: str, tmp_path: Path, tool: str) -> None:
    declare(uri)
    sent = publish(uri, 20)
    program = tmp_path / "program.py"
    program.write_text(PROGRAM.format(options=options(uri, tmp_path / "staging"), folder=tmp_path))
    command = [str(Path(sys.executable).with_name(tool)), "--master", "local[2]"]
    if tool == "spark-submit":
        command.append(str(program))
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    with program.open() as typed:
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, stdin=typed, capture_output=True, text=True, timeout=LONG
        )
    assert done.returncode == 0, done.stderr[-2000:]
    everything, _ = committed_rows(tmp_path / "out")
    assert sorted(everything) == sent
