"""Pipelines from a file, inside Spark itself."""

from __future__ import annotations

import re
import shutil
import signal
import threading
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from leash.amqp.uri import parse
from leash.errors import LeashError
from leash.spark import connections, pipeline
from tests.waiting import until

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


def test_a_pipeline_file_runs_to_its_end_and_says_what_there_was(
    spark: SparkSession, uri: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    declare(uri)
    sent = publish(uri, 50)
    file = pipeline_file(uri, tmp_path)
    file.write_text(file.read_text().replace("[transform]", "maxRecordsPerTrigger = 30\n[transform]"))
    pipeline.run(file)
    assert written(spark, tmp_path) == sent
    out = capsys.readouterr().out
    assert "batch 2: 20 rows" in out
    last = next(line for line in out.splitlines() if " q " in line)
    assert last.strip("│").replace("│", " ").split() == ["q", "20", "20", "20", "100.0%", "0", "0"]
    assert out.endswith("50 rows in 2 batches\n")
    pipeline.run(file)
    assert capsys.readouterr().out == "nothing to read: q is empty\n"


def no_spark(*_: object) -> None:
    raise AssertionError("Spark was started")


def refused(file: Path, monkeypatch: pytest.MonkeyPatch, says: str) -> None:
    monkeypatch.setattr(pipeline, "session", no_spark)
    with pytest.raises(LeashError, match=says):
        pipeline.run(file)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ('queue = "nothing"', "^queue 'nothing' does not exist .*: declare it, or set failOnDataLoss=false"),
        ('partitions = "nothing"', "^partitions 'nothing' do not exist: create them with"),
        ('tenants = "nothing"', "^tenants 'nothing' do not exist: make them with"),
        ('queue = "log"', "^queue='log': is a stream: read it by the option stream"),
        ('queue = "quorum"\nordered = true', "^ordered=True: quorum queue 'quorum' keeps no order"),
    ],
)
def test_what_the_broker_does_not_have_is_told_before_spark_starts(
    uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, says: str
) -> None:
    declare(uri, "log", kind="stream")
    declare(uri, "quorum", kind="quorum")
    file = pipeline_file(uri, tmp_path)
    file.write_text(file.read_text().replace('queue = "q"', line))
    refused(file, monkeypatch, says)


def test_a_wrong_password_is_told_before_spark_starts(
    uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = replace(parse(uri), password="wrong").reveal()
    refused(pipeline_file(wrong, tmp_path), monkeypatch, "ACCESS_REFUSED")


def test_a_missing_exchange_of_the_sink_is_told_before_spark_starts(
    uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    declare(uri)
    file = pipeline_file(uri, tmp_path)
    text = file.read_text().replace('format = "parquet"', f'format = "rabbitmq"\nurl = "{uri}"')
    file.write_text(re.sub(r"path = .*", 'exchange = "nothing"', text))
    refused(file, monkeypatch, "^exchange='nothing': does not exist")


@pytest.mark.parametrize("options", ['queue = "q"', 'stream = "q"\nstreamPort = 1'])
def test_a_broker_that_is_down_is_waited_for_but_not_in_silence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], options: str
) -> None:
    monkeypatch.setattr(connections, "patiently", lambda do: do())
    file = pipeline_file("amqp://127.0.0.1:1/", tmp_path)
    text = file.read_text().replace('queue = "q"', options)
    file.write_text(re.sub("stagingLocation.*", "", text) if "streamPort" in text else text)
    refused(file, monkeypatch, "127.0.0.1:1")
    assert capsys.readouterr().err.endswith("; trying again for a minute\n")


def test_an_interrupt_stops_a_pipeline_and_says_what_there_was(
    spark: SparkSession, uri: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    declare(uri)
    sent = publish(uri, 5)
    file = pipeline_file(uri, tmp_path)
    file.write_text(file.read_text().replace("availableNow", "1 second"))

    def interrupt() -> None:
        until(lambda: (tmp_path / "checkpoint" / "commits" / "0").exists())
        until(lambda: all(query.lastProgress for query in spark.streams.active))
        signal.raise_signal(signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    pipeline.run(file)
    thread.join()
    assert written(spark, tmp_path) == sent
    shown = capfd.readouterr()
    assert shown.out.endswith("5 rows in 1 batch\n")
    assert "Traceback" not in shown.err


def test_an_error_that_only_the_query_finds_is_one_sentence_without_an_empty_table(
    spark: SparkSession, uri: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    declare(uri)
    publish(uri, 5)
    file = pipeline_file(uri, tmp_path)
    pipeline.run(file)
    assert capsys.readouterr().out.endswith("5 rows in 1 batch\n")
    shutil.rmtree(tmp_path / "staging")
    with pytest.raises(LeashError, match=r"^the pipeline ended: [^\n]*staging[^\n]*$"):
        pipeline.run(file)
    assert capsys.readouterr().out == ""


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
