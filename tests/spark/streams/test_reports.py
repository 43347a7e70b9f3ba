"""What operators see of a query on streams."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from rich.console import Console

from leash.errors import ConfigError
from leash.spark import options
from leash.spark.metrics import PrometheusListener
from leash.spark.pipeline import load
from leash.spark.pipeline_progress import progress_table, stream_figures
from leash.spark.streams.offsets import StreamPlan

DOCS = Path(__file__).parents[3] / "docs" / "streams.md"
TOLD = json.dumps(
    {
        "batch": 3,
        "streams": {"a": {"granted": 70, "share": 0.7}, "b": {"granted": 30, "share": 0.3}},
        "ready": {"a": 700, "b": 5},
        "lag": {"a": 630, "b": 0},
        "throttled": False,
        "tokens": {},
    }
)
PIPELINE = """
[source]
url = "rabbitmq-stream://user:hunter2@broker/"
superStream = "orders"
{more}
[sink]
format = "rabbitmq"
url = "rabbitmq-stream://user:hunter2@broker/"
stream = "out"
checkpointLocation = "data/checkpoint"
"""


def test_the_listener_counts_streams_and_their_lag() -> None:
    registry = CollectorRegistry()
    listener = PrometheusListener(registry=registry)
    source = SimpleNamespace(latestOffset=TOLD)
    progress: Any = SimpleNamespace(name="q", id=1, runId=2, batchDuration=500, sources=[source])
    listener.onQueryProgress(SimpleNamespace(progress=progress))  # type: ignore[arg-type]
    labels = {"query": "q", "queue": "a"}
    assert registry.get_sample_value("leash_spark_granted_total", labels) == 70
    assert registry.get_sample_value("leash_spark_lag", labels) == 630
    assert registry.get_sample_value("leash_spark_ready", labels) == 700


def test_the_table_of_leash_run_shows_streams() -> None:
    console = Console(record=True, width=120)
    plan = StreamPlan(4, streams=("a", "b"), splits=((0, 0, 60), (1, 5, 25)))
    source = {"endOffset": json.dumps(plan.to_json()), "latestOffset": TOLD}
    shown = {"sources": [source], "processedRowsPerSecond": 5.0, "numInputRows": 80}
    console.print(progress_table(shown, stream_figures))
    text = console.export_text()
    assert "batch 4: 80 rows" in text
    lines = [line.strip("│").replace("│", " ").split() for line in text.splitlines()]
    assert ["a", "700", "60", "75.0%"] in lines
    assert ["b", "5", "20", "25.0%"] in lines


def test_a_pipeline_of_streams_is_checked_by_their_options(tmp_path: Path) -> None:
    path = tmp_path / "pipeline.toml"
    path.write_text(PIPELINE.format(more='startingOffsets = "latest"'))
    assert load(path).source["superStream"] == "orders"
    path.write_text(PIPELINE.format(more='stagingLocation = "data"'))
    with pytest.raises(ConfigError, match=r"pipeline.toml:5.*stagingLocation.*is for queues"):
        load(path)


@pytest.mark.parametrize("role", [options.STREAMS, options.STREAM_READ, options.STREAM_SINK])
def test_the_documentation_holds_exactly_the_table_of_the_code(role: str) -> None:
    assert options.markdown(role) in DOCS.read_text()
