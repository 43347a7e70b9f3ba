"""The peer: the plain way to read RabbitMQ in a Python data source, with pika on the driver, acked at
commit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyspark.sql.datasource import DataSource, SimpleDataSourceStreamReader
from pyspark.sql.types import StructType


class PikaSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "pika-on-the-driver"

    def schema(self) -> str:
        return "value binary, queue string, exchange string, routing_key string, redelivered boolean"

    def simpleStreamReader(self, schema: StructType) -> SimpleDataSourceStreamReader:  # noqa: N802
        del schema
        return PikaReader(dict(self.options))


class PikaReader(SimpleDataSourceStreamReader):
    def __init__(self, options: dict[str, str]) -> None:
        self._options = options
        self._channel: Any = None
        self._last = 0

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        return {"read": 0}

    def read(self, start: dict[str, Any]) -> tuple[Iterator[tuple[Any, ...]], dict[str, Any]]:
        rows = list(self._take(int(self._options["limit"])))
        return iter(rows), {"read": start["read"] + len(rows)}

    def _take(self, limit: int) -> Iterator[tuple[Any, ...]]:
        import pika

        if self._channel is None:
            self._channel = pika.BlockingConnection(pika.URLParameters(self._options["url"])).channel()
        for queue in self._options["queues"].split(","):
            left = limit // len(self._options["queues"].split(","))
            self._channel.basic_qos(prefetch_count=min(left, 65535))
            for method, _, body in self._channel.consume(queue, inactivity_timeout=0.25):
                if method is None:
                    break
                self._last = method.delivery_tag
                yield body, queue, method.exchange, method.routing_key, method.redelivered
                left -= 1
                if not left:
                    break
            self._channel.cancel()

    def readBetweenOffsets(  # noqa: N802
        self, start: dict[str, Any], end: dict[str, Any]
    ) -> Iterator[tuple[Any, ...]]:
        raise NotImplementedError("a queue read like this cannot be replayed")

    def commit(self, end: dict[str, Any]) -> None:
        del end
        if self._last:
            self._channel.basic_ack(self._last, multiple=True)
