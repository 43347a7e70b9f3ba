"""Pipelines from a file, and the metrics of a query: what needs no broker."""

from __future__ import annotations

import io
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from prometheus_client import CollectorRegistry
from rich.console import Console

from leash.errors import ConfigError
from leash.spark.metrics import PrometheusListener
from leash.spark.offsets import Plan, splits_of
from leash.spark.pipeline import load, sentence
from leash.spark.pipeline_progress import Heard, nothing_in, progress_table, queue_figures
from leash.spark.staging.files import LocalFiles
from leash.spark.staging.seals import Seal
from leash.spark.toml_lines import Lines

GOOD = """\
[source]
url = "amqp://user:hunter2@broker/"
stagingLocation = "data/staging"
maxRecordsPerTrigger = 500
ordered = false

[source.queues.gold]
quantum = 10

[transform]
sql = "select cast(value as string) as text from source"

[sink]
format = "parquet"
path = "data/orders"
checkpointLocation = "data/checkpoint"
trigger = "10 seconds"

[spark]
"spark.sql.shuffle.partitions" = 8
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "pipeline.toml"
    path.write_text(GOOD)
    return path


def test_a_pipeline_is_read_with_its_defaults(file: Path) -> None:
    found = load(file)
    assert found.source["queues"] == '{"gold": {"quantum": 10}}'
    assert (found.source["maxRecordsPerTrigger"], found.source["ordered"]) == ("500", "false")
    assert (found.format, found.path, found.trigger) == ("parquet", "data/orders", "10 seconds")
    assert found.sink == {"checkpointLocation": "data/checkpoint"}
    assert (found.master, found.conf) == ("local[*,4]", {"spark.sql.shuffle.partitions": "8"})


@pytest.mark.parametrize(
    ("line", "instead", "where", "says"),
    [
        ("maxRecordsPerTrigger = 500", "maxRecordsPerTriger = 500", 4, "did you mean maxRecordsPerTrigger"),
        ("maxRecordsPerTrigger = 500", "maxRecordsPerTrigger = 0", 4, "whole number"),
        ('stagingLocation = "data/staging"', "", 1, "stagingLocation"),
        ('format = "parquet"', 'format = "carrier pigeon"', 14, "must be one of"),
        ('path = "data/orders"', "", 13, "is needed for parquet"),
        ('checkpointLocation = "data/checkpoint"', "", 13, "checkpointLocation"),
        ("sql = ", "sequel = ", 11, "only sql"),
        ("[spark]", "[sparks]", 19, "unknown section"),
        ("[sink]", "[sink", 13, "not TOML"),
        ('path = "data/orders"', 'path = "data/orders"\npathh = "x"', 16, "did you mean path?"),
        (
            'path = "data/orders"',
            'path = "data/orders"\ncolour = "x"',
            16,
            "sink.colour: unknown for parquet",
        ),
        ('trigger = "10 seconds"', 'trigger = "soon"', 17, "sink.trigger: must be"),
        ('"spark.sql.shuffle.partitions" = 8', "shuffle = 8", 20, "spark.shuffle: must be master"),
        ("quantum = 10", "quantum = 0", 8, r"queues\[gold\].quantum=0: must be a whole number"),
        ("quantum = 10", "quantom = 10", 8, "only quantum"),
        ("[source.queues.gold]", "[source.queus.gold]", 7, "did you mean queues?"),
    ],
)
def test_an_error_names_the_line(file: Path, line: str, instead: str, where: int, says: str) -> None:
    assert line in GOOD
    file.write_text(GOOD.replace(line, instead))
    with pytest.raises(ConfigError, match=says) as caught:
        load(file)
    assert f"{file}:{where}" in str(caught.value) or f"line {where}" in str(caught.value)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "path", "line"),
    [
        ("[a]\nb = 1", ("a", "b"), 2),
        ("[a]\nb = 1", ("a", "B"), 2),
        ("[a]\nb = 1", ("a", "c"), 1),
        ("a.b = 1\n[c]", ("a", "b"), 1),
        ("x = 1\n['a b'.\"c\"]\nd = { e = 1 }", ("a b", "c", "d", "e"), 3),
        ('[s]\nsql = """\nb = 1\n[t]\n"""\nb = 2', ("s", "b"), 6),
        ("[[a]]\nb = 1", ("a", "b"), 2),
        ("", ("a",), 1),
    ],
)
def test_the_line_of_a_key(text: str, path: tuple[str, ...], line: int) -> None:
    assert Lines(text).of(path) == line


def test_a_file_that_cannot_be_read_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere.toml: there is no such file$"):
        load(tmp_path / "nowhere.toml")
    with pytest.raises(ConfigError, match="cannot be read"):
        load(tmp_path)
    (tmp_path / "latin.toml").write_bytes(b"[source]\nurl = '\xe9'")
    with pytest.raises(ConfigError, match="cannot be read"):
        load(tmp_path / "latin.toml")


def test_an_error_of_ours_within_one_of_sparks_is_told_alone() -> None:
    text = "[STREAM_FAILED] Query [id = 1]: Traceback\n  File x\nleash.errors.QueueMissing: no q\n\tat x"
    assert sentence(text) == "no q"
    assert (
        sentence("\n[PARSE_SYNTAX_ERROR] near 'x'.\n\n== SQL ==\nselec") == "[PARSE_SYNTAX_ERROR] near 'x'."
    )


def test_the_documented_pipeline_is_a_good_one(tmp_path: Path) -> None:
    docs = Path(__file__).parents[2] / "docs" / "spark.md"
    path = tmp_path / "pipeline.toml"
    path.write_text(docs.read_text().split("```toml\n")[1].split("```")[0])
    found = load(path)
    assert found.source["queues"] == '{"gold": {"quantum": 10}, "free": {"quantum": 1, "rate": 50}}'
    assert "password" not in repr(found)


def told(batch: int, rows: int) -> str:
    entry = {"granted": 10, "rows": rows, "bytes": 60, "redelivered": 1, "dropped": 0, "share": 1.0}
    return json.dumps(
        {
            "batch": batch,
            "queues": {"gold": entry} if batch else {},
            "next": {"gold": 10},
            "ready": {"gold": 42},
            "tokens": {"": 3.5},
            "balances": {"gold": 0},
            "throttled": True,
        }
    )


def progress(*offsets: str | None) -> Any:
    sources = [SimpleNamespace(latestOffset=offset) for offset in offsets]
    return SimpleNamespace(
        progress=SimpleNamespace(name="orders", id="i", runId="r", batchDuration=1500, sources=sources)
    )


def test_the_listener_counts_every_batch_once() -> None:
    registry = CollectorRegistry()
    listener = PrometheusListener(registry=registry)
    for offset in (told(0, 0), told(1, 7), told(1, 7), told(2, 5)):
        listener.onQueryProgress(progress(offset, None, "not json", "{}"))
    labels = {"query": "orders", "queue": "gold"}
    assert registry.get_sample_value("leash_spark_rows_total", labels) == 12
    assert registry.get_sample_value("leash_spark_redelivered_total", labels) == 2
    assert registry.get_sample_value("leash_spark_ready", labels) == 42
    assert registry.get_sample_value("leash_spark_tokens", {"query": "orders", "queue": ""}) == 3.5
    assert registry.get_sample_value("leash_spark_throttled", {"query": "orders"}) == 1
    assert registry.get_sample_value("leash_spark_batch_seconds", {"query": "orders"}) == 1.5


def batch(offset: dict[str, Any], rows: int, report: str | None = None) -> dict[str, Any]:
    source = {"endOffset": json.dumps(offset), "latestOffset": report}
    return {"sources": [source], "numInputRows": rows, "processedRowsPerSecond": 4.6}


def shown(progress: dict[str, Any], files: LocalFiles) -> str:
    console = Console(width=100, file=io.StringIO(), record=True)
    console.print(progress_table(progress, lambda offset: queue_figures(offset, files)))
    return console.export_text()


def test_the_table_shows_a_batch_with_its_own_figures(tmp_path: Path) -> None:
    files = LocalFiles(str(tmp_path))
    plan = Plan("run", 4, "n", queues=("gold", "free"), splits=((0, 50), (1, 30), (1, 20)))
    read = (("gold", 45), ("free", 30), ("free", 15))
    for split, (queue, rows) in zip(splits_of(plan), read, strict=True):
        files.create(split.seal_path, Seal("a", queue, rows=rows, redelivered=2).encode())
    text = shown(batch(plan.to_json(), 90, told(3, 7)), files)
    assert "batch 4: 90 rows, 5 per second" in text
    lines = [line.strip("│").replace("│", " ").split() for line in text.splitlines()]
    assert ["gold", "42", "50", "45", "50.0%", "2", "0"] in lines
    assert ["free", "50", "45", "50.0%", "4", "0"] in lines


def test_the_table_shows_the_grants_of_a_batch_whose_seals_are_deleted(tmp_path: Path) -> None:
    plan = Plan("run", 1, "n", queues=("gold",), splits=((0, 50),))
    lines = shown(batch(plan.to_json(), 1), LocalFiles(str(tmp_path))).splitlines()
    assert "batch 1: 1 row, 5 per second" in lines[0]
    assert any(line.strip("│").replace("│", " ").split() == ["gold", "50"] for line in lines)


def test_the_listener_of_a_run_counts_the_batches_of_its_query_alone() -> None:
    heard = Heard()
    for run in ("ours", "another"):
        heard.onQueryStarted(cast(Any, SimpleNamespace(runId=run)))
    for run, rows in (("ours", 1500), ("another", 7), ("ours", 500)):
        event = SimpleNamespace(progress=SimpleNamespace(runId=run, numInputRows=rows))
        heard.onQueryProgress(cast(Any, event))
        heard.onQueryTerminated(cast(Any, SimpleNamespace(runId="another")))
    assert heard.told() == "2,000 rows in 2 batches"
    assert not heard.ended.is_set()


@pytest.mark.parametrize(
    ("which", "says"),
    [
        ({"queue": "gold"}, "gold is empty"),
        ({"queues": "gold:3,free:1"}, "gold and free are empty"),
        ({"queues": "gold:3,silver:2,free:1"}, "gold, silver and free are empty"),
        ({"queues": "a:1,b:1,c:1,d:1"}, "all 4 queues are empty"),
        ({"partitions": "orders"}, "the partitions orders are empty"),
        ({"tenants": "shops"}, "the lanes of tenants shops are empty"),
        ({"stream": "log"}, "log has nothing new"),
        ({"superStream": "logs"}, "super stream logs has nothing new"),
    ],
)
def test_nothing_to_read_is_told_with_names(which: dict[str, str], says: str) -> None:
    given = {"url": "amqp://broker/", **which}
    if "tream" not in next(iter(which)):
        given["stagingLocation"] = "staging"
    assert nothing_in(given) == says
