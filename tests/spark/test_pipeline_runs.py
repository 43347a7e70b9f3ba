"""Pipelines from a file, inside Spark itself."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from leash.errors import LeashError
from leash.spark import pipeline

from .harness import declare, publish
from .test_with_spark import written

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def pipeline_file(uri: str, folder: Path) -> Path:
    text = """
        [source]
        url = "URI"
        queue = "q"
        stagingLocation = "FOLDER/staging"
        [transform]
        sql = "select value, upper(queue) as name from source"
        [sink]
        format = "parquet"
        path = "FOLDER/out"
        checkpointLocation = "FOLDER/checkpoint"
        trigger = "availableNow"
        """
    file = folder / "pipeline.toml"
    file.write_text(text.replace("URI", uri).replace("FOLDER", str(folder)))
    return file


def test_a_pipeline_file_runs_to_its_end(spark: SparkSession, uri: str, tmp_path: Path) -> None:
    declare(uri)
    sent = publish(uri, 50)
    pipeline.run(pipeline_file(uri, tmp_path))
    assert written(spark, tmp_path) == sent


@pytest.mark.parametrize(
    ("line", "instead", "says"),
    [
        (
            "upper(queue)",
            "upper(queueue)",
            r"pipeline.toml:7: transform.sql: \[UNRESOLVED_COLUMN[^\n]*queueue[^\n]*$",
        ),
        ("select value", "selec value", r"pipeline.toml:7: transform.sql: \[PARSE_SYNTAX_ERROR\][^\n]*$"),
        ('format = "parquet"', 'format = "delta"', r"the sink delta did not start: [^\n]*delta[^\n]*$"),
        ('queue = "q"', 'queue = "nothing"', r"^the pipeline ended: [^\n]*'nothing' does not exist[^\n]*$"),
    ],
)
def test_what_is_wrong_in_a_pipeline_file_is_told_in_one_sentence(
    spark: SparkSession, uri: str, tmp_path: Path, line: str, instead: str, says: str
) -> None:
    declare(uri)
    file = pipeline_file(uri, tmp_path)
    file.write_text(file.read_text().replace(line, instead))
    with pytest.raises(LeashError, match=says):
        pipeline.run(file)
