"""OpenTelemetry: from publisher to handler one trace, tries linked, metrics by the usual names."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode, Tracer

from leash import Consumer, Message, Queue, Retry
from leash.amqp import Channel, Outgoing, Properties, Publisher
from leash.amqp.topology import declare_queue
from leash.errors import ConfigError
from leash.otel import FAILED_IN, headers, metrics, traced, tracing, tracing_async
from leash.testing import Rehearsal
from tests.consumer.kit import depth, running, until


class Traces:
    """What was exported, in this test."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.tracer: Tracer = provider.get_tracer("tests")

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.exporter.get_finished_spans() if span.name == name]


def fails_once(traces: Traces, seen: list[Message]) -> Any:
    def work(message: Message) -> None:
        seen.append(message)
        if len(seen) == 1:
            raise ValueError("the first time")

    return traced(work, traces.tracer)


def check(traces: Traces) -> None:
    (sent,) = traces.named("send")
    first, second = traces.named("process orders")
    for span in (first, second):
        assert span.context is not None
        assert sent.context is not None
        assert span.context.trace_id == sent.context.trace_id
        assert span.parent is not None
        assert span.parent.span_id == sent.context.span_id
        assert span.kind is SpanKind.CONSUMER
        assert span.attributes is not None
        assert span.attributes["messaging.destination.name"] == "orders"
        assert span.attributes["messaging.message.id"] == "id-1"
    assert first.status.status_code is StatusCode.ERROR
    assert first.events[0].name == "exception"
    assert second.status.status_code is StatusCode.UNSET
    assert first.links == ()
    (link,) = second.links
    assert first.context is not None
    assert link.context.span_id == first.context.span_id
    assert [span.attributes["leash.tries"] for span in (first, second) if span.attributes] == [0, 1]


def test_a_trace_goes_from_the_publisher_through_both_tries() -> None:
    traces, seen = Traces(), list[Message]()
    consumer = Consumer("amqp://nowhere.invalid", ["orders"], retry=Retry(3, delay=1))
    consumer.handler(fails_once(traces, seen))
    with Rehearsal(consumer) as stage:
        with traces.tracer.start_as_current_span("send"):
            stage.publish("orders", b"x", properties=Properties(message_id="id-1", headers=headers({"a": 1})))
        stage.run()
    check(traces)
    assert seen[1].headers["a"] == 1


def test_the_same_through_a_real_broker_and_its_retry_queue(channel: Channel, uri: str) -> None:
    traces, seen = Traces(), list[Message]()
    declare_queue(channel, "orders")
    with traces.tracer.start_as_current_span("send"), Publisher(channel.connection) as publisher:
        publisher.publish([Outgoing(b"x", "", "orders", Properties(message_id="id-1", headers=headers()))])
    consumer = Consumer(uri, ["orders"], retry=Retry(3, delay=0.2))
    consumer.handler(fails_once(traces, seen))
    with running(consumer):
        until(lambda: len(traces.named("process orders")) == 2)
    check(traces)


def test_a_parked_message_knows_the_try_that_gave_up_on_it(channel: Channel, uri: str) -> None:
    traces = Traces()
    declare_queue(channel, "orders")
    with Publisher(channel.connection) as publisher:
        publisher.publish([Outgoing(b"x", "", "orders")])
    consumer = Consumer(uri, ["orders"], retry=Retry(1))

    def work(message: Message) -> None:
        raise ValueError

    consumer.handler(traced(work, traces.tracer))
    with running(consumer):
        until(lambda: depth(channel, "leash.dead.orders") == 1)
    from leash.consumer import dead_queue

    (message,) = dead_queue.look(channel.connection, "orders", 1)
    (span,) = traces.named("process orders")
    assert span.context is not None
    assert f"{span.context.span_id:016x}" in message.headers[FAILED_IN]


