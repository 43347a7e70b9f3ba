"""A streaming query's Prometheus metrics: what the source reports about each batch, per queue or stream."""

from __future__ import annotations

import json
from typing import Any

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, start_http_server
from pyspark.sql.streaming.listener import (
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

_LABELS = ["query", "queue"]
_COUNTED = {
    "rows": "Messages that reached Spark",
    "granted": "Messages that batches were allowed to take",
    "bytes": "Bytes of message bodies that reached Spark",
    "redelivered": "Messages that the broker had delivered before",
    "dropped": "Copies that deduplication removed",
}


class PrometheusListener(StreamingQueryListener):
    """`spark.streams.addListener(PrometheusListener(port=9000))` serves the metrics; without a port, they
    are only registered."""

    def __init__(self, port: int | None = None, registry: CollectorRegistry = REGISTRY) -> None:
        self._counters = {
            name: Counter(f"leash_spark_{name}", doc, _LABELS, registry=registry)
            for name, doc in _COUNTED.items()
        }
        self._share = Gauge("leash_spark_share", "Share of the last batch's rows", _LABELS, registry=registry)
        self._ready = Gauge(
            "leash_spark_ready", "Messages waiting before the last plan", _LABELS, registry=registry
        )
        self._lag = Gauge(
            "leash_spark_lag", "Messages of a stream that the last plan left", _LABELS, registry=registry
        )
        self._tokens = Gauge(
            "leash_spark_tokens",
            "Tokens left; the queue label is empty for the total",
            _LABELS,
            registry=registry,
        )
        self._throttled = Gauge(
            "leash_spark_throttled", "1 while a rate limit holds", ["query"], registry=registry
        )
        self._seconds = Gauge(
            "leash_spark_batch_seconds", "Duration of the last batch", ["query"], registry=registry
        )
        self._counted: dict[tuple[str, int], int] = {}
        if port is not None:
            start_http_server(port, registry=registry)

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802
        """Nothing to count yet."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        progress = event.progress
        query = progress.name or str(progress.id)
        self._seconds.labels(query).set(progress.batchDuration / 1000)
        for number, source in enumerate(progress.sources):
            told = report_of(source.latestOffset)
            if told is not None:
                self._source(query, (str(progress.runId), number), told)

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        """Counters stay: a scrape may come later."""

    def _source(self, query: str, key: tuple[str, int], told: dict[str, Any]) -> None:
        self._throttled.labels(query).set(told.get("throttled", False))
        for queue, depth in told.get("ready", {}).items():
            self._ready.labels(query, queue).set(depth)
        for stream, left in told.get("lag", {}).items():
            self._lag.labels(query, stream).set(left)
        for queue, level in told.get("tokens", {}).items():
            self._tokens.labels(query, queue).set(level)
        # While idle, Spark reports the last batch repeatedly.
        if self._counted.get(key) == told["batch"]:
            return
        self._counted[key] = told["batch"]
        for queue, entry in told["queues"].items():
            self._share.labels(query, queue).set(entry["share"])
            for name, counter in self._counters.items():
                if name in entry:
                    counter.labels(query, queue).inc(entry[name])


def report_of(text: str | None) -> dict[str, Any] | None:
    """What our source reports, streams as queues; None for any other source."""
    try:
        told = json.loads(text or "")
    except ValueError:
        return None
    if not isinstance(told, dict) or "batch" not in told:
        return None
    if "streams" in told:
        told["queues"] = told["streams"]
    return told if "queues" in told else None
