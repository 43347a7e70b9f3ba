"""OpenTelemetry: a span for each message that a handler gets, and the metrics by their usual names.

    from leash.otel import headers, metrics, tracing

    consumer = Consumer(uri, ["orders"], middleware=[tracing])    # tracing_async for `async def`
    metrics(consumer)                                             # uses your program's meter provider
    publisher.publish(body, "orders", headers=headers())          # carries the current context

The header `traceparent` carries the context, in the W3C's format: the handler's span is a child of the span
that published the message. A message that failed carries the span of that try in `x-leash-traceparent`, and
its next try is linked to it. Needs the extra `leash[otel]`; no other module of Leash imports this one.
"""

from __future__ import annotations

import functools
import struct
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar, cast, get_args

from leash.amqp.properties import with_headers
from leash.consumer.handlers import wanted
from leash.consumer.message import Message
from leash.consumer.metrics import ConsumerCollector, families
from leash.consumer.stats import Stats
from leash.consumer.workers import is_async
from leash.errors import ConfigError, LeashError, ProtocolError

try:
    from opentelemetry import metrics as otel_metrics
    from opentelemetry import propagate, trace
    from opentelemetry.metrics import CallbackOptions, Meter, Observation
    from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode, Tracer
except ImportError as error:
    raise LeashError(
        "leash.otel needs opentelemetry, which is not installed: pip install 'leash[otel]'"
    ) from error

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

    from leash.consumer.consumer import Consumer

FAILED_IN = "x-leash-traceparent"
"""The header that carries the span of the try that failed."""

_PARENT = "traceparent"
_NOTHING = Stats({}, 0.0, 0.0, False, None, 0, 0, None, 0, 0.0, 1.0, {})
_FRESH = 0.5  # seconds that a look at a consumer's numbers is good for
Handler = TypeVar("Handler", bound=Callable[..., Any])


def headers(given: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Headers for a message to publish: those given, and the current context."""
    carried: dict[str, Any] = dict(given or {})
    propagate.inject(carried)
    return carried


def traced(handler: Handler, tracer: Tracer | None = None) -> Handler:
    """Wraps a handler of messages, plain or `async`, for one message or for a batch: one span per call."""
    what = wanted(handler)
    if what not in (Message, list) and Message not in get_args(what):
        raise ConfigError(
            "traced", handler, "a handler of messages; use middleware=[tracing] with one of decoded bodies"
        )
    if is_async(handler):

        @functools.wraps(handler)
        async def asynchronous(given: Any) -> object:
            with _span(given, tracer):
                return await cast("Callable[[Any], Awaitable[object]]", handler)(given)

        return cast("Handler", asynchronous)

    @functools.wraps(handler)
    def synchronous(given: Any) -> object:
        with _span(given, tracer):
            return handler(given)

    return cast("Handler", synchronous)


def tracing(message: Message, call_next: Callable[[Message], object]) -> object:
    """Middleware for plain handlers: one span per call."""
    with _span(message, None):
        return call_next(message)


async def tracing_async(message: Message, call_next: Callable[[Message], Awaitable[object]]) -> object:
    """Middleware for `async def` handlers: one span per call."""
    with _span(message, None):
        return await call_next(message)


@contextmanager
def _span(given: Message | list[Message], tracer: Tracer | None) -> Iterator[Span]:
    messages = given if isinstance(given, list) else [given]
    one = messages[0] if len(messages) == 1 else None
    links = [link for message in messages for link in _links(message, parent=one is None)]
    with (tracer or trace.get_tracer("leash")).start_as_current_span(
        f"process {messages[0].queue}",
        context=None if one is None else propagate.extract(_texts(one)),
        kind=SpanKind.CONSUMER,
        attributes=_attributes(messages),
        links=links,
        record_exception=False,
        set_status_on_exception=False,
    ) as span:
        try:
            yield span
        except BaseException as error:
            span.record_exception(error)
            span.set_status(Status(StatusCode.ERROR, type(error).__name__))
            for message in messages:
                _remember(message)
            raise


def _attributes(messages: list[Message]) -> dict[str, str | int]:
    """As OpenTelemetry names them for messaging."""
    first = messages[0]
    told: dict[str, str | int] = {
        "messaging.system": "rabbitmq",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": first.queue,
    }
    if len(messages) > 1:
        return told | {"messaging.batch.message_count": len(messages)}
    told |= {
        "messaging.rabbitmq.destination.routing_key": first.routing_key,
        "messaging.rabbitmq.message.delivery_tag": first.tag,
        "messaging.message.body.size": len(first.body),
        "leash.tries": first.tries,
    }
    try:
        name = first.properties.message_id
    except LeashError:
        name = None
    return told | ({"messaging.message.id": name} if name else {})


def _texts(message: Message) -> dict[str, str]:
    """Its headers that are text; malformed ones carry no context."""
    try:
        return {str(name): value for name, value in message.headers.items() if isinstance(value, str)}
    except LeashError:
        return {}


def _links(message: Message, parent: bool) -> Iterator[Link]:
    """To the try that failed before; in a batch, which has no single parent, to the publisher too."""
    carried = _texts(message)
    wanted = [{_PARENT: carried[FAILED_IN]}] if FAILED_IN in carried else []
    for each in [*wanted, carried] if parent else wanted:
        context = trace.get_current_span(propagate.extract(each)).get_span_context()
        if context.is_valid:
            yield Link(context)


def _remember(message: Message) -> None:
    """Let the copy that is made for the next try carry this span. Not on an ordered lane: there the message
    itself is tried again, and is known by its headers.
    """
    carrier: dict[str, str] = {}
    propagate.inject(carrier)
    if _PARENT not in carrier or message.link.spec.ordered:
        return
    try:
        message.raw_properties = with_headers(message.raw_properties, {FAILED_IN: carrier[_PARENT]})
    except (ProtocolError, ValueError, IndexError, struct.error):  # malformed as it came
        return


# --- metrics ---


def metrics(consumer: Consumer, meter: Meter | None = None) -> None:
    """Report a consumer's numbers by the names that Prometheus has for them; to be called once."""
    source = meter or otel_metrics.get_meter("leash")
    look = _Look(consumer)
    for name, (kind, text) in _names(families(_NOTHING)).items():
        create = source.create_observable_counter if kind == "counter" else source.create_observable_gauge
        create(name, [functools.partial(look.observe, name)], description=text)


class _Look:
    """One look at the numbers serves all instruments of a collection."""

    def __init__(self, consumer: Consumer) -> None:
        self._collector = ConsumerCollector(consumer)
        self._at = float("-inf")
        self._samples: dict[str, list[Observation]] = {}

    def observe(self, name: str, _: CallbackOptions) -> Iterable[Observation]:
        if time.monotonic() - self._at > _FRESH:
            self._at, self._samples = time.monotonic(), {}
            for metric in self._collector.collect():
                for sample in metric.samples:
                    self._samples.setdefault(sample.name, []).append(
                        Observation(sample.value, dict(sample.labels))
                    )
        return self._samples.get(name, [])


def _names(families: Iterable[Metric]) -> dict[str, tuple[str, str]]:
    """Every name that a scrape can have, whether it counts, and what it says."""
    found = {}
    for family in families:
        if family.type == "histogram":
            for part in ("bucket", "count", "sum"):
                found[f"{family.name}_{part}"] = ("counter", family.documentation)
        elif family.type == "counter":
            found[f"{family.name}_total"] = ("counter", family.documentation)
        else:
            found[family.name] = ("gauge", family.documentation)
    return found