def test_async_and_batch_handlers_and_messages_without_a_context() -> None:
    traces = Traces()
    slow = Consumer("amqp://nowhere.invalid", ["q"])

    async def work(message: Message) -> None:
        await asyncio.sleep(0.01)

    slow.handler(traced(work, traces.tracer))
    with Rehearsal(slow) as stage:
        stage.publish("q", [b"x"] * 3)
        stage.run()
    assert len(traces.named("process q")) == 3
    assert all(span.parent is None for span in traces.named("process q"))
    batches = Consumer("amqp://nowhere.invalid", ["b"])

    def together(messages: list[Message]) -> None:
        assert len(messages) == 4

    batches.batch_handler(4)(traced(together, traces.tracer))
    with Rehearsal(batches) as stage:
        with traces.tracer.start_as_current_span("send"):
            stage.publish("b", [b"x"] * 4, headers=headers())
        stage.run()
    (span,) = traces.named("process b")
    assert len(span.links) == 4
    assert span.attributes is not None
    assert span.attributes["messaging.batch.message_count"] == 4


def test_as_middleware_it_makes_the_same_spans() -> None:
    traces = Traces()
    from opentelemetry import trace

    before = trace.get_tracer
    trace.get_tracer = lambda *_, **__: traces.tracer
    try:
        bodies: list[object] = []
        plain = Consumer("amqp://nowhere.invalid", ["plain"], middleware=[tracing])
        slow = Consumer("amqp://nowhere.invalid", ["slow"], middleware=[tracing_async])

        @plain.handler
        def keep(body: dict[str, Any]) -> None:
            bodies.append(body)

        @slow.handler
        async def work(message: Message) -> None:
            await asyncio.sleep(0.01)
            bodies.append(message.body)

        for consumer, name in ((plain, "plain"), (slow, "slow")):
            with Rehearsal(consumer) as stage:
                stage.publish(name, b'{"number": 13}')
                stage.run()
            assert len(traces.named(f"process {name}")) == 1
        assert bodies == [{"number": 13}, b'{"number": 13}']
    finally:
        trace.get_tracer = before


def test_a_handler_of_decoded_bodies_is_traced_by_middleware_only() -> None:
    def work(body: dict[str, Any]) -> None: ...

    with pytest.raises(ConfigError, match=r"traced=.*: a handler of messages; use middleware=\[tracing\]"):
        traced(work)


def test_an_ordered_message_stays_as_it_came() -> None:
    traces, seen = Traces(), list[Message]()
    consumer = Consumer("amqp://nowhere.invalid", [Queue("orders", ordered=True)], retry=Retry(3, delay=1))
    consumer.handler(fails_once(traces, seen))
    with Rehearsal(consumer) as stage:
        stage.publish("orders", b"x", headers={"traceparent": "nonsense"})
        stage.run()
    assert seen[1].raw_properties == seen[0].raw_properties


def test_metrics_have_the_names_and_values_that_prometheus_sees() -> None:
    from prometheus_client import CollectorRegistry

    from leash.consumer.metrics import ConsumerCollector

    consumer = Consumer("amqp://nowhere.invalid", [Queue("q", rate=1000)])
    consumer.handler(lambda _: None)
    registry = CollectorRegistry()
    registry.register(ConsumerCollector(consumer))
    reader = InMemoryMetricReader()
    metrics(consumer, MeterProvider([reader]).get_meter("tests"))
    with Rehearsal(consumer) as stage:
        stage.publish("q", [b"x"] * 50)
        stage.run()
        data = reader.get_metrics_data()
        assert data is not None
        found = {
            (metric.name, tuple(sorted((point.attributes or {}).items()))): point.value  # type: ignore[union-attr]
            for resource in data.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
            for point in metric.data.data_points
        }
        expected = {
            (sample.name, tuple(sorted(sample.labels.items()))): sample.value
            for metric in registry.collect()
            for sample in metric.samples
        }
    assert found.keys() == expected.keys()
    assert found["leash_handled_total", (("queue", "q"),)] == 50
    assert found["leash_handler_duration_seconds_count", (("queue", "q"),)] == 50


def test_without_the_extra_it_is_a_sentence_and_leash_does_not_miss_it() -> None:
    script = (
        "import sys; sys.modules['opentelemetry'] = None; import leash, leash.consumer.consumer\n"
        "try:\n import leash.otel\nexcept leash.errors.LeashError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert "pip install 'leash[otel]'" in done.stdout, done.stderr


def test_nothing_of_leash_imports_it_by_itself() -> None:
    script = "import sys, leash.cli.main, leash.consumer.consumer; print('opentelemetry' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.stdout == "False\n", done.stderr


@pytest.mark.parametrize("given", [None, {"a": 1}])
def test_headers_outside_of_a_span_are_as_given(given: dict[str, Any] | None) -> None:
    assert headers(given) == (given or {})
